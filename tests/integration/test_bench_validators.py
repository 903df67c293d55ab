"""Validators of benchmarks: known solutions pass, unchanged files fail, and no cheat is accepted."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.used_state import used_state

from chargehand.app.sandbox_commands import open_outside_judge
from chargehand.bench.forms.humaneval import load_humaneval
from chargehand.bench.inside import function_check
from chargehand.bench.records import BenchProblem, BenchValidator, ProblemCheck, Validation
from chargehand.bench.runner import check_suite
from chargehand.bench.suites import load_suite
from chargehand.bench.validation import make_repository, open_scratch, validate

DATA = Path(__file__).parents[3] / "shared/data/humaneval_0_81.jsonl.gz"
needs_bwrap = pytest.mark.needs_bwrap
needs_data = pytest.mark.skipif(
    not DATA.exists() and not os.environ.get("CI"), reason="the problems are not beside this checkout"
)

PROMPT = 'def double(number):\n    """Return twice the number."""\n'
TEST = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-7) == -14\n"
LINE = {
    "task_id": "own/0",
    "prompt": PROMPT,
    "entry_point": "double",
    "canonical_solution": "    return 2 * number\n",
    "test": TEST,
}
_ALWAYS = "class Any:\n" + "".join(
    f"    def __{name}__(self, other=None): return {value}\n"
    for name, value in (
        *(("eq", True), ("ne", False), ("lt", True), ("le", True), ("sub", 0), ("rsub", 0), ("abs", 0)),
        *(("bool", True), ("hash", 4)),
    )
)
_FORGE = "import json, os, sys\nfor fd in range(3, 64):\n    try: os.write(fd, {})\n    except OSError: pass\n"
CHEATS = {
    "exits at import": "import sys; sys.exit(0)",
    "ends the process at import": "import os; os._exit(0)",
    "exits when called": PROMPT + "    import sys; sys.exit(0)\n",
    "ends the process when called": PROMPT + "    import os; os._exit(0)\n",
    "exits at the end": "import atexit, os\natexit.register(os._exit, 0)\n" + PROMPT,
    "returns an object that equals all": _ALWAYS + PROMPT + "    return Any()\n",
    "returns an int that equals all": (
        "class I(int):\n    __eq__ = lambda s, o: True\n" + PROMPT + "    return I(0)\n"
    ),
    "returns not a number": PROMPT + "    return float('nan')\n",
    "forges answers": _FORGE.format('b\'{"value": {"int": "0x4"}}\\n\' * 9') + PROMPT + "    return 0\n",
    "forges an exit code": "import os\nos.write(1, b'passed\\n')\n" + PROMPT + "    raise SystemExit(0)\n",
    "patches assertions": "import unittest\nunittest.TestCase.assertEqual = lambda *_: None\n" + PROMPT,
    "patches the driver's encoding": "import json, __main__\n__main__.encode = lambda _: True\n" + PROMPT,
    "writes over the task": (
        "import os\nos.makedirs('.validator', exist_ok=True)\n"
        "open('.validator/task.json', 'w').write('{\"test\": \"def check(candidate): pass\"}')\n" + PROMPT
    ),
    "brings its own validator": "",  # with more files, below
    "shadows the standard library": "",
    "reads the validator's files": (
        "import json, os\nanswers = {}\n"
        "for place, _, names in os.walk('/'):\n"
        "    if 'task.json' in names and place.endswith('.validator'): answers['found'] = True\n"
        + PROMPT
        + "    return 2 * number if answers else 0\n"
    ),
    "reads the memory of other processes": (
        "import os\nfound = [p for p in os.listdir('/proc') if p.isdigit()\n"
        "    and b'function_check' in open(f'/proc/{p}/cmdline', 'rb').read()]\n"
        + PROMPT
        + "    return 2 * number if found else 0\n"
    ),
    "leaves a background process": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
        "    while True:\n        try: os.write(1, b'passed')\n        except OSError: pass\n"
        "        time.sleep(1)\n" + PROMPT
    ),
    "raises what the test expects": PROMPT + "    raise AssertionError\n",
    "answers all questions with one word": PROMPT + "    return True\n",
    "hangs": PROMPT + "    import time; time.sleep(1000)\n",
    "is a fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
}
MORE_FILES = {
    "brings its own validator": {
        ".validator/function_check.py": "raise SystemExit(0)\n",
        "under-test": "#!/bin/sh\n",
    },
    "shadows the standard library": {
        "json.py": "import os; os._exit(0)\n",
        "subprocess.py": "raise SystemExit(0)\n",
    },
}
SLOW = {"hangs", "is a fork bomb"}
ONLY_IN_SOAK = {"is a fork bomb", "reads the validator's files", "reads the memory of other processes"}
# The others concern only the answers, which are compared in the same way without sandboxes.
OF_THE_SANDBOX = {
    "hangs",
    *MORE_FILES,
    "ends the process at import",
    "writes over the task",
    "leaves a background process",
}


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = tmp_path_factory.mktemp("person")
    home = used_state(place / "state")
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(place), "CHARGEHAND_HOME": str(home)}


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> BenchProblem:
    file = tmp_path_factory.mktemp("suite") / "own.jsonl"
    file.write_text(json.dumps(LINE) + "\n")
    (problem,) = load_humaneval(file)
    return problem


@needs_data
def test_all_known_solutions_pass_and_all_unchanged_files_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The validator's own program, without sandboxes: `scripts/soak` runs all of it through missions."""
    problems = load_humaneval(DATA)
    assert len(problems) == 82
    monkeypatch.chdir(tmp_path)
    launch = (sys.executable, "-I", "-S", "-c")
    wrong = []
    for each in problems:
        assert each.validator is not None
        assert each.gold is not None
        task = each.validator.files[".validator/task.json"]
        assert task is not None
        for files, passes in ((each.gold, True), (each.files, False)):
            file = files["solution.py"]
            assert file is not None
            (tmp_path / "solution.py").write_bytes(file[0])
            if (function_check.run(json.loads(task[0]), launch) == "") != passes:
                wrong.append((each.id, passes))
    assert wrong == []


