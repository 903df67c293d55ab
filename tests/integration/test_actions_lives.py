"""How an action ends: by itself, by its time limit, by cancellation or with its owner; how actions queue."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.conftest import git
from tests.integration.actions_kit import ActionsKit
from tests.integration.command_line import Cli, finish
from tests.unit.test_keeper import STUBBORN, alive, gone

from chargehand.app.actions import Actions
from chargehand.core.actions import ActionState

LIMIT = 300.0


@pytest.fixture
def kit(tmp_path: Path) -> ActionsKit:
    return ActionsKit(tmp_path)


@pytest.fixture
def hanging(kit: ActionsKit, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a remote whose ssh never ends, ignores SIGTERM and has grandchildren; return their pid directory."""
    pids = kit.place / "pids"
    pids.mkdir()
    program = kit.place / "ssh.py"
    program.write_text(STUBBORN.replace("{then}", "time.sleep(600)"))
    monkeypatch.setenv("GIT_SSH_COMMAND", f"{sys.executable} {program} {pids} #")
    git(kit.repository, "remote", "add", "hangs", "ssh://localhost/x")
    return pids


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


def test_when_its_time_is_up_the_whole_tree_ends(kit: ActionsKit, hanging: Path) -> None:
    state = kit.act("fetch", remote="hangs", seconds=2.0)
    assert (state.status, [reason.code for reason in state.reasons]) == ("timed_out", ["action_time"])
    assert not alive(hanging)


def test_actions_over_the_concurrency_limit_are_queued_with_a_reason(kit: ActionsKit, hanging: Path) -> None:
    file = kit.place / ".config/chargehand/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[actions]\ngit_at_once = 1\n")

    async def work() -> tuple[ActionState, ActionState, list[str]]:
        with kit.opened() as app:
            actions = Actions(app)
            first, second = (kit.made(app, "fetch", remote=name, seconds=600.0) for name in ("hangs", "origin"))
            running = asyncio.create_task(actions.run(first))
            while len(os.listdir(hanging)) < 6:
                await asyncio.sleep(0.02)
            waiting = asyncio.create_task(actions.run(second))
            while not actions.state(second.action).reasons:
                await asyncio.sleep(0.02)
            queued = actions.state(second.action)
            cancelled = actions.cancel(first.action)
            assert cancelled.status in ("running", "cancelled")
            told = [queued.status, *(reason.code for reason in queued.reasons)]
            return await running, await waiting, told

    first, second, told = asyncio.run(work())
    assert told == ["queued", "queued"]
    assert (first.status, second.status) == ("cancelled", "done")
    assert not alive(hanging)


def test_a_queued_action_can_be_cancelled(kit: ActionsKit) -> None:
    with kit.opened() as app:
        actions = Actions(app)
        held = kit.made(app, "fetch", remote="origin")
        actions.places.ask_cancel(held.action)
        state = asyncio.run(actions.run(held))
    assert state.status == "cancelled"


def test_detached_followed_and_lost_with_its_owner(kit: ActionsKit, hanging: Path) -> None:
    cli = Cli(kit.place, GIT_SSH_COMMAND=os.environ["GIT_SSH_COMMAND"])
    started = cli.say("git", "fetch", "hangs", "--detach", "--time", "10m", cwd=kit.repository)
    assert (started.code, started.document["status"]) == (0, "queued"), started
    action = started.document["action"]
    with kit.opened() as app:
        actions = Actions(app)
        until(lambda: len(os.listdir(hanging)) == 6)
        state = actions.state(action)
        assert (state.status, state.detached) == ("running", True)
        (began,) = (
            msgspec.json.decode(line.payload or b"")
            for line in app.store.log.read(state.project, types=("action.began",))
        )
        os.kill(began["pid"], signal.SIGKILL)
        until(lambda: actions.state(action).status != "running")
        lost = actions.state(action)
        assert (lost.status, [reason.code for reason in lost.reasons]) == ("lost", ["action_lost"])
        assert actions.cancel(action).status == "lost"
    assert gone(hanging), "what it ran ends with it"


def test_cancelled_from_another_process(kit: ActionsKit, hanging: Path) -> None:
    with kit.opened() as app:
        actions = Actions(app)
        held = kit.made(app, "fetch", remote="hangs", seconds=600.0)
        action = held.action
        process = actions.start(held)
        until(lambda: len(os.listdir(hanging)) == 6)
        actions.cancel(action)
        assert process.wait() == 1
        assert actions.state(action).status == "cancelled"
    assert not alive(hanging)


def test_ctrl_c_cancels_an_action(kit: ActionsKit, hanging: Path) -> None:
    cli = Cli(kit.place, GIT_SSH_COMMAND=os.environ["GIT_SSH_COMMAND"])
    process = cli.start("git", "fetch", "hangs", "--time", "10m", cwd=kit.repository)
    until(lambda: len(os.listdir(hanging)) == 6)
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert (result.code, '"interrupted"' in result.stderr) == (130, True), result
    with kit.opened() as app:
        assert [state.status for state in Actions(app).all()] == ["cancelled"]
    assert not alive(hanging)


@pytest.mark.needs_bwrap
def test_a_detached_command_runs_in_a_sandbox_and_its_log_can_be_followed(kit: ActionsKit) -> None:
    cli = Cli(kit.place)
    script = "cat f.txt; echo err >&2; exit 5"
    started = cli.say("exec", "--detach", "--", "sh", "-c", script, cwd=kit.repository)
    assert started.code == 0, started
    action = started.document["action"]
    followed = cli.say("action", "log", action, "--follow", cwd=kit.place)
    *lines, end = [msgspec.json.decode(line) for line in followed.stdout.splitlines()]
    assert sorted((line["stream"], line["line"]) for line in lines) == [
        ("stderr", "err"),
        *(("stdout", line) for line in ("one", "three", "two")),
    ]
    assert (followed.code, end["status"], end["exit_code"]) == (1, "failed", 5)


@pytest.mark.needs_bwrap
def test_a_rule_refuses_a_command_here_as_in_front_of_a_person(kit: ActionsKit) -> None:
    rules = kit.place / ".config/chargehand/policy.cedar"
    rules.parent.mkdir(parents=True)
    rules.write_text('@id("no") @reason("not here")\nforbid (principal, action == Action::"exec", resource);\n')
    state = kit.act("exec", command=["true"], repository=str(kit.repository), base=None)
    assert (state.status, [reason.code for reason in state.reasons]) == ("failed", ["policy_denied"]), state


@pytest.mark.needs_bwrap
def test_a_command_ends_with_its_time(kit: ActionsKit) -> None:
    command = ["sh", "-c", "trap '' TERM; (sleep 600 &); echo here; sleep 600"]
    state = kit.act("exec", command=command, repository=str(kit.repository), base=None, seconds=1.0)
    assert (state.status, state.result["tier"]) == ("timed_out", "process"), state
