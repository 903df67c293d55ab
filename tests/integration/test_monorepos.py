"""Missions that work in a directory of a larger repository: agent, checks and detection are that project's."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from command_line import Cli, Completed, repository
from tests.conftest import git
from tests.integration.test_detached import wait_until, watched, workers
from tests.native_kit import FINISH, NativeKit, call, edit, says, scripted

from chargehand.missions.transcript import read_transcript

pytestmark = pytest.mark.needs_bwrap
FILES = {
    ".gitignore": "__pycache__/\nignored/\n",
    "README.md": "# Two projects\n",
    "services/api/pyproject.toml": '[project]\nname = "api"\nversion = "1"\n',
    "services/api/calc/__init__.py": "",
    "services/api/calc/core.py": "def add(a, b):\n    return a - b\n",
    "services/api/tests/__init__.py": "",
    "services/api/tests/test_core.py": (
        "import unittest\n\nfrom calc.core import add\n\n\n"
        "class CoreTest(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n\n"
        "    def test_nothing(self):\n        self.assertEqual(add(0, 0), 0)\n"
    ),
    "packages/web/package.json": '{"name": "web", "scripts": {"test": "node --test"}}\n',
    "packages/web/index.js": "exports.twice = (n) => n + 2;\n",
    "packages/web/test/index.test.js": (
        "const test = require('node:test');\nconst assert = require('node:assert');\n"
        "test('twice', () => assert.equal(require('../index.js').twice(4), 8));\n"
    ),
}
WEB_GOLD = "sed -i s/n.+.2/n*2/ index.js"
OUTSIDE = """test "$(under-test python3 -c 'from calc.core import add; print(add(5, 7))')" = 12\n"""
PATCH = """Apply this.
--- a/{path}
+++ b/{path}
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""
# A minimal agent of the Agent Client Protocol: it works in the directory of its session.
ACP = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    result = {"protocolVersion": 1, "sessionId": "one", "stopReason": "end_turn"}
    if asked.get("method") == "session/new":
        os.chdir("/")
        os.chdir(asked["params"]["cwd"])
    if asked.get("method") == "session/prompt":
        text = open("calc/core.py").read()
        open("calc/core.py", "w").write(text.replace("a - b", "a + b"))
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
GOLD = "command:sed -i s/a.-.b/a+b/ calc/core.py"
HALF = "command:sed -i s/a.-.b/a*b/ calc/core.py"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    yield made
    wait_until(lambda: not workers(made))  # each ends by itself once no work is left


@pytest.fixture
def monorepo(tmp_path: Path) -> Path:
    return repository(tmp_path / "repo", FILES)


def run(cli: Cli, cwd: Path, agent: str, *words: str) -> Completed:
    return cli.say("run", "mend it", "--agent", agent, *words, cwd=cwd)


def script(text: str) -> str:
    """Return the agent that runs a shell script."""
    return f"command:sh -c {shlex.quote(text)}"


def commit(repo: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "more")


def findings(cli: Cli, result: Completed) -> dict[str, str]:
    return {found.rule: found.message for found in cli.state(result).verdicts[-1].findings}


def test_a_fix_in_a_subdirectory_is_promoted_and_a_partial_fix_is_not(cli: Cli, monorepo: Path) -> None:
    api = monorepo / "services/api"
    good = run(cli, api / "calc", GOLD)
    assert (good.code, good.document["directory"]) == (0, "services/api"), good
    verdict = cli.state(good).verdicts[-1]
    assert [(check.name, check.tests) for check in verdict.checks] == [("python -m unittest discover", 2)]
    assert verdict.unread == ()
    changed = git(monorepo, "diff", "--name-only", "HEAD", good.document["branch"])
    assert changed.split() == ["services/api/calc/core.py"]
    bad = run(cli, api, HALF)
    assert (bad.code, bad.reasons) == (3, {"known_failures"}), bad


def test_the_output_names_the_directory_of_a_mission(cli: Cli, monorepo: Path) -> None:
    words = ("run", "mend it", "--agent", script(WEB_GOLD), "--dir", "packages/web")
    told = cli.say(*words, cwd=monorepo, as_json=False)
    assert told.code == 0, told
    assert "works     in packages/web" in told.stdout.splitlines()[:4]
    assert "npm test" in told.stdout
    shown = cli.say("mission", "show", cwd=monorepo, as_json=False)
    assert "works     in packages/web" in shown.stdout


