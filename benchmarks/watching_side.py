"""Watch one directory in a separate process, the product's way or a peer's: `watching_side.py KIND PLACE`.

For a peer it needs only the standard library, so that any environment's interpreter can run it. It prints
`watching`, waits for a line on stdin, and prints one JSON document: when each path's event was ready (nanoseconds
of the monotonic clock), the reported gaps, processor seconds and memory while it watched.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Seen = dict[str, int]
"""The last part of a path, and when its first event was ready."""
Gaps = list[str]


def main() -> None:
    """Watch until a line arrives on stdin."""
    kind, place = sys.argv[1:]
    seen: Seen = {}
    gaps: Gaps = []
    watching = {"watcher": _ours, "watchfiles": _watchfiles, "inotifywait": _inotifywait}[kind]
    with watching(json.loads(place), seen, gaps) as (held, finish):
        cpu = _processor()
        print("watching", flush=True)
        sys.stdin.readline()
        finish()
        spent = _processor() - cpu
        memory = _held() - held
    if kind == "inotifywait":
        spent += resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        spent += resource.getrusage(resource.RUSAGE_CHILDREN).ru_stime
    json.dump({"seen": seen, "gaps": gaps, "cpu": spent, "memory": memory}, sys.stdout)


def _note(seen: Seen, path: str, now: int) -> None:
    seen.setdefault(path.rpartition("/")[2], now)


@contextmanager
def _ours(place: dict[str, str], seen: Seen, gaps: Gaps) -> Iterator[tuple[int, Callable[[], None]]]:
    from chargehand.workspace.depot import Depot
    from chargehand.workspace.file_events import FileEvent
    from chargehand.workspace.watch import Watcher
    from chargehand.workspace.workspace import Workspace

    depot = Depot.open(Path(place["depot"]), repository=Path(place["repository"]))
    workspace = Workspace.load(depot, place["workspace"])
    ready, ended = threading.Event(), threading.Event()
    held = _held()
    with Watcher.open(depot, workspace, on_ready=ready.set) as watcher:

        def take() -> None:
            while not ended.is_set():
                ready.wait()
                ready.clear()
                taken()

        def taken() -> None:
            batch, now = watcher.take(), time.monotonic_ns()
            for event in batch.events:
                if isinstance(event, FileEvent):
                    _note(seen, event.path, now)
                else:
                    gaps.append(event.reason)

        def finish() -> None:
            deadline = time.monotonic() + 30
            while not watcher.sync(seconds=5.0) and watcher.alive and time.monotonic() < deadline:
                ready.set()
            ended.set()
            ready.set()
            thread.join()
            taken()

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield held, finish


@contextmanager
def _watchfiles(place: dict[str, str], seen: Seen, gaps: Gaps) -> Iterator[tuple[int, Callable[[], None]]]:
    from watchfiles import watch  # from the environment that runs this

    stop, held = threading.Event(), _held()

    def read() -> None:
        # `step` is how long it waits for more: its default of 50 ms would dominate the measurement.
        for changes in watch(place["root"], watch_filter=None, step=5, debounce=50, stop_event=stop):
            now = time.monotonic_ns()
            for _, path in changes:
                _note(seen, path, now)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    _until_heard(place["root"], seen)

    def finish() -> None:
        time.sleep(1)
        stop.set()
        thread.join()

    yield held, finish


@contextmanager
def _inotifywait(place: dict[str, str], seen: Seen, gaps: Gaps) -> Iterator[tuple[int, Callable[[], None]]]:
    held = _held()
    argv = ["inotifywait", "--monitor", "--recursive", "--quiet", "--format", "%w%f", place["root"]]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        lines = process.stdout
        assert lines is not None

        def read() -> None:
            for line in lines:
                _note(seen, line.rstrip("\n"), time.monotonic_ns())

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        _until_heard(place["root"], seen)

        def finish() -> None:
            time.sleep(1)
            process.terminate()
            process.wait()
            thread.join()

        yield held, finish


def _until_heard(root: str, seen: Seen) -> None:
    """Write until a write is reported: a peer does not announce when it starts to watch."""
    probe = Path(root, "probe")
    while "probe" not in seen:
        probe.write_text("")
        time.sleep(0.1)
    probe.unlink()


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _held() -> int:
    """Return the private bytes of this process."""
    lines = Path(f"/proc/{os.getpid()}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


if __name__ == "__main__":
    main()
