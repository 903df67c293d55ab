"""A recorded step runs once; its output and events are written together, and only by the mission's holder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chargehand.core.clock import SteppedClock
from chargehand.core.errors import FencedError
from chargehand.core.mission_events import MessageSent, MissionCreated, StepFinished
from chargehand.core.records import MissionRequest
from chargehand.missions.journal import Journal
from chargehand.store.store import Store, open_store

CREATED = MissionCreated(
    project="p", repository="/r", request=MissionRequest(text="x", agent="a", command=("x",), slug="x")
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path) as opened:
        opened.log.append("m-1", CREATED)
        yield opened


class Work:
    """Counts its calls."""

    def __init__(self, output: object = 1) -> None:
        self.output = output
        self.times = 0

    async def __call__(self) -> Any:
        self.times += 1
        return self.output


def journal(store: Store, epoch: int | None = None) -> Journal:
    return Journal(store, "m-1", clock=SteppedClock(), epoch=epoch)


async def test_a_step_is_done_once_also_by_the_next_process(store: Store) -> None:
    work = Work({"tree": "abc"})
    first = journal(store)
    assert await first.step("s", [1], work) == {"tree": "abc"}
    assert await first.step("s", [1], work) == {"tree": "abc"}
    assert await journal(store).step("s", [1], work) == {"tree": "abc"}
    assert work.times == 1


async def test_another_input_is_another_step(store: Store) -> None:
    work = Work()
    for given in (1, 2, 2, 1):
        await journal(store).step("s", given, work)
    assert work.times == 3


async def test_a_step_that_failed_is_done_again(store: Store) -> None:
    async def failing() -> object:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await journal(store).step("s", 1, failing)
    work = Work()
    await journal(store).step("s", 1, work)
    assert work.times == 1


async def test_time_of_substeps_recorded_by_a_previous_process_is_counted(store: Store) -> None:
    async def outer(clock: SteppedClock, *, breaks: bool) -> object:
        here = Journal(store, "m-1", clock=clock)

        async def inner() -> object:
            clock.advance(30)
            return 1

        async def whole() -> object:
            await here.step("s/1", 1, inner)
            clock.advance(5)
            if breaks:
                raise OSError("killed")
            return 2

        await here.step("s", 1, whole)
        return here.state.seconds_of()

    with pytest.raises(OSError, match="killed"):
        await outer(SteppedClock(), breaks=True)
    assert await outer(SteppedClock(), breaks=False) == 35.0
    assert await outer(SteppedClock(), breaks=False) == 35.0


@pytest.mark.parametrize(("size", "kept"), [(8190, True), (8191, False), (1_000_000, False)])
async def test_a_step_output_over_8_kb_is_stored_outside_the_log(store: Store, size: int, kept: bool) -> None:
    output = "x" * size  # plus two quotes
    assert await journal(store).step("s", 1, Work(output)) == output
    (line,) = (line for line in store.log.read("m-1") if line.type == StepFinished.type)
    assert line.payload is not None
    assert (len(line.payload) > 8192) == kept
    work = Work()
    assert await journal(store).step("s", 1, work) == output
    assert work.times == 0


async def test_a_name_that_is_not_utf8_is_no_error(store: Store) -> None:
    await journal(store).step("s", ["a\udcff"], Work({"path": "b\udcff"}))
    assert await journal(store).step("s", ["a\udcff"], Work()) == {"path": "b\\xff"}


async def test_the_events_of_a_step_come_with_its_end_or_not_at_all(store: Store) -> None:
    epoch = store.log.claim("m-1", owner="k-1", epoch=0)
    held = journal(store, epoch)

    async def overtaken() -> object:
        store.log.claim("m-1", owner="k-2", epoch=epoch)
        return 1

    def told(output: object) -> tuple[MessageSent, ...]:
        return (MessageSent(identity="me", text=str(output)),)

    with pytest.raises(FencedError, match="m-1"):
        await held.step("s", 1, overtaken, events=told)
    assert [line.type for line in store.log.read("m-1")] == [MissionCreated.type]
    await journal(store, epoch + 1).step("s", 1, Work(7), events=told)
    assert [line.type for line in store.log.read("m-1")][1:] == [MessageSent.type, StepFinished.type]
