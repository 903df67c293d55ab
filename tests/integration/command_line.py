"""A person at the command line: the real program in a separate process, with a home and a state directory."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import forked
from tests.conftest import make_repository
from tests.used_state import used_state

from chargehand.app.composition import App
from chargehand.core.state import MissionState

FILES = {"f.txt": "aaa\n", "g.txt": "ggg\n", "sub/h.txt": "hhh\n"}
MEND = "command:sed -i s/a/b/ f.txt"
PASSES = ("--only-check", "true")


def shell(script: str) -> str:
    """Return the agent that runs a shell script; the script has no double quotes."""
    return f'command:sh -c "{script}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The result of one run of the program: its exit code, the document on stdout, the error on stderr."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        found: dict[str, Any] = json.loads(self.stdout)
        return found

    @property
    def error(self) -> dict[str, str]:
        """The one error object on stderr."""
        lines = self.stderr.splitlines()
        assert len(lines) == 1, self
        found: dict[str, str] = json.loads(lines[0])["error"]
        return found

    @property
    def reasons(self) -> set[str]:
        """The codes of the result's reasons."""
        return {reason["code"] for reason in self.document["reasons"]}


class Cli:
    """One state directory and one person's environment; a `fresh` one has not probed the machine yet."""

    def __init__(self, place: Path, *, fresh: bool = False, **environ: str) -> None:
        self.place = place
        self.home = place / "state" if fresh else used_state(place / "state")
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(place),
            "CHARGEHAND_HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            **environ,
        }

    def argv(self, *words: str) -> list[str]:
        """Return the command line of the real program."""
        return [sys.executable, "-m", "chargehand", *words]

    def start(self, *words: str, cwd: Path, environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start the program with `--json` and return its process."""
        return forked.ForkedPopen(
            self.argv("--json", *words),
            cwd=cwd,
            env={**self.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def say(
        self, *words: str, cwd: Path, environ: Mapping[str, str] | None = None, as_json: bool = True
    ) -> Completed:
        """Run the program to its end, with `--json` unless the output is for a person."""
        given = {**self.environ, **(environ or {})}
        code, stdout, stderr = forked.run((*(("--json",) if as_json else ()), *words), cwd=cwd, environ=given)
        return Completed(code=code, stdout=stdout, stderr=stderr)

    def run(self, repository: Path, *words: str, agent: str = MEND, text: str = "mend") -> Completed:
        """Run a mission in a repository."""
        return self.say("run", text, "--agent", agent, *PASSES, *words, cwd=repository)

    def refused(self, code: str, exit_code: int, *words: str, cwd: Path) -> dict[str, str]:
        """Run the program, which must end with this error and an empty stdout; return the error."""
        result = self.say(*words, cwd=cwd)
        assert (result.code, result.stdout) == (exit_code, ""), result
        assert result.error["code"] == code, result
        assert result.error["message"]
        assert result.error["hint"]
        return result.error

    def missions(self, repository: Path) -> list[MissionState]:
        """Return the missions of a repository."""
        with App.open(environ=self.environ, cwd=self.place) as app:
            return [state for state in app.mission_reader.all() if state.repository == str(repository)]

    def state(self, result: Completed) -> MissionState:
        """Return the state of the mission named in a run's result."""
        with App.open(environ=self.environ, cwd=self.place) as app:
            return app.mission_reader.state(result.document["mission"])


def finish(process: subprocess.Popen[str]) -> Completed:
    """Wait for a started program and return its result."""
    with process:
        stdout, stderr = process.communicate()
    return Completed(code=process.returncode, stdout=stdout, stderr=stderr)


def repository(place: Path, files: Mapping[str, str] | None = None) -> Path:
    """Make a small repository."""
    return make_repository(place, FILES if files is None else files)


@contextmanager
def untouched(*roots: Path) -> Iterator[None]:
    """Assert that the block changes nothing below the roots except objects and exported branches."""
    before = [snapshot(root) for root in roots]
    yield
    assert [snapshot(root) for root in roots] == before


def snapshot(root: Path) -> dict[bytes, tuple[int, int, str]]:
    """Return mode, owner and content of everything below a directory, for a repository of any shape."""
    found = {}
    for place, directories, files in os.walk(os.fsencode(root)):
        if os.path.basename(place) == b"objects":
            directories.clear()
            continue
        if place.endswith(b"refs/heads") and b"chargehand" in directories:
            directories.remove(b"chargehand")
        if b"notes" in directories and place.endswith((b"/refs", b"/logs/refs")):
            directories.remove(b"notes")
        for name in (*directories, *files):
            path = os.path.join(place, name)
            info = os.lstat(path)
            found[path] = (info.st_mode, info.st_uid, _content(path))
    return found


def _content(path: bytes) -> str:
    if os.path.islink(path):
        return os.fsdecode(os.readlink(path))
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
