"""Forms of suites: what is read, what is unsupported, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import git, make_repository, repository_state

from chargehand.bench.exporting import write_harbor
from chargehand.bench.forms.files import apply_patch
from chargehand.bench.inside import report_check
from chargehand.bench.records import BenchProblem, BenchSuite
from chargehand.bench.suites import load_suite, select_problems
from chargehand.core.errors import UsageError

LINE = {"task_id": "a/0", "prompt": "def f():\n", "entry_point": "f", "test": "def check(c): pass\n"}
DOCKERFILE = """# comment
FROM python:3.12-slim
LABEL a=b
WORKDIR /app
COPY data /app/data
COPY run.sh .
"""
TEST = "#!/bin/bash\nbash /tests/more.sh && echo 1 > /logs/verifier/reward.txt\n"


def write(place: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    return place


def harbor_task(place: Path, **changes: str) -> Path:
    files = {
        "task.toml": 'schema_version = "1.1"\n[verifier]\ntimeout_sec = 5.0\n[agent]\ntimeout_sec = 60.0\n',
        "instruction.md": "Write /app/answer.txt, not /application.\n",
        "environment/Dockerfile": DOCKERFILE,
        "environment/data/words.txt": "in /app/data\n",
        "environment/run.sh": "cat /app/data/words.txt\n",
        "tests/test.sh": TEST,
        "tests/more.sh": "test -f /app/answer.txt\n",
        "solution/solve.sh": "touch /app/answer.txt\n",
    }
    return write(place, {**files, **changes})


def only(suite: BenchSuite) -> BenchProblem:
    (problem,) = suite.problems
    return problem


def test_a_compressed_file_of_functions_is_read(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl.gz"
    file.write_bytes(gzip.compress((json.dumps(LINE) + "\n\n").encode()))
    suite = load_suite(file)
    assert (suite.form, suite.name, only(suite).id) == ("humaneval", "own", "a/0")
    assert only(suite).gold is None
    again = load_suite(file)
    assert again.digest == suite.digest
    file.write_bytes(gzip.compress(json.dumps({**LINE, "test": "def check(c): assert c()\n"}).encode()))
    assert load_suite(file).digest != suite.digest


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b"{\n", "line 1 cannot be read"),
        ("a.jsonl", b'{"task_id": "x"}\n', "line 1: .*missing required field"),
        ("a.jsonl", b"", "has no problems"),
        ("a.jsonl.gz", b"no gzip", "cannot be read"),
        ("a.txt", b"", "has no known form"),
        ("a.json", b"{}", "not a list"),
        ("a.jsonl", (json.dumps(LINE) + "\n").encode() * 2, "names problems twice"),
    ],
)
def test_an_unreadable_suite_is_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=said) as caught:
        load_suite(tmp_path / name)
    assert caught.value.code == "suite_invalid"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a/problem.toml": "request = 1"}, "Expected `str`"),
        ({"a/problem.toml": 'request = "x"\nother = 1'}, "unknown field"),
        ({"a/problem.toml": 'request = "x"'}, "no files to work on"),
        (
            {"a/problem.toml": 'request = "x"\nvalidator = {command = "x", seconds = 0}', "a/project/f": ""},
            "seconds",
        ),
        ({"a/problem.toml": 'request = "x"\nrepository = "."', "a/project/f": ""}, "both"),
        ({"a/other.toml": ""}, "neither"),
    ],
)
def test_an_invalid_directory_is_refused(tmp_path: Path, files: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_suite(write(tmp_path, files))


HARBOR = {"instruction.md": "x", "tests/test.sh": "true", "environment/Dockerfile": "FROM debian\nWORKDIR /app\n"}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({**HARBOR, "task.toml": 'environment = "docker"'}, "environment"),
        ({**HARBOR, "task.toml": '[verifier]\ntimeout_sec = "long"'}, "timeout_sec"),
        ({"problem.toml": 'request = "x"\nchecks = []\n', "project/f": "x"}, "checks = []"),
        ({"lines.jsonl": json.dumps({**LINE, "prompt": "\ud800"})}, "surrogates"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(tmp_path: Path, files: dict[str, str], said: str) -> None:
    write(tmp_path / "a", files)
    path = tmp_path / "a/lines.jsonl" if "lines.jsonl" in files else tmp_path
    with pytest.raises(UsageError) as caught:
        load_suite(path)
    assert caught.value.code == "suite_invalid"
    assert said in caught.value.message


def test_a_patch_that_is_no_text_is_refused(tmp_path: Path, clone: Path) -> None:
    write(tmp_path / "s/a", {"problem.toml": f'request = "x"\nrepository = {json.dumps(str(clone))}\n'})
    (tmp_path / "s/a/gold.patch").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="git apply"):
        load_suite(tmp_path / "s")


@pytest.mark.parametrize(
    ("toml", "reason"), [('request = " "', "no request"), ('request = "x"\nseconds = -1', "-1")]
)
def test_a_problem_that_no_mission_could_begin_is_unsupported(tmp_path: Path, toml: str, reason: str) -> None:
    write(tmp_path / "a", {"problem.toml": toml, "project/f": "x", "project/.git": "gitdir: elsewhere\n"})
    problem = only(load_suite(tmp_path))
    assert reason in problem.unsupported
    assert list(problem.files) == ["f"]  # the link to another repository is none of them


def test_names_of_tasks_stay_different(tmp_path: Path) -> None:
    for name in ("Foo", "foo", "f o", "f-o", "日本"):
        toml = 'request = "x"\nvalidator = { command = "true" }\n'
        write(tmp_path / "s" / name, {"problem.toml": toml, "project/f": "x"})
    assert write_harbor(load_suite(tmp_path / "s"), tmp_path / "out") == ()
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == [
        "f-o",
        "f-o-2",
        "foo",
        "foo-2",
        "problem",
    ]


def test_links_in_a_suite_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a/problem.toml": 'request = "x"', "a/project/f": ""})
    (tmp_path / "a/project/link").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="not a regular file"):
        load_suite(tmp_path)


def test_problems_are_selected_by_id_and_number(tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path, {f"{name}/problem.toml": 'request = "x"', f"{name}/project/f": ""})
    suite = load_suite(tmp_path)
    assert [each.id for each in select_problems(suite, ("c", "a")).problems] == ["a", "c"]
    assert [each.id for each in select_problems(suite, limit=2).problems] == ["a", "b"]
    with pytest.raises(UsageError, match="no problem 'd'"):
        select_problems(suite, ("d",))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "clones/own__calc", {"calc.py": "a = 1\n", "tests/test_calc.py": "old\n"})


def _patch(clone: Path, change: Callable[[], object]) -> str:
    change()
    git(clone, "add", "-A")
    text = git(clone, "diff", "--cached")
    git(clone, "reset", "-q", "--hard")
    return text if text.endswith("\n") else text + "\n"


def test_issues_of_repositories_are_read_and_the_clone_is_not_changed(tmp_path: Path, clone: Path) -> None:
    tests = _patch(clone, lambda: (clone / "tests/test_calc.py").write_text("new\n"))
    gold = _patch(clone, lambda: (clone / "calc.py").unlink())
    before = repository_state(clone)
    record = {
        "instance_id": "own__calc-1",
        "repo": "own/calc",
        "base_commit": git(clone, "rev-parse", "HEAD").strip(),
        "problem_statement": "mend it",
        "test_patch": tests,
        "patch": gold,
        "FAIL_TO_PASS": '["tests/test_calc.py::test_new"]',
        "PASS_TO_PASS": ["tests/test_calc.py::test_old"],
    }
    more = [
        {**record, "instance_id": "absent", "repo": "own/absent"},
        {**record, "instance_id": "outside", "repo": "../../etc"},
        {**record, "instance_id": "django", "FAIL_TO_PASS": ["test_x (a.B)"]},
        {**record, "instance_id": "stale", "test_patch": tests.replace("-old", "-other")},
        {**record, "instance_id": "unknown", "base_commit": "0" * 40},
    ]
    file = tmp_path / "lite.json"
    file.write_text(json.dumps([record, *more]))
    suite = load_suite(file, clones=tmp_path / "clones")
    assert repository_state(clone) == before
    found = {each.id: each for each in suite.problems}
    problem = found["own__calc-1"]
    assert problem.validator is not None
    assert problem.validator.over == {"tests/test_calc.py": (b"new\n", False)}
    assert problem.validator.reports
    assert problem.gold == {"calc.py": None}
    assert json.loads((problem.validator.files[".validator/names.json"] or (b"",))[0]) == {
        "files": ["tests/test_calc.py"],
        "names": ["tests/test_calc.py::test_new", "tests/test_calc.py::test_old"],
    }
    assert {name for name, each in found.items() if not each.unsupported} == {"own__calc-1"}
    assert "no clone of own/absent" in found["absent"].unsupported
    assert "no clone" in found["outside"].unsupported
    assert "pytest" in found["django"].unsupported
    assert "do not fit" in found["stale"].unsupported
    assert all("no clone" in each.unsupported for each in load_suite(file).problems)
    assert apply_patch(clone, "HEAD", " \n") == {}


def test_a_harbor_task_becomes_a_repository(tmp_path: Path) -> None:
    harbor_task(tmp_path / "hello")
    suite = load_suite(tmp_path)
    problem = only(suite)
    assert (suite.form, problem.id, problem.unsupported, problem.seconds) == ("harbor", "hello", "", 60.0)
    assert problem.request == "Write /workspace/answer.txt, not /application.\n"
    assert problem.files["data/words.txt"] == (b"in /workspace/data\n", False)
    assert problem.files["run.sh"] == (b"cat /workspace/data/words.txt\n", False)
    assert problem.validator is not None
    assert problem.validator.seconds == 5.0
    script = problem.validator.over[".harbor/tests/test.sh"]
    assert script is not None
    assert b"/workspace/.harbor/tests/more.sh" in script[0]
    assert b"/workspace/.harbor/verifier/reward.txt" in script[0]
    assert problem.gold == {".harbor/solution/solve.sh": (b"touch /workspace/answer.txt\n", False)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"environment/Dockerfile": DOCKERFILE + "RUN make\n"}, "Dockerfile has RUN make"),
        ({"environment/Dockerfile": DOCKERFILE + "ENV A=b\n"}, "Dockerfile has ENV"),
        ({"environment/Dockerfile": "FROM own/image:1\nWORKDIR /app\n"}, "its image is 'own/image:1'"),
        ({"environment/Dockerfile": "FROM python:3.12 AS build\nWORKDIR /app\n"}, "its image is"),
        ({"environment/Dockerfile": "FROM debian\n"}, "no WORKDIR"),
        ({"environment/Dockerfile": "FROM debian\nWORKDIR /app\nCOPY data /etc\n"}, "outside of '/app'"),
        ({"environment/Dockerfile": "FROM debian\nWORKDIR /app\nCOPY ../.. /app\n"}, "copies '../..'"),
        ({"environment/Dockerfile": "FROM debian\nWORKDIR /app\nCOPY --from=a b c\n"}, "has COPY --from"),
        ({"environment/Dockerfile": DOCKERFILE + "WORKDIR src\n"}, "has WORKDIR src"),
        ({"environment/Dockerfile": DOCKERFILE + "WORKDIR /other\n"}, "has WORKDIR /other"),
        ({"environment/Dockerfile": "FROM debian\nARG D\nWORKDIR /$D\n"}, "has WORKDIR"),
        ({"environment/Dockerfile": DOCKERFILE + "ADD data.tar.gz /app\n"}, "has ADD"),
        ({"environment/Dockerfile": DOCKERFILE + "COPY it's /app\n"}, "quotation"),
        ({"environment/docker-compose.yaml": ""}, "docker compose"),
        ({"task.toml": "[[steps]]\nname = 'x'\n"}, "several steps"),
        ({"task.toml": "[environment]\ndocker_image = 'x'\n"}, "docker_image is set"),
        ({"task.toml": "[verifier]\nenvironment_mode = 'separate'\n"}, "an image of its own"),
        ({"tests/test.sh": "curl -LsSf https://example.org\n"}, "installs programs \\(curl\\)"),
    ],
)
def test_a_task_that_needs_more_is_named_as_unsupported(
    tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    problem = only(load_suite(harbor_task(tmp_path / "hello", **changes)))
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(problem.unsupported)


def test_a_suite_survives_the_way_to_harbor_and_back(tmp_path: Path) -> None:
    files = {
        "My problem/problem.toml": (
            'request = "Write it"\nvalidator = { command = "sh \'own check.sh\'", seconds = 7 }\n'
        ),
        "My problem/project/a.txt": "a\n",
        "My problem/validator/own check.sh": "test x = $(under-test --env A=b -- cat a.txt)\n",
        "My problem/over/b.txt": "b\n",
        "My problem/gold/a.txt": "x\n",
        "none/problem.toml": 'request = "x"',
        "none/project/a.txt": "",
    }
    suite = load_suite(write(tmp_path / "suite", files))
    assert write_harbor(suite, tmp_path / "tasks") == (("none", "no validator"),)
    problem = only(load_suite(tmp_path / "tasks"))
    assert (problem.id, problem.unsupported, problem.request) == ("my-problem", "", "Write it\n")
    assert problem.files["a.txt"] == (b"a\n", False)
    done = subprocess.run(["bash", "-n", str(tmp_path / "tasks/my-problem/tests/test.sh")], check=False)
    assert done.returncode == 0
    with pytest.raises(UsageError, match="is not empty"):
        write_harbor(suite, tmp_path / "tasks")


def _under_test(place: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a stand-in for the tree's sandbox on PATH: a script that gets the command as arguments."""
    program = place / "programs/under-test"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nshift\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("printed", "passes"),
    [
        ("PASSED t.py::a\nPASSED t.py::b\n1 warning", True),
        ("PASSED t.py::a\nFAILED t.py::b - x", False),
        ("PASSED t.py::a\n", False),
        ("", False),
        ("PASSED t.py::a[x y]\nXPASSED t.py::b", False),
    ],
)
def test_every_expected_test_must_be_reported(
    printed: str, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _under_test(tmp_path, monkeypatch, f"printf %s {shlex.quote(printed)}")
    names = tmp_path / "names.json"
    names.write_text(json.dumps({"files": ["t.py"], "names": ["t.py::a", "t.py::b"]}))
    assert (report_check.check_tests(str(names)) == "") == passes


@pytest.mark.parametrize(
    ("text", "passes"), [("1", True), ("1.0\n", True), ("0", False), ("0.99", False), ("", False), ("yes", False)]
)
def test_a_reward_of_one_is_needed(
    text: str, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reward.txt").write_text(text)
    _under_test(tmp_path, monkeypatch, 'exec "$@"')
    assert (report_check.check_reward("/dev/null", str(tmp_path)) == "") == passes
    (tmp_path / "reward.txt").unlink()
    assert "left no reward" in report_check.check_reward("/dev/null", str(tmp_path))
    (tmp_path / "reward.json").write_text('{"a": 1, "b": 0.5}')
    assert report_check.check_reward("/dev/null", str(tmp_path)) == "the reward is 0.5"
