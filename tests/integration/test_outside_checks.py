"""Outside checks: code that forges its own tests' report does not pass a program in another sandbox."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from command_line import Cli, Completed, repository
from tests import vm_kit
from tests.conftest import git
from tests.jail_kit import TIERS

from chargehand.sandbox.contract import GATEWAY_PORT
from chargehand.sandbox.inside import under_test

pytestmark = pytest.mark.needs_bwrap

FILES = {
    "calc.py": (
        "import sys\n\n\ndef add(a, b):\n    return a - b\n\n\n"
        "if __name__ == '__main__':\n    print(add(int(sys.argv[1]), int(sys.argv[2])))\n"
    ),
    "test_calc.py": (
        "import unittest\nfrom calc import add\n\n\nclass T(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 1), 3)\n"
    ),
    "outside/sums.sh": (
        'set -e\n[ "$(under-test python3 calc.py 2 1)" = 3 ]\n[ "$(under-test python3 calc.py 5 7)" = 12 ]\n'
    ),
    "notes.txt": "as it was\n",
}
TEST = ("--only-check", "python3 -m unittest -q")
OUTSIDE = ("--outside-check", "sh outside/sums.sh")
MEND = "sed -i 's/a - b/a + b/' calc.py"
# The code under test replaces its judge, in the process that both share.
FORGERY = """
import unittest
unittest.TestCase.assertEqual = lambda *_: None
"""


def shell(script: str) -> str:
    """Return the agent that runs a shell script."""
    return f"command:sh -c {shlex.quote(script)}"


def writing(path: str, text: str, *, more: str = "") -> str:
    """Return the agent that appends a text to a file, and then runs `more`."""
    return shell(f"printf '%s' {shlex.quote(text)} >> {path}; {more}")


def commit(repo: Path) -> None:
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "configured")


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return repository(tmp_path / "repo", FILES)


def outside(cli: Cli, result: Completed) -> list[tuple[str, str, str]]:
    """Return name, status and reason of each outside check in the last verdict."""
    verdict = cli.state(result).verdicts[-1]
    return [(each.name, each.status, each.reason) for each in verdict.checks if each.outside]


def checked(cli: Cli, repo: Path, agent: str, command: str, *words: str) -> Completed:
    """Run a mission with one outside check, which is not part of the tree."""
    return cli.say("run", "do it", "--agent", agent, *TEST, "--outside-check", command, *words, cwd=repo)


def test_a_forged_report_passes_the_tests_but_not_the_outside_check(cli: Cli, repo: Path) -> None:
    fooled = cli.say("run", "mend it", "--agent", writing("calc.py", FORGERY), *TEST, cwd=repo)
    assert cli.state(fooled).status == "promoted"  # as the README says of checks that share the process
    result = cli.say("run", "mend it", "--agent", writing("calc.py", FORGERY), *TEST, *OUTSIDE, cwd=repo)
    assert (result.code, result.document["status"]) == (1, "refused"), result
    assert outside(cli, result) == [("outside: sh outside/sums.sh", "failed", "exit_code")]
    honest = cli.say("run", "mend it", "--agent", shell(MEND), *TEST, *OUTSIDE, cwd=repo)
    assert (honest.code, honest.document["status"]) == (0, "promoted"), honest
    assert outside(cli, honest) == [("outside: sh outside/sums.sh", "passed", "")]


def test_a_configured_outside_check_runs_the_program_of_the_base(cli: Cli, repo: Path) -> None:
    (repo / "chargehand.toml").write_text(
        '[project]\nchecks = ["python3 -m unittest -q"]\noutside_checks = ["sh outside/sums.sh"]\n'
    )
    commit(repo)
    forged = writing("calc.py", FORGERY, more="echo true > outside/sums.sh")
    result = cli.say("run", "mend it", "--agent", forged, cwd=repo)
    assert result.document["status"] == "refused", result
    assert outside(cli, result)[0][1] == "failed"
    result = cli.say("run", "mend it", "--agent", shell(f"{MEND}; echo true > outside/sums.sh"), cwd=repo)
    assert (result.document["status"], result.reasons) == ("waiting", {"check_surface"}), result
    result = cli.say("run", "mend it", "--agent", shell(MEND), cwd=repo)
    assert result.document["status"] == "promoted", result
    assert outside(cli, result)[0][1] == "passed"


def test_an_outside_file_is_visible_only_to_the_outside_check(cli: Cli, repo: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text(
        "import subprocess, sys\n"
        "ran = subprocess.run(['under-test', 'python3', 'calc.py', '20', '22'], capture_output=True, text=True)\n"
        "seen = subprocess.run(['under-test', 'ls', '-R', '/workspace'], capture_output=True, text=True).stdout\n"
        "sys.exit(ran.stdout != '42\\n' or 'secret' in seen)\n"
    )
    words = ("--outside-file", f"{tmp_path / 'secret.py'}:mine/secret.py")
    result = checked(cli, repo, shell(MEND), "python3 mine/secret.py", *words)
    assert result.document["status"] == "promoted", result
    alone = cli.say("run", "x", "--agent", shell(MEND), *TEST, *words, cwd=repo)
    assert alone.code == 2
    assert alone.error["message"].startswith("--outside-file: no outside check")


PROGRAMS = """
import subprocess, sys

