"""Whatever a forge does to a call, nothing is doubled and nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pytest
from forge_kit import ForgeKit
from test_forge_stacks import REVISE, parts, stack, take_plan

from chargehand.app.forge.request_target import RequestTarget
from chargehand.forges.contract import Forge, ForgeKind, ForgeProblem, ForgeSetup
from chargehand.forges.local import KIND
from chargehand.forges.registries import FORGES
from chargehand.testing.forges.case import run_git
from chargehand.testing.forges.flaky import FlakyForge, ForgeFault
from mission_kit import GOLD

pytestmark = pytest.mark.needs_bwrap
_FAULTS: list[ForgeFault] = []
_OPENED: list[FlakyForge] = []


def _open(setup: ForgeSetup) -> Forge:
    forge = FlakyForge(KIND.open(setup), *_FAULTS)
    # Faults count the calls of all connections.
    forge.calls = _OPENED[0].calls if _OPENED else forge.calls
    _OPENED.append(forge)
    return forge


@pytest.fixture(autouse=True)
def flaky(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    FORGES.register("flaky", lambda: ForgeKind(open=_open, parse=KIND.parse, token=KIND.token), "fails as asked")
    monkeypatch.setattr(RequestTarget, "retry_seconds", ())
    _set_faults(())
    yield
    del FORGES._own["flaky"]


def _set_faults(faults: Sequence[ForgeFault]) -> None:
    _FAULTS[:] = faults
    _OPENED.clear()


class Undelivered:
    """A promoted mission whose forge was down; `restore` brings that moment back."""

    def __init__(self, place: Path) -> None:
        self.place, self.saved = place / "now", place / "saved"
        self.place.mkdir(parents=True)
        self.kit = ForgeKit(self.place, GOLD, kind='"flaky"', reviewers='["bob"]')
        # So long that the evidence is attached.
        self.number = self.kit.issue(body="add(2, 3) should be 5\n" * 2_500)
        self.mission = self.kit.take(self.number)
        _set_faults([ForgeFault(method="repository", lasting=True)])
        self.kit.work()
        _set_faults(())
        state = self.kit.state(self.mission)
        assert state.status == "promoted", state.reasons
        assert state.deliveries["request"].state == "pending"
        shutil.copytree(self.place, self.saved, symlinks=True)

    def restore(self) -> None:
        # Not the clone: a project is known by its directory, and a copy would be another one.
        for name in ("forge", "state"):
            for found in (self.place / name).iterdir():
                if found.name != "forges":
                    shutil.rmtree(found) if found.is_dir() else found.unlink()
            keep = shutil.ignore_patterns("forges") if name == "state" else None
            shutil.copytree(self.saved / name, self.place / name, symlinks=True, ignore=keep, dirs_exist_ok=True)

    def check_done_once(self) -> None:
        """Check the request and everything around it."""
        kit = self.kit
        state = kit.state(self.mission)
        request = kit.request(self.mission)
        assert (request.head_commit, request.draft, request.is_open) == (state.commit, False, True)
        assert state.deliveries["request"].state == "done"
        assert len(kit.comments(self.number)) == 1
        assert request.url in kit.comments(self.number)[0]
        assert kit.comments(request.number) == []
        assert len(list((self.place / "forge" / kit.name / "files").rglob("*.md"))) == 1
        assert [each.context for each in kit.ada.statuses(kit.name, request.head_commit)] == ["chargehand"]
        assert kit.stories()[f"home:{kit.name}#{self.number}"].request == request.number


_KEPT: dict[str, Undelivered] = {}


@pytest.fixture
def story(flaky: None, tmp_path_factory: pytest.TempPathFactory) -> Undelivered:
    if not _KEPT:
        _KEPT["story"] = Undelivered(tmp_path_factory.mktemp("undelivered"))
    else:
        _KEPT["story"].restore()
    return _KEPT["story"]


def _count_changes(story: Undelivered) -> int:
    _set_faults(())
    for _ in range(3):
        story.kit.step()
    return _OPENED[0].changes


def test_a_lost_reply_to_any_change_doubles_nothing(story: Undelivered) -> None:
    changes = _count_changes(story)
    story.check_done_once()
    assert changes >= 6
    whens: tuple[Literal["before", "lost_before", "lost_after"], ...] = ("before", "lost_before", "lost_after")
    for when in whens:
        for call in range(1, changes + 1):
            story.restore()
            _set_faults([ForgeFault(call=call, when=when)])
            for _ in range(5):
                story.kit.step()
            assert _OPENED[0].changes >= call, (when, call)
            story.check_done_once()


def test_a_request_that_was_merged_before_its_lost_reply_is_looked_for_is_not_opened_again(
    story: Undelivered,
) -> None:
    kit = story.kit
    _set_faults([ForgeFault(method="open_request", when="lost_after")])
    kit.step()
    _set_faults(())
    request = kit.request(story.mission)
    kit.ada.merge(kit.name, request.number, commit=request.head_commit, method="squash")
    run_git(story.place / "forge" / f"{kit.name}.git", "update-ref", "-d", f"refs/heads/{request.head}")
    while f"home:{kit.name}#{story.number}" in kit.stories():
        kit.step()
    assert kit.request(story.mission).number == request.number
    assert "the request was merged" in kit.comments(story.number)[0]


def test_a_stack_is_opened_once_whichever_replies_are_lost(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path, REVISE, kind='"flaky"')
    stack(kit)
    number = kit.issue()
    _set_faults(
        [
            ForgeFault(method="open_request", call=1, when="lost_after"),
            ForgeFault(method="open_request", call=3, when="lost_before"),
            ForgeFault(method="set_status", call=2, when="lost_after"),
        ]
    )
    mission = take_plan(kit, number)
    for _ in range(6):
        kit.step()
    assert kit.state(mission).deliveries["request"].state == "done"
    assert len({each.number for each in parts(kit, mission)}) == 3
    for each in parts(kit, mission):
        assert len(kit.ada.find_requests(kit.name, each.head)) == 1
        assert [status.state for status in kit.ada.statuses(kit.name, each.head_commit)] == ["success"]
    assert len(kit.comments(number)) == 1


def test_a_forge_that_was_down_gets_everything_later(story: Undelivered) -> None:
    problems: tuple[ForgeProblem, ...] = ("unreachable", "broken", "rate_limited")
    for problem in problems:
        story.restore()
        _set_faults([ForgeFault(method="repository", problem=problem, lasting=True)])
        story.kit.step()
        delivery = story.kit.state(story.mission).deliveries["request"]
        assert delivery.state == "pending"
        assert "as asked" in delivery.reason
        _set_faults(())
        for _ in range(3):
            story.kit.step()
        story.check_done_once()


def test_a_refusal_that_lasts_is_shown_with_its_remedy(story: Undelivered) -> None:
    _set_faults([ForgeFault(method="open_request", problem="forbidden", lasting=True)])
    story.kit.step()
    delivery = story.kit.state(story.mission).deliveries["request"]
    assert (delivery.state, bool(delivery.remedy)) == ("blocked", True)
    assert "the request is blocked" in story.kit.comments(story.number)[0]
    _set_faults(())
    for _ in range(3):
        story.kit.step()
    story.check_done_once()


def test_an_issue_that_is_deleted_ends_its_mission(story: Undelivered) -> None:
    number = story.kit.issue("another")
    mission = story.kit.take(number)
    _set_faults([ForgeFault(method="issue", problem="missing", lasting=True)])
    story.kit.step(takes=False)
    assert story.kit.state(mission).status == "cancelled"
    assert f"home:{story.kit.name}#{number}" not in story.kit.stories()


@pytest.mark.parametrize("moment", ["pre-receive", "post-receive"])
def test_a_worker_killed_while_it_pushes_is_continued(tmp_path: Path, moment: str) -> None:
    kit = ForgeKit(tmp_path)
    number = kit.issue()
    mission = kit.take(number)
    # Git runs this at the forge: before the branch moves, and after it.
    hook = tmp_path / "forge" / f"{kit.name}.git" / "hooks" / moment
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(
        f"#!/bin/sh\ncd {tmp_path}\ntest -e killed && exit 0\ntouch killed\nkill -9 $(cat worker.pid)\n"
    )
    hook.chmod(0o755)
    words = [sys.executable, "-m", "chargehand", "worker", "--until-idle"]
    with subprocess.Popen(words, env={**os.environ, **kit.environ}, stderr=subprocess.DEVNULL) as worker:
        (tmp_path / "worker.pid").write_text(str(worker.pid))
        assert worker.wait(120) == -signal.SIGKILL
    end = time.monotonic() + 120
    while kit.state(mission).deliveries.get("request") is None or kit.state(mission).status != "promoted":
        assert time.monotonic() < end
        kit.work()
    for _ in range(2):
        kit.step()
    state, request = kit.state(mission), kit.request(mission)
    assert (request.head_commit, request.is_open) == (state.commit, True)
    assert len(kit.comments(number)) == 1
    assert state.deliveries["request"].state == "done"