def test_a_mission_at_the_top_uses_no_subdirectory_project(cli: Cli, monorepo: Path) -> None:
    for cwd, words in (
        (monorepo, ()),
        (monorepo / "services/api", ("--dir", "../..")),
        (monorepo / "services", ()),
    ):
        result = run(
            cli, cwd, script("test -d services && echo >> README.md"), "--only-check", "test -d services", *words
        )
        assert (result.code, result.document["directory"]) == (0, "."), result


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("services/nothing", "does not exist"),
        ("README.md", "is a file"),
        ("../elsewhere", "is not in the repository"),
        ("/etc", "is not in the repository"),
        ("out", "is a symbolic link"),
        ("ignored", "has no file that is committed"),
        ("untracked/deep", "has no file that is committed"),
        ("", "is not a path"),
    ],
)
def test_an_invalid_directory_is_refused_before_recording(cli: Cli, monorepo: Path, value: str, says: str) -> None:
    (monorepo / "out").symlink_to("/tmp")
    commit(monorepo, {})
    for place in ("ignored", "untracked/deep"):
        (monorepo / place).mkdir(parents=True)
        (monorepo / place / "file").touch()
    words = ("run", "mend it", "--agent", GOLD, "--dir", value)
    error = cli.refused("directory_invalid", 2, *words, cwd=monorepo)
    assert says in error["message"]
    assert repr(value) in error["message"]
    assert cli.missions(monorepo) == []


def test_a_directory_is_relative_to_the_current_one_or_the_top(cli: Cli, monorepo: Path) -> None:
    for cwd, words in (
        (monorepo / "services", ("--dir", "api/calc")),
        (monorepo / "services", ("--dir", str(monorepo / "services/api"))),
        (monorepo.parent, ("--repo", "repo", "--dir", "services/api")),
        (monorepo / "packages", ("--repo", "..", "--dir", "services/api/")),
    ):
        result = run(cli, cwd, "command:true", "--only-check", "true", *words)
        assert result.document["directory"] == "services/api", words
    for cwd, words in ((monorepo / "services/api", ("--dir", "/")), (monorepo.parent, ("--repo", "repo"))):
        result = run(cli, cwd, "command:true", "--only-check", "true", *words)
        assert result.document["directory"] == ".", words


def test_a_detached_mission_works_in_its_directory_and_can_be_promoted(cli: Cli, monorepo: Path) -> None:
    soft = "sed -i s/a.-.b/a+b/ calc/core.py; sed -i 's/Equal(add(2, 3), 5)/True(add(2, 3))/' tests/test_core.py"
    result = run(cli, monorepo / "services/api", script(soft), "--detach")
    watched(cli, result, monorepo)
    mission = result.document["mission"]
    state = cli.state(result)
    assert (state.status, {reason.code for reason in state.reasons}) == ("waiting", {"tests_weakened"}), (
        state.reasons
    )
    # The fault was put into that directory's code, and both versions of its tests ran there.
    assert "services/api/calc/core.py:2" in findings(cli, result)["tests_weakened"]
    promoted = cli.say("mission", "promote", mission, "--reason", "seen", cwd=monorepo)
    assert (promoted.code, promoted.document["status"]) == (0, "promoted"), promoted
    assert promoted.document["directory"] == "services/api"


def test_weakened_and_lost_tests_in_a_subdirectory_are_detected(cli: Cli, monorepo: Path) -> None:
    api = monorepo / "services/api"
    bent = run(cli, api, script("sed -i s/a.-.b/a*b/ calc/core.py; sed -i s/,.5/,6/ tests/test_core.py"))
    assert (bent.code, bent.reasons) == (3, {"base_tests_fail"}), bent
    (check,) = [check for check in cli.state(bent).verdicts[-1].checks if check.base_tests]
    assert check.status == "failed"
    gone = "sed -i s/a.-.b/a+b/ calc/core.py; echo 'del CoreTest.test_nothing' >> tests/test_core.py"
    lost = run(cli, api, script(gone))
    assert lost.code == 3, lost
    assert "tests_lost" in lost.reasons


def test_an_outside_check_runs_in_the_subdirectory(cli: Cli, monorepo: Path) -> None:
    commit(monorepo, {"services/api/outside/sum.sh": OUTSIDE})
    words = ("--outside-check", "sh outside/sum.sh")
    good = run(cli, monorepo / "services/api", GOLD, *words)
    assert good.code == 0, good
    assert [check.status for check in cli.state(good).verdicts[-1].checks if check.outside] == ["passed"]
    forged = "printf 'import unittest\\nunittest.TestCase.assertEqual = lambda *_: 0\\n' >> calc/core.py"
    bad = run(cli, monorepo / "services/api", script(forged), *words)
    assert bad.code == 1, bad


def test_a_removed_directory_is_a_failed_check(cli: Cli, monorepo: Path) -> None:
    away = "cd ../.. && mv services/api services/moved"
    back = "mv services/moved services/api; sed -i s/a.-.b/a+b/ services/api/calc/core.py"
    gone = run(cli, monorepo / "services/api", script(away))
    assert (gone.code, gone.reasons) == (1, {"directory_gone"}), gone
    assert "services/api" in findings(cli, gone)["directory_gone"]
    # The next attempt starts at the top, and can repair that.
    both = script(f"if test -d calc; then {away}; else {back}; fi")
    mended = run(cli, monorepo / "services/api", both, "--attempts", "2")
    assert (mended.code, [attempt["status"] for attempt in mended.document["attempts"]]) == (
        0,
        ["refused", "succeeded"],
    ), mended