async def _judge_all(
    place: Path, environ: dict[str, str], problem: BenchProblem, names: Collection[str]
) -> tuple[dict[str, Validation], Validation]:
    repository = make_repository(problem, place)
    assert problem.validator is not None
    short = replace(problem, validator=replace(problem.validator, seconds=1.5))
    found = {}
    with open_scratch(place / "home", repository, environ) as app:
        async with open_outside_judge(app, repository=repository) as judge:
            assert problem.gold is not None
            known = await validate(judge, problem, await judge.make_tree(problem.gold))
            for name in sorted(names):
                source = CHEATS[name]
                files = {"solution.py": source or PROMPT, **MORE_FILES.get(name, {})}
                tree = await judge.make_tree({path: (text.encode(), True) for path, text in files.items()})
                found[name] = await validate(judge, short if name in SLOW else problem, tree)
    return found, known


@pytest.mark.parametrize("name", sorted(CHEATS.keys() - OF_THE_SANDBOX - ONLY_IN_SOAK))
def test_a_cheating_answer_is_not_accepted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: BenchProblem
) -> None:
    monkeypatch.chdir(tmp_path)
    assert problem.validator is not None
    task = problem.validator.files[".validator/task.json"]
    assert task is not None
    launch = (sys.executable, "-I", "-S", "-c")
    (tmp_path / "solution.py").write_text(PROMPT + str(LINE["canonical_solution"]))
    assert function_check.run(json.loads(task[0]), launch) == ""
    (tmp_path / "solution.py").write_text(CHEATS[name])
    assert function_check.run(json.loads(task[0]), launch) != ""


@needs_bwrap
@pytest.mark.parametrize(
    "names", [OF_THE_SANDBOX, pytest.param(CHEATS.keys(), marks=pytest.mark.soak)], ids=["sandbox", "all"]
)
def test_no_cheat_is_accepted(
    names: Collection[str], tmp_path: Path, environ: dict[str, str], problem: BenchProblem
) -> None:
    assert len(CHEATS) >= 20
    found, known = asyncio.run(_judge_all(tmp_path, environ, problem, names))
    assert known.judgement == "passed", known
    assert {name: each for name, each in found.items() if each.judgement == "passed"} == {}
    assert {name for name, each in found.items() if each.judgement == "timed_out"} >= {"hangs"}


def _directory(place: Path, **problems: str) -> Path:
    for name, validator in problems.items():
        folder = place / name
        (folder / "project").mkdir(parents=True)
        (folder / "project/answer.txt").write_text("no\n")
        (folder / "gold").mkdir()
        (folder / "gold/answer.txt").write_text("yes\n")
        (folder / "validator").mkdir()
        (folder / "validator/own.sh").write_text('test "$(under-test cat answer.txt)" = yes\n')
        table = f"{{ command = {json.dumps(validator)}, seconds = 1.5 }}"
        text = f'request = "Write yes into answer.txt"\nvalidator = {table}\n'
        (folder / "problem.toml").write_text(text if validator else 'request = "Write yes"\n')
    return place