def under(*words, options=(), **more):
    done = subprocess.run(["under-test", *options, "--", *words], capture_output=True, timeout=60, **more)
    return done.returncode, done.stdout, done.stderr

assert under("sh", "-c", "echo out; echo err >&2; exit 7") == (7, b"out\\n", b"err\\n")
assert under("cat", input=b"x" * 3_000_000) == (0, b"x" * 3_000_000, b"")
assert under("head", "-c", "1", input=b"x" * 3_000_000)[:2] == (0, b"x")
assert under("sh", "-c", "kill -9 $$")[0] == 137
assert under("no-such-program")[0] == 127
assert under("./calc.py")[0] == 126
assert under("pwd", options=("--cwd", "outside"))[1] == b"/workspace/outside\\n"
assert under("pwd", options=("--cwd", "nowhere"))[0] == 126
assert under("sh", "-c", "echo $A", options=("--env", "A=b c"))[1] == b"b c\\n"
assert under("sh", "-c", "sleep 1000 & echo left")[1] == b"left\\n"
assert subprocess.run(["under-test"], capture_output=True).returncode == 2
many = [subprocess.Popen(["under-test", "sh", "-c", f"sleep 0.2; echo {n}"], stdout=-1) for n in range(20)]
assert [each.communicate()[0] for each in many] == [b"%d\\n" % n for n in range(20)]
# What is killed here ends there.
long = subprocess.Popen(["under-test", "sh", "-c", "echo $$ > pid; exec sleep 1000"])
while under("cat", "pid")[0]:
    pass
number = under("cat", "pid")[1].decode().strip()
long.kill()
while not under("kill", "-0", number)[0]:
    pass
# The tree is another one, and what is written there is not here.
under("sh", "-c", "echo evil > notes.txt; echo evil > /tmp/evil")
import pathlib
assert pathlib.Path("notes.txt").read_text() == "as it was\\n"
assert not pathlib.Path("/tmp/evil").exists()
"""
SERVICE = """
import http.server, json
from calc import add

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        first, second = self.path.strip("/").split("/")
        body = json.dumps(add(int(first), int(second))).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words): ...

