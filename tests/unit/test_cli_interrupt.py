"""Ctrl-C while an event loop is being made ends the work, and leaves nothing that the interpreter complains of."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import NoReturn

import pytest

from chargehand.cli.terminal.interrupt import Stop, run_async


class KeyPressed(asyncio.DefaultEventLoopPolicy):
    """Somebody presses Ctrl-C in the midst of making a loop."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        os.kill(os.getpid(), signal.SIGINT)
        return super().new_event_loop()


@pytest.fixture
def pressed() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    asyncio.set_event_loop_policy(KeyPressed())
    yield
    asyncio.set_event_loop_policy(None)
    assert signal.signal(signal.SIGINT, before) is interrupt


@pytest.mark.usefixtures("pressed")
def test_ctrl_c_as_a_loop_is_made_is_met_once_it_is_whole() -> None:
    begun = []

    async def work(stop: Stop) -> None:
        begun.append(stop)

    with pytest.raises(KeyboardInterrupt):
        run_async(work)
    assert begun == []