@needs_bwrap
def test_bad_validators_are_named(tmp_path: Path, environ: dict[str, str]) -> None:
    root = _directory(
        tmp_path,
        good="sh own.sh",
        accepts_all="true",
        accepts_nothing="false",
        hangs="sleep 60",
        forks="(sleep 60 &) ; (setsid sleep 60 &) ; sh own.sh; sleep 60",
        removes_itself="rm -f own.sh; sh own.sh",
        writes_results="echo '{}' > results.jsonl; mkdir -p /logs; sh own.sh",
        has_none="",
    )
    checks = {each.id: each for each in check_suite(load_suite(root), environ, jobs=2)}
    assert {name for name, each in checks.items() if each.status == "valid"} == {"good", "writes_results"}
    assert checks["has_none"].status == "unvalidated"
    assert checks["accepts_all"].reason == "its validator accepts the unchanged files"
    assert (checks["accepts_nothing"].null, checks["accepts_nothing"].gold) == ("failed", "failed")
    assert checks["hangs"].gold == "timed_out"
    assert {checks[name].status for name in ("forks", "removes_itself", "hangs")} == {"invalid"}
    seen: list[ProblemCheck] = []
    again = check_suite(load_suite(root), environ, jobs=2, on_check=seen.append, reuse=True)
    assert {each.id: each for each in again} == checks
    assert {each.id for each in seen} == {*checks} - {"good", "writes_results"}


@needs_bwrap
def test_a_bad_problem_is_named_and_the_others_are_checked(tmp_path: Path, environ: dict[str, str]) -> None:
    root = _directory(tmp_path, good="sh own.sh", other="sh own.sh")
    (root / "other/project/chargehand.toml").write_text("[project]\nchecks = 3\n")
    checks = {each.id: each for each in check_suite(load_suite(root), environ, jobs=2)}
    assert (checks["good"].status, checks["other"].status) == ("valid", "invalid")
    assert "checks must be a list" in checks["other"].reason


@needs_bwrap
def test_a_solution_that_needs_other_packages_is_judged_with_them(tmp_path: Path, environ: dict[str, str]) -> None:
    files = {
        "problem.toml": 'request = "use two"\n[validator]\n'
        "command = 'test \"$(under-test cat vendor/deps.txt)\" = two'\n",
        "project/deps.txt": "one\n",
        "project/.gitignore": "vendor\n",
        "project/chargehand.toml": '[project]\nsetup = "mkdir -p vendor && cp deps.txt vendor/deps.txt"\n'
        'setup_inputs = ["deps.txt"]\n',
        "gold/deps.txt": "two\n",
    }
    for path, text in files.items():
        (tmp_path / "one" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "one" / path).write_text(text)
    (check,) = check_suite(load_suite(tmp_path), environ)
    assert (check.status, check.null, check.gold) == ("valid", "failed", "passed"), check


@needs_bwrap
def test_the_problem_of_the_how_to_is_valid(tmp_path: Path, environ: dict[str, str]) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/benchmarks.md").read_text()
    blocks = re.findall(r"```(?:toml|python)\n# (\S+)\n(.*?)```", page, re.DOTALL)
    assert [path for path, _ in blocks] == ["mend-sum/problem.toml", "mend-sum/validator/check.py"]
    blocks += [
        ("mend-sum/project/calc.py", "def total(numbers):\n    return sum(numbers[:-1])\n"),
        ("mend-sum/gold/calc.py", "def total(numbers):\n    return sum(numbers)\n"),
    ]
    for path, text in blocks:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (check,) = check_suite(load_suite(tmp_path), environ)
    assert (check.status, check.null, check.gold) == ("valid", "failed", "passed"), check


@needs_bwrap
def test_the_files_over_a_solution_replace_its_own(tmp_path: Path, environ: dict[str, str]) -> None:
    problem = BenchProblem(
        id="over",
        request="x",
        files={"code.sh": (b"echo 1\n", False)},
        validator=BenchValidator(
            command='test "$(under-test sh tests/run.sh)" = 2', over={"tests/run.sh": (b"sh code.sh\n", False)}
        ),
    )

    async def judge_it() -> list[str]:
        found = []
        repository = make_repository(problem, tmp_path)
        with open_scratch(tmp_path / "home", repository, environ) as app:
            async with open_outside_judge(app, repository=repository) as judge:
                for files in (
                    {"code.sh": (b"echo 2\n", False)},
                    {"tests/run.sh": (b"echo 2\n", False)},
                    {"tests": (b"a file in the way\n", False), "code.sh": (b"echo 2\n", False)},
                ):
                    found.append((await validate(judge, problem, await judge.make_tree(files))).judgement)
        return found

    assert asyncio.run(judge_it()) == ["passed", "failed", "passed"]
