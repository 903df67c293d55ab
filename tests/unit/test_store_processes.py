"""Several real processes on one state directory: in parallel, and killed in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chargehand.store.audit import verify
from chargehand.store.store import open_store

# One interpreter forks the workers, so that start-up is paid only once; each worker opens the store itself.
HARNESS = """
import os, signal, sys
from pathlib import Path
from chargehand.core.mission_events import MissionCreated, StepFinished
from chargehand.core.records import MissionRequest
from chargehand.store.store import open_store
from chargehand.store.audit import verify

home = Path(sys.argv[1])
request = MissionRequest(text="x", agent="a", command=(), slug="x")
created = MissionCreated(project="p", repository="/r", request=request)

def step(name, size=300):
    return StepFinished(step=name, input="i", output="o" * size, seconds=1.0)

def worker(work, *arguments):
    child = os.fork()
    if child:
        return child
    try:
        work(*arguments)
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)

def done(children):
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""


def run(script: str, home: Path) -> str:
    # The runs share bytecode, whatever this environment says: start-up is most of their cost.
    shared = home.parent.parent / "bytecode"
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(shared)}
    ran = subprocess.run(
        [sys.executable, "-c", HARNESS + script, home],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_processes_append_to_the_same_and_to_different_missions(home: Path) -> None:
    script = """
def work(number):
    with open_store(home) as store:
        store.log.append(f"m-{number}", created)
        for turn in range(25):
            pair = step(f"{number}/{turn}/0"), step(f"{number}/{turn}/1")
            store.log.append("m-shared", *pair, durable=turn % 9 == 0)
            store.log.append(f"m-{number}", step(str(turn)))

with open_store(home) as store:
    store.log.append("m-shared", created)
done([worker(work, number) for number in range(4)])
"""
    run(script, home)
    with open_store(home) as store:
        report = verify(store)
        assert (report.problems, report.missions, report.events) == ((), 5, 4 * 26 + 4 * 50 + 1)
        lines = store.log.read("m-shared")[1:]
    steps = [json.loads(line.payload or b"")["step"] for line in lines]
    assert all(first[:-1] == second[:-1] for first, second in zip(steps[::2], steps[1::2], strict=True)), (
        "torn batch"
    )
    for number in range(4):
        own = [name for name in steps if name.startswith(f"{number}/")]
        assert own == [f"{number}/{turn}/{part}" for turn in range(25) for part in (0, 1)]


def test_processes_open_a_new_directory_at_once(home: Path) -> None:
    script = """
def work(number):
    os.read(gate, 1)
    with open_store(home) as store:
        store.log.append(f"m-{number}", created)

gate, opener = os.pipe()
children = [worker(work, number) for number in range(4)]
os.write(opener, b"1234")
done(children)
"""
    run(script, home)
    with open_store(home) as store:
        assert {row.id for row in store.log.missions()} == {f"m-{number}" for number in range(4)}
        assert verify(store).ok


def test_readers_see_whole_batches_while_a_writer_writes(home: Path) -> None:
    script = """
def write():
    with open_store(home) as store:
        for turn in range(60):
            store.log.append("m-1", *(step(str(turn)) for _ in range(5)), durable=turn % 20 == 0)

def follow():
    with open_store(home, read_only=True) as store:
        seen = 1
        while seen < 301:
            lines = store.log.read("m-1", after=seen)
            assert len(lines) % 5 == 0, len(lines)
            assert [line.seq for line in lines] == list(range(seen + 1, seen + 1 + len(lines)))
            report = verify(store, "m-1")
            assert report.ok, report
            seen += len(lines)

with open_store(home) as store:
    store.log.append("m-1", created)
done([worker(write), worker(follow), worker(follow)])
"""
    run(script, home)


def test_a_killed_writer_leaves_a_valid_chain_with_all_acknowledged_events(home: Path) -> None:
    script = """
def work(reply):
    with open_store(home) as store:
        while True:
            durable = store.log.get("m-1").last_seq % 7 == 1
            lines = store.log.append("m-1", step("s", 3000), step("s", 10), durable=durable)
            store.artifacts.put(os.urandom(6000) * 2, kind="output", mission="m-1", durable=True)
            os.write(reply, f"{lines[-1].seq} {lines[-1].hash}\\n".encode())

with open_store(home) as store:
    store.log.append("m-1", created)
for kills in range(12):
    told, reply = os.pipe()
    child = worker(work, reply)
    os.close(reply)
    with os.fdopen(told) as replies:
        heard = [replies.readline() for _ in range(1 + kills % 4)]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        heard += [line for line in replies if line.endswith("\\n")]
    with open_store(home) as store:
        report = verify(store)
        assert report.ok, report
        lines = {line.seq: line.hash for line in store.log.read("m-1")}
        assert len(lines) % 2 == 1
        for line in heard:
            seq, hash = line.split()
            assert lines[int(seq)] == hash
        for row in store.artifacts.list():
            assert len(store.artifacts.get(row.id)) == 12000
print("all heard")
"""
    assert run(script, home) == "all heard\n"


def test_a_killed_process_releases_the_write_lock_and_is_rolled_back(home: Path) -> None:
    script = """
def work(reply):
    store = open_store(home)
    with store.database.write() as connection:
        connection.execute("UPDATE missions SET project = 'half'")
        os.write(reply, b"held")
        signal.pause()

with open_store(home) as store:
    store.log.append("m-1", created)
told, reply = os.pipe()
child = worker(work, reply)
assert os.read(told, 4) == b"held"
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
with open_store(home) as store:
    store.log.append("m-1", step("after"))
    assert store.log.get("m-1").project == "p"
"""
    run(script, home)


def test_a_backup_during_concurrent_writes_verifies(home: Path, tmp_path: Path) -> None:
    script = """
def write():
    with open_store(home) as store:
        for turn in range(80):
            name = store.artifacts.put(b"%d " % turn * 3000, kind="output", mission="m-1")
            store.log.append("m-1", step(name), durable=turn % 3 == 0)

with open_store(home) as store:
    store.log.append("m-1", created)
    child = worker(write)
    for number in range(4):
        store.backup(home.parent / f"copy-{number}")
    done([child])
"""
    run(script, home)
    for number in range(4):
        with open_store(tmp_path / f"copy-{number}") as copy:
            assert verify(copy).ok
            for row in copy.artifacts.list():
                assert copy.artifacts.get(row.id)
            for line in copy.log.read("m-1", after=1):
                payload = json.loads(line.payload or b"")
                assert copy.artifacts.get(payload["step"])
