"""Runs ahead of their turn: used only for exactly their purpose, otherwise stopped and forgotten."""

from __future__ import annotations

import asyncio

from chargehand.checks.reads import ReadObserver
from chargehand.core.errors import InfrastructureError
from chargehand.missions.verdict.ahead import OwnRun, RunKey, RunsAhead

DONE = OwnRun(checks=(), observer=ReadObserver(()), outputs={})


def key(tree: str, base: str = "base", checks: str = "digest") -> RunKey:
    return RunKey(base=base, tree=tree, layer=None, checks=checks)


async def run() -> OwnRun:
    await asyncio.sleep(0)
    return DONE


async def hang() -> OwnRun:
    await asyncio.Event().wait()
    return DONE


async def fail() -> OwnRun:
    raise InfrastructureError("the sandbox died", code="sandbox_died")


async def test_a_run_is_taken_once_and_for_its_tree_base_and_checks_alone() -> None:
    runs = RunsAhead()
    runs.begin(key("a"), run())
    assert await runs.take(key("b")) is None
    assert await runs.take(key("a", base="another")) is None
    assert await runs.take(key("a", checks="others")) is None
    assert await runs.take(key("a")) is DONE
    assert await runs.take(key("a")) is None


async def test_a_failed_or_stopped_run_ahead_has_no_result() -> None:
    runs = RunsAhead()
    runs.begin(key("a"), fail())
    assert await runs.take(key("a")) is None
    runs.begin(key("a"), hang())
    runs.begin(key("b"), run())
    runs.begin(key("b"), hang())
    await asyncio.sleep(0)
    await runs.stop(but="b")
    assert await runs.take(key("a")) is None
    assert await runs.take(key("b")) is DONE, "one that is known goes on"
    runs.begin(key("c"), hang())
    await asyncio.sleep(0)
    await runs.stop()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_a_run_that_still_waits_for_a_place_is_not_waited_for() -> None:
    runs, begun = RunsAhead(), asyncio.Event()
    runs.begin(key("a"), hang(), begun)
    assert await runs.take(key("a")) is None
    begun.set()
    runs.begin(key("b"), run(), begun)
    assert await runs.take(key("b")) is DONE
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