def test_configured_checks_run_in_the_directory_of_their_file(cli: Cli, monorepo: Path) -> None:
    commit(
        monorepo,
        {
            "chargehand.toml": '[project]\nchecks = ["test -d services"]\nsetup = "test -d packages"\n',
            "packages/web/chargehand.toml": (
                '[project]\nchecks = ["npm test", "test -f made"]\nsetup = "echo > made"\n'
            ),
        },
    )
    api = run(cli, monorepo / "services/api", GOLD)
    assert (api.code, api.document["directory"]) == (3, "services/api"), api
    request = cli.state(api).request
    assert request is not None
    assert (request.directory, request.checks_directory) == ("services/api", "")
    assert [check.status for check in cli.state(api).verdicts[-1].checks] == ["passed"]
    assert api.reasons == {"change_unread"}
    web = run(cli, monorepo / "packages/web/test", script(WEB_GOLD))
    assert (web.code, web.document["directory"]) == (0, "packages/web"), web
    assert [check.name for check in cli.state(web).verdicts[-1].checks] == ["npm test", "test -f made"]


def test_a_configuration_file_in_a_subdirectory_needs_trust(cli: Cli, monorepo: Path) -> None:
    api = monorepo / "services/api"
    (api / "chargehand.toml").write_text('[project]\nchecks = []\n[sandbox]\nnetwork = ["example.org"]\n')
    words = ("run", "mend it", "--agent", GOLD)
    error = cli.refused("trust_needed", 3, *words, cwd=api)
    assert "services/api/chargehand.toml:4" in error["message"]
    assert cli.say("project", "trust", "--yes", cwd=api).code == 0
    assert cli.say(*words, "--detach", cwd=api).code == 0
    assert cli.say(*words, "--detach", cwd=monorepo).document["directory"] == "."
    for state in cli.missions(monorepo):
        cli.say("mission", "cancel", state.id, cwd=monorepo)


def test_init_and_project_use_the_project_of_the_current_directory(cli: Cli, monorepo: Path) -> None:
    shown = cli.say("project", "show", cwd=monorepo / "packages/web/test").document
    assert (shown["directory"], shown["checks"]) == ("packages/web", ["npm test"])
    made = cli.say("init", "--yes", cwd=monorepo / "services/api/calc").document
    assert made["path"] == str(monorepo / "services/api/chargehand.toml")
    assert made["checks"] == ["python -m unittest discover"]
    again = cli.say("run", "mend it", "--agent", GOLD, cwd=monorepo / "services/api")
    assert again.code == 0, again
    assert cli.say("exec", "--", "pwd", cwd=monorepo / "services").document["stdout"] == "/workspace/services\n"


def test_an_acp_agent_starts_in_the_subdirectory(cli: Cli, monorepo: Path) -> None:
    place = cli.place / ".config/chargehand"
    place.mkdir(parents=True)
    command = json.dumps(["python3", "-I", "-c", ACP])
    (place / "config.toml").write_text(f'[agents.spoken]\nkind = "acp"\ncommand = {command}\n')
    result = run(cli, monorepo / "services/api", "spoken")
    assert (result.code, result.document["directory"]) == (0, "services/api"), result


def test_a_patch_applies_relative_to_the_subdirectory_or_the_top(cli: Cli, monorepo: Path) -> None:
    place = cli.place / ".config/chargehand"
    place.mkdir(parents=True)
    (place / "config.toml").write_text('[agents.given]\nkind = "patch"\n')
    for above in ("", "services/api/"):
        patch = PATCH.format(path=f"{above}calc/core.py")
        result = cli.say("run", patch, "--agent", "given", cwd=monorepo / "services/api")
        assert (result.code, result.document["directory"]) == (0, "services/api"), result


def test_the_native_agent_works_in_the_subdirectory(tmp_path: Path) -> None:
    kit = NativeKit(tmp_path, {**FILES, "AGENTS.md": "Top rule\n", "services/api/AGENTS.md": "Near rule\n"})
    kit.model(
        "scripted",
        scripted(
            (
                says("", call("read", path="calc/core.py"), call("search", pattern="def add")),
                says("", call("bash", command="pwd && ls ../..")),
                says(
                    "", edit("a - b", "a + b", "calc/core.py"), call("edit", path="../../NOTE", old="", new="x\n")
                ),
                FINISH,
            )
        ),
    )
    place = {"directory": "services/api", "checks_directory": "services/api"}
    state = kit.native(checks=("python3 -m unittest discover -q",), **place)
    assert state.status == "promoted", state.reasons
    assert git(kit.repository, "show", "chargehand/mend-add:NOTE") == "x"
    with kit.opened() as app:
        lines = list(read_transcript(app.store, app.mission_reader.state(state.id)))
    result = "\n".join(line.text for line in lines)
    assert "You start in /workspace/services/api" in result
    assert result.index("Top rule") < result.index("Near rule")
    assert "calc/core.py:1:def add" in result
    assert "/workspace/services/api\n" in result
