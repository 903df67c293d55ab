"""Sources of keys on this machine: mounted files, and a command of the user."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from chargehand.credentials._setup import LARGEST_ANSWER, KeyPlace, KeySetup, pick_field

_MOUNTED = "/run/secrets"


class MountedFiles:
    """One file per secret, as Docker and Kubernetes mount them. Links are followed: Kubernetes mounts links."""

    def __init__(self, setup: KeySetup) -> None:
        self._setup = setup
        self._directory = Path(setup.config.path or _MOUNTED)

    def get(self, name: str) -> str | None:
        """Return the content of the file of that name."""
        return self.find(KeyPlace(name))

    def find(self, place: KeyPlace) -> str | None:
        """Return the content of a file; see `LocatedKeys`."""
        path = self._directory / (place.path or place.name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            raise self._setup.deny(f"may not read {str(path)!r}", "give your user the right to read it") from None
        except OSError as error:
            raise self._setup.fail(f"cannot read {str(path)!r}: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise self._setup.misconfigured(f"has no regular file at {str(path)!r}")
            if found.st_mode & 0o022:
                raise self._setup.misconfigured(f"can be changed by others: {str(path)!r}", "chmod go-w that file")
            try:
                content = file.read(LARGEST_ANSWER + 1)
            except OSError as error:
                raise self._setup.fail(f"cannot read {str(path)!r}: {error.strerror}") from None
        return pick_field(self._setup, place, _as_text(self._setup, place, content))


class CommandKeys:
    """A program of the user that prints a secret. Its error output is never read: it may contain the value."""

    is_cached = True

    def __init__(self, setup: KeySetup) -> None:
        self._setup = setup

    def get(self, name: str) -> str | None:
        """Return the output of the program for a name."""
        return self.find(KeyPlace(name))

    def find(self, place: KeyPlace) -> str | None:
        """Return the output of the program, `None` if it is empty; see `LocatedKeys`."""
        named = {"{name}": place.name, "{path}": place.path, "{field}": place.field}
        words = list(self._setup.config.command)
        for mark, text in named.items():
            words = [word.replace(mark, text) for word in words]
        try:
            # A new session, so that the time limit also ends its children.
            program = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=dict(self._setup.environ),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise self._setup.misconfigured(f"cannot start {words[0]!r}: {error.strerror}") from None
        try:
            content = self._read(program)
        finally:
            if program.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(program.pid, signal.SIGKILL)
                program.wait()
        if program.returncode != 0:
            hint = f"run it by hand, since its error output is not shown: {words[0]} …"
            raise self._setup.fail(f"ended with exit code {program.returncode}", hint)
        text = _as_text(self._setup, place, content)
        # A program that was given the field prints it alone.
        if any("{field}" in word for word in self._setup.config.command):
            place = place._replace(field="")
        return pick_field(self._setup, place, text) if text.strip() else None

    def _read(self, program: subprocess.Popen[bytes]) -> bytes:
        """Read all output and wait for the end of the program."""
        assert program.stdout is not None
        seconds = self._setup.config.timeout
        deadline = time.monotonic() + seconds
        content = bytearray()
        with program.stdout as output:
            waiting = select.poll()  # select(2) refuses descriptors above 1023
            waiting.register(output, select.POLLIN)
            while waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
                piece = os.read(output.fileno(), 65_536)
                content += piece
                if len(content) > LARGEST_ANSWER:
                    raise self._setup.misconfigured(f"printed more than {LARGEST_ANSWER // 1024} kB")
                if not piece:
                    with suppress(subprocess.TimeoutExpired):
                        program.wait(max(0.0, deadline - time.monotonic()))
                        return bytes(content)
                    break
        raise self._setup.fail(f"did not end within {seconds:g} s")


def _as_text(setup: KeySetup, place: KeyPlace, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        # Not chained: the error contains the bytes.
        raise setup.misconfigured(f"has a value for {place.name} that is not UTF-8") from None
