"""Odd environments from a shell: streams closed or full, a deleted directory, a person without a home.

Each gives one message with a way out, or no error at all; never an internal error.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Cli, repository

from chargehand.workspace.errors import GitError
from chargehand.workspace.host.git import private_git

NOT_UTF8 = "\udcff"


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("repo") / "repo")


def give(cli: Cli, script: str, *words: str, cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a command through a shell script that receives it as `"$@"`."""
    return subprocess.run(
        ["sh", "-c", script, "sh", *cli.argv(*words)],
        cwd=cwd,
        env={**cli.environ, **changes},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


CLOSED = ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")
# Command -> exit code and stream. The suite closes that stream, and all at once; soak runs also each other stream.
STREAMS_USED = {
    ("mission", "list"): (0, ">&-"),
    ("mission", "show", "m-nothing"): (2, "2>&-"),
    ("run", "--file", "-", "--agent", "command:true"): (2, "<&-"),
    ("project", "trust"): (0, "<&-"),
}


@pytest.mark.parametrize(
    ("words", "code", "closed"),
    [
        pytest.param(words, code, closed, marks=() if closed in (used, CLOSED[-1]) else pytest.mark.soak)
        for words, (code, used) in STREAMS_USED.items()
        for closed in CLOSED
    ],
)
def test_commands_work_with_closed_standard_streams(
    cli: Cli, repo: Path, words: tuple[str, ...], code: int, closed: str
) -> None:
    done = give(cli, f'exec "$@" {closed}', *words, cwd=repo)
    assert (done.returncode, "internal" in done.stderr) == (code, False), done
    assert not (cli.home / "errors").exists()


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    script = (
        "import sys; from chargehand.cli.main import open_closed_streams; open_closed_streams();"
        " log = open('log', 'w'); print('for nobody'); print('for nobody', file=sys.stderr);"
        " sys.exit(log.fileno() + len(sys.stdin.read()))"
    )
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", script]
    assert subprocess.run(shell, cwd=tmp_path, check=False).returncode == 3
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_full_disk_behind_stdout_is_named(cli: Cli, repo: Path, form: tuple[str, ...]) -> None:
    done = give(cli, 'exec "$@" >/dev/full', "mission", "list", *form, cwd=repo)
    assert done.returncode == 6
    assert f"cannot write to stdout: {os.strerror(errno.ENOSPC)}" in done.stderr
    assert ("output_unwritable" in done.stderr) is bool(form)


@pytest.mark.parametrize("words", [("mission", "list"), ("config", "show"), ("run", "mend"), ("mcp",)])
def test_a_deleted_current_directory_is_an_error(cli: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = give(cli, 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert "the current directory no longer exists" in done.stderr


def test_an_unknown_home_directory_is_an_error(cli: Cli, tmp_path: Path) -> None:
    # A user without an entry in the user database, as is common in containers.
    (tmp_path / "sitecustomize.py").write_text("import os\nos.getuid = lambda: 54321\n")
    python = {"HOME": "", "CHARGEHAND_HOME": "", "PYTHONPATH": str(tmp_path)}
    for words in (("mission", "list"), ("agent", "list"), ("config", "show")):
        done = give(cli, 'unset HOME; exec "$@"', *words, cwd=tmp_path, **python)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert "your home directory is unknown" in done.stderr
        placed = python | {"CHARGEHAND_HOME": str(cli.home), "XDG_CONFIG_HOME": str(tmp_path)}
        done = give(cli, 'unset HOME; exec "$@"', *words, cwd=tmp_path, **placed)
        assert done.returncode == 0, done


def test_a_state_directory_that_is_not_utf8_is_refused(cli: Cli, tmp_path: Path) -> None:
    for name in ("CHARGEHAND_HOME", "XDG_STATE_HOME"):
        places = {"CHARGEHAND_HOME": "", name: str(tmp_path / NOT_UTF8)}
        done = give(cli, 'exec "$@"', "mission", "list", cwd=tmp_path, **places)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert "not UTF-8" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("mission", "show", NOT_UTF8),
        ("mission", "answer", NOT_UTF8, "yes"),
        ("mission", "fork", NOT_UTF8),
        ("checkpoint", "list", NOT_UTF8),
        ("audit", "verify", NOT_UTF8),
        ("audit", "export", NOT_UTF8),
        ("store", "check", NOT_UTF8),
    ],
)
def test_a_mission_that_is_not_utf8_is_not_found(cli: Cli, repo: Path, words: tuple[str, ...]) -> None:
    assert cli.refused("not_found", 2, *words, cwd=repo)["message"] == "there is no mission '\\udcff'"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("usage", ("gc", "--dry-run", "--max-bytes", "9" * 400)),
        ("usage", ("gc", "--dry-run", "--max-age", "9" * 400 + "d")),
        ("usage", ("run", "mend", "--detach", "--agent", "command:true", "--idempotency-key", NOT_UTF8)),
        ("usage", ("run", "mend", "--detach", "--agent", "command:true", "--idempotency-key", "")),
        ("usage", ("run", "--agent", "command:true", "--file", "/")),
        ("usage", ("run", "mend", "--agent", "command:true", "--check-file", "/:a")),
        ("usage", ("policy", "test", "--mcp", "server/tool " + "[" * 2000)),
        ("usage", ("gateway", "serve", "--replay", "/dev/null", "--budget", "nan")),
        ("usage", ("gateway", "serve", "--replay", "/dev/null", "--budget", "inf")),
        ("config_invalid", ("config", "set", "limits.attempts", "three")),
    ],
)
def test_odd_values_are_named_with_the_way_out(cli: Cli, repo: Path, code: str, words: tuple[str, ...]) -> None:
    error = cli.refused(code, 2, *words, cwd=repo)
    assert len(error["message"]) < 600, error
    assert cli.missions(repo) == []


def test_git_that_may_not_write_names_the_way_out(repo: Path) -> None:
    git = private_git(repo / ".git")
    with pytest.raises(GitError, match="Permission denied") as caught:
        git("config", "--file", "/sys/config", "a.b", "c")
    assert "writable" in caught.value.hint


def test_a_failed_backup_names_its_target_path(cli: Cli, repo: Path) -> None:
    assert cli.say("mission", "list", cwd=repo).code == 0
    error = cli.refused("backup_failed", 6, "store", "backup", "/proc/copy", cwd=repo)
    assert "/proc/copy" in error["message"]
    assert "state directory" not in error["message"]
