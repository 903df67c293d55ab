"""A client killed while it creates a container leaves nothing, even if the engine does not know the container."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from chargehand.sandbox.container import guard

# Podman's monitor has the name of its container in its arguments, and the container's first process as a child.
MONITOR = "sleep 300 & echo $!; wait"
NOBODY = ("true",)  # an engine that does not know any container


@pytest.fixture
def monitored() -> Iterator[tuple[str, subprocess.Popen[str], int]]:
    """A container of a dead owner: its name, its monitor and its first process."""
    name = f"{guard.PREFIX}{2**22 + os.getpid()}-7-s-1"
    words = ["conmon", "-c", MONITOR, "sh", "-u", "id", "-n", name, "--exit-dir", "/run"]
    with subprocess.Popen(words, executable="/bin/sh", stdout=subprocess.PIPE, text=True) as monitor:
        assert monitor.stdout is not None
        first = int(monitor.stdout.readline())
        try:
            yield name, monitor, first
        finally:
            monitor.kill()


def is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # also between opening and reading
        return True


def test_a_container_that_its_engine_does_not_know_is_found_and_ended(
    monitored: tuple[str, subprocess.Popen[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_LEAVE_SECONDS", 0.1)
    name, monitor, first = monitored
    assert guard.container_names(NOBODY, guard.owner_prefix()) == []
    assert guard.container_names(NOBODY, name[:-1]) == [name]
    guard.remove(NOBODY, name[:-1])  # the name of another container
    assert not is_gone(first)
    guard.sweep(NOBODY)
    monitor.wait(60)
    limit = time.monotonic() + 60
    while not is_gone(first) and time.monotonic() < limit:  # it was killed, but the kernel takes its time
        time.sleep(0.01)
    assert is_gone(first)
    assert guard.container_names(NOBODY, name) == []
