"""Slots that all processes share: a fixed number at once, in order, whichever process is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chargehand.durable.admission import ConcurrencyLimit, Ticket

HOLD = """
import asyncio, sys
from pathlib import Path
from chargehand.durable.admission import ConcurrencyLimit

async def main():
    directory, places, log, seconds = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
    def say(word):
        with open(log, "a") as file:
            file.write(word + "\\n")
    async with ConcurrencyLimit(directory, places=places).place(on_wait=lambda before: say("wait")):
        say("in")
        while seconds < 0 and not Path(log + ".go").exists():
            await asyncio.sleep(0.01)
        await asyncio.sleep(max(0.0, seconds))
        say("out")

asyncio.run(main())
"""


@contextlib.contextmanager
def others(tmp_path: Path, count: int, *, places: int, seconds: float) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Let processes take turns; they log their steps to `log`.

    Each holds its slot for `seconds`, or until `log.go` exists if negative.
    """
    words = [sys.executable, "-c", HOLD, str(tmp_path / "slots"), str(places), str(tmp_path / "log"), str(seconds)]
    started = [subprocess.Popen(words) for _ in range(count)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def told(tmp_path: Path) -> list[str]:
    log = tmp_path / "log"
    return log.read_text().split() if log.exists() else []


def until(condition: object, seconds: float = 120.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not come"
        time.sleep(0.02)


def test_processes_never_exceed_the_places_and_all_are_served(tmp_path: Path) -> None:
    with others(tmp_path, 6, places=2, seconds=-1) as processes:
        # A process that came while another one was about to enter also waits a moment.
        until(lambda: told(tmp_path).count("in") == 2 and told(tmp_path).count("wait") >= 4)
        (tmp_path / "log.go").touch()
        assert [process.wait(120) for process in processes] == [0] * 6
    assert 4 <= told(tmp_path).count("wait") <= 6
    words, inside = [word for word in told(tmp_path) if word != "wait"], 0
    for word in words:
        inside += 1 if word == "in" else -1
        assert inside <= 2, words
    assert words.count("in") == words.count("out") == 6


def test_places_and_tickets_of_killed_processes_are_released(tmp_path: Path) -> None:
    with others(tmp_path, 1, places=1, seconds=60) as (holder,):
        until(lambda: told(tmp_path) == ["in"])
        with others(tmp_path, 1, places=1, seconds=60) as (waiter,):
            until(lambda: told(tmp_path)[-1] == "wait")
            waiter.send_signal(signal.SIGKILL)
            waiter.wait()
            assert list((tmp_path / "slots").glob("*.wait")), "a kill removes no file"
        with others(tmp_path, 1, places=1, seconds=0) as (last,):
            until(lambda: told(tmp_path).count("wait") == 2)
            holder.send_signal(signal.SIGKILL)
            assert last.wait(120) == 0
    assert not list((tmp_path / "slots").glob("*.wait"))


def test_a_stopped_waiter_is_passed_over_and_keeps_its_turn(tmp_path: Path) -> None:
    stopped, second = Ticket(tmp_path, urgent=True), Ticket(tmp_path, urgent=False)
    assert second.before() == 1
    assert stopped._fd is not None
    os.utime(stopped._fd, times=(time.time() - 6,) * 2)  # as if it had not looked for six seconds
    held = second.take(1)
    assert held is not None
    second.leave()
    third = Ticket(tmp_path, urgent=True)
    assert stopped.take(1) is None
    assert third.before() == 1
    os.close(held)
    assert third.take(1) is None
    again = stopped.take(1)
    assert again is not None
    os.close(again)
    stopped.leave()
    third.leave()
    with pytest.raises(ValueError, match="handed in"):
        third.take(1)


def test_stale_temporary_tickets_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / ".new-1-0-a", tmp_path / ".new-1-0-b"
    for path in (old, new):
        path.touch()
    os.utime(old, times=(time.time() - 61,) * 2)
    ticket = Ticket(tmp_path, urgent=False)
    assert ticket.before() == 0
    assert (old.exists(), new.exists()) == (False, True)
    ticket.leave()


class Pausing:
    """A gate like a mission's control."""

    def __init__(self) -> None:
        self._open = asyncio.Event()

    @property
    def paused(self) -> bool:
        return not self._open.is_set()

    async def may_go_on(self) -> None:
        await self._open.wait()

    def resume(self) -> None:
        self._open.set()


async def test_a_paused_waiter_lets_others_pass_and_a_cancelled_waiter_is_removed(tmp_path: Path) -> None:
    slots, gate, served = ConcurrencyLimit(tmp_path, places=1), Pausing(), []

    async def take(name: str, gate: Pausing | None = None, seconds: float = 0.0, urgent: bool = False) -> None:
        async with slots.place(gate=gate, urgent=urgent):
            served.append(name)
            await asyncio.sleep(seconds)

    first = asyncio.create_task(take("paused", gate, urgent=True))
    await asyncio.sleep(0)
    await take("other")
    assert served == ["other"]
    gate.resume()
    await first
    holder = asyncio.create_task(take("holder", seconds=60))
    waiter = asyncio.create_task(take("waiter"))
    while served[-1] != "holder" or not list(tmp_path.glob("*.wait")):
        await asyncio.sleep(0.001)
    for task in (waiter, holder):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await asyncio.wait_for(take("last"), 60)
    assert served == ["other", "paused", "holder", "last"]
    assert not list(tmp_path.glob("*.wait"))


async def test_a_place_that_is_lent_is_taken_again_at_the_end_of_the_line(tmp_path: Path) -> None:
    limit = ConcurrencyLimit(tmp_path, places=1)
    mine, other, late = limit.new_place(), limit.new_place(), limit.new_place()
    assert mine.take_now()
    assert not other.take_now()
    mine.give_up()
    assert other.take_now()
    again = asyncio.create_task(mine.take())
    await asyncio.sleep(0)
    assert not late.take_now(), "somebody waits for it"
    other.give_up()
    await asyncio.wait_for(again, 10)
    assert not late.take_now()
    waits = asyncio.create_task(other.take())
    await asyncio.sleep(0)
    other.leave()
    await asyncio.wait_for(waits, 10)
    mine.leave()
    await mine.take()
    assert late.take_now(), "who left takes nothing any more"
    late.leave()
    assert not list(tmp_path.glob("*.wait"))


async def test_the_urgent_come_first_and_the_rest_in_order(tmp_path: Path) -> None:
    slots, served, told = ConcurrencyLimit(tmp_path, places=1), [], []
    free = asyncio.Event()

    async def take(name: str, urgent: bool) -> None:
        async with slots.place(urgent=urgent, on_wait=lambda before: told.append((name, before))):
            served.append(name)
            await free.wait()

    tasks = []
    for name, urgent in (("a", False), ("b", False), ("c", True), ("d", False), ("e", True)):
        tasks.append(asyncio.create_task(take(name, urgent)))
        await asyncio.sleep(0.001)
    assert served == ["a"]
    assert told == [("b", 0), ("c", 0), ("d", 2), ("e", 1)]
    free.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert served == ["a", "c", "e", "b", "d"]


@pytest.mark.alone
def test_waiting_uses_little_cpu_time(tmp_path: Path) -> None:
    with others(tmp_path, 1, places=1, seconds=60):
        until(lambda: told(tmp_path) == ["in"])

        async def wait() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2), ConcurrencyLimit(tmp_path / "slots", places=1).place():
                    raise AssertionError("there is no place")

        begun = time.process_time()
        asyncio.run(wait())
        assert time.process_time() - begun < 0.1
