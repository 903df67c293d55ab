"""A worker counts as alive exactly as long as its process or one of its sandbox launchers lives."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from chargehand.durable.workers import LocalWorkers
from chargehand.store.store import open_store

HOLD = """
import sys
from pathlib import Path
from chargehand.durable.workers import LocalWorkers
member = LocalWorkers(Path(sys.argv[1]), version="1").join("worker")
print(member.id, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def workers(tmp_path: Path) -> LocalWorkers:
    return LocalWorkers(tmp_path, version="1")


def hold(home: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_worker_is_live_between_join_and_leave(workers: LocalWorkers) -> None:
    member = workers.join("command")
    assert workers.live(member.id)
    (seen,) = workers.members()
    assert (seen.id, seen.role, seen.pid, seen.version) == (member.id, "command", os.getpid(), "1")
    assert workers.sweep() == ()
    member.leave()
    member.leave()
    assert not workers.live(member.id)
    assert (workers.members(), workers.sweep()) == ((), ())
    with pytest.raises(ValueError, match=member.id):
        member.fileno()


def test_scratch_directories_are_removed_with_their_worker(tmp_path: Path, workers: LocalWorkers) -> None:
    member = workers.join("command")
    process, worker = hold(tmp_path)
    for each in (member.id, worker):
        (workers.scratch(each) / "deep").mkdir(parents=True)
    member.leave()
    assert not workers.scratch(member.id).exists()
    with process:
        assert workers.sweep() == ()
        process.kill()
        process.wait()
        assert workers.sweep() == (worker,)
    assert list(workers.directory.iterdir()) == []


def test_no_worker_is_live_before_the_first_join(workers: LocalWorkers) -> None:
    assert not workers.live("k-nobody")
    assert (workers.members(), workers.sweep()) == ((), ())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_is_dead_at_once_and_swept(tmp_path: Path, workers: LocalWorkers, how: int) -> None:
    process, worker = hold(tmp_path)
    with process:
        assert workers.live(worker)
        workers.socket(worker).touch()
        process.send_signal(how)
        process.wait()
        assert not workers.live(worker)
        assert workers.sweep() == (worker,)
        assert list(workers.directory.iterdir()) == []


def test_a_stopped_process_is_alive(tmp_path: Path, workers: LocalWorkers) -> None:
    process, worker = hold(tmp_path)
    with process:
        process.send_signal(signal.SIGSTOP)
        assert workers.live(worker)
        assert workers.sweep() == ()
        process.kill()


def test_whoever_has_the_descriptor_keeps_the_worker_alive(tmp_path: Path, workers: LocalWorkers) -> None:
    member = workers.join("worker")
    launcher = subprocess.Popen(["sleep", "60"], pass_fds=(member.fileno(),))
    with launcher:
        os.close(member.fileno())  # as the end of this process would, without removing the file
        assert workers.live(member.id)
        launcher.kill()
        launcher.wait()
        assert not workers.live(member.id)


def test_fresh_files_of_joining_workers_are_not_swept(workers: LocalWorkers) -> None:
    workers.directory.mkdir()
    fresh = workers.directory / ".new-k-1"
    fresh.touch()
    assert workers.sweep() == ()
    assert fresh.exists()
    os.utime(fresh, (0, 0))
    workers.sweep()
    assert not fresh.exists()


def test_a_worker_with_an_unreadable_lock_is_live_but_not_listed(workers: LocalWorkers) -> None:
    member = workers.join("worker")
    (workers.directory / f"{member.id}.lock").write_bytes(b"not JSON")
    assert workers.live(member.id)
    assert workers.members() == ()
    member.leave()


def test_a_state_directory_that_a_worker_makes_is_for_its_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "share" / "state"
    member = LocalWorkers(home, version="1").join("worker")
    made = [path for path in (home, home.parent, *home.rglob("*")) if path.is_dir()]
    member.leave()
    assert len(made) >= 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o700}
    with open_store(home) as store:
        assert store.log.takeable() == ()