http.server.ThreadingHTTPServer(("127.0.0.1", 8123), Handler).serve_forever()
"""
HTTP = """
import concurrent.futures, subprocess, urllib.request
server = subprocess.Popen(["under-test", "--listen", "8123", "python3", "-B", "service.py"])
def ask(n):
    for attempt in range(50):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:8123/{n}/1", timeout=60).read()
        except OSError:
            if attempt == 49:
                raise
            import time; time.sleep(0.1)
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    assert list(pool.map(ask, range(64))) == [b"%d" % (n + 1) for n in range(64)]
server.terminate()
"""


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("tier", TIERS)
def test_programs_streams_codes_and_services_are_relayed(cli: Cli, tmp_path: Path, tier: str) -> None:
    if tier == "vm":
        vm_kit.provide(Path(cli.environ["CHARGEHAND_HOME"]) / "vm")
    repo = repository(
        tmp_path / "repo",
        {**FILES, "service.py": SERVICE, "outside/programs.py": PROGRAMS, "outside/service.py": HTTP},
    )
    words = ("--outside-check", "python3 outside/service.py", "--sandbox", tier)
    result = checked(cli, repo, shell(MEND), "python3 outside/programs.py", *words)
    verdict = cli.state(result).verdicts[-1]
    assert [each.status for each in verdict.checks] == ["passed"] * 3, result
    assert cli.state(result).status == "promoted"


HOSTILE = {
    # The tree's code cannot end, forge or silence its judge; at most its own answers are missing.
    "ends what runs beside it": "import os, signal\nos.kill(-1, signal.SIGKILL)\n",
    "ends the relay alone": (
        "import glob, os, signal\n"
        "for place in glob.glob('/proc/[0-9]*/cmdline'):\n"
        "    if b'--relay' in open(place, 'rb').read():\n"
        "        os.kill(int(place.split('/')[2]), signal.SIGKILL)\n"
    ),
    "answers in the relay's place": (
        "import socket\n"
        "forged = b'\\x01\\x00\\x00\\x00\\x023\\n' + b'\\x03\\x00\\x00\\x00\\x01\\x00'\n"
        "for n in range(1, 200):\n"
        "    s = socket.create_connection(('127.0.0.1', 8871))\n"
        "    s.sendall(b'relay\\n' if n % 2 else b'%d\\n' % n)\n"
        "    s.sendall(forged)\n"
    ),
    "floods": "import os\nwhile True:\n    os.write(1, b'x' * 65536)\n",
    "never ends": "import time\ntime.sleep(1000)\n",
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_tree_reaches_no_exit_code_of_theirs(cli: Cli, repo: Path, how: str) -> None:
    evil = writing("evil.py", HOSTILE[how], more="mv evil.py calc.py")
    (repo / "chargehand.toml").write_text('[limits]\ncheck_time = 4.0\n[project]\nchecks = ["cat *.py"]\n')
    commit(repo)
    result = cli.say("run", "do it", "--agent", evil, *OUTSIDE, cwd=repo)
    assert result.document["status"] == "refused", result
    found = outside(cli, result)
    assert len(found) == 1, result.document["reasons"]
    ((_, status, _),) = found
    assert status in ("failed", "timed_out")
    # A check that ignores the tree's answers is not disturbed by it either.
    calm = cli.say(
        "run", "do it", "--agent", evil, "--outside-check", "under-test python3 calc.py & sleep 1", cwd=repo
    )
    assert [status for _, status, _ in outside(cli, calm)] in (["passed"], ["failed"])


def test_the_disk_use_of_the_tree_under_an_outside_check_is_limited(cli: Cli, repo: Path) -> None:
    (repo / "chargehand.toml").write_text("[sandbox]\ndisk_mb = 32\n")
    commit(repo)
    full = "under-test sh -c 'head -c 100000000 /dev/zero > big; sleep 5' || true"
    result = checked(cli, repo, shell(MEND), full)
    assert [found[1:] for found in outside(cli, result)] == [("failed", "disk")], result


def test_the_port_equals_the_forwarded_port_of_sandboxes() -> None:
    assert under_test._PORT == GATEWAY_PORT


def test_invalid_outside_options_are_an_error(cli: Cli, repo: Path) -> None:
    for words in (("--outside-check", ""), ("--outside-check", "a\0b"), (*OUTSIDE, "--outside-file", "nowhere:x")):
        result = cli.say("run", "x", "--agent", shell("true"), *words, cwd=repo)
        assert result.code == 2, (words, result)
        assert result.error["message"].startswith("--outside-"), result
