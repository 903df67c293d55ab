"""P3 for agents of other programs: killed anywhere, they get their paid replies again, and request no reply twice.

The model is a real server on loopback that counts its requests; the programs are the product's fakes, which talk
with it and write down its replies.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests import forked
from tests.conftest import git, repository_state
from tests.crash_kit import Scene, Site, nothing_survives
from tests.integration.test_native_crashes import NativeCrashKit
from tests.native_kit import ModelServer, says
from tests.workers_kit import sandboxes

from chargehand.core.attempt_events import ModelCalled, ReplayDiverged
from chargehand.core.events import decode
from chargehand.testing.agents import fake_agent as _fake_agent

pytestmark = pytest.mark.needs_bwrap
WORDS = ("one", "two", "three", "done")
REPLIES = tuple(map(says, WORDS))
SCENE = Scene(name="talk")
AGENTS = {
    "cli": ('kind = "cli"\ncli = "claude"', "claude"),
    "acp": ('kind = "acp"', "acp"),
}


class TalkKit(NativeCrashKit):
    """Crashes whose agent is a fake that talks with its model, doing `act`, or as `config` says."""

    def __init__(
        self,
        place: Path,
        servers: Sequence[tuple[ModelServer, str]],
        *,
        kind: str,
        act: str,
        config: str | None = None,
    ) -> None:
        super().__init__(place, servers)
        keys, form = AGENTS[kind]
        command = json.dumps(["python3", "-I", "-c", inspect.getsource(_fake_agent), form, act])
        agents = [
            f'\n[agents.talks-{number}]\n{keys}\ncommand = {command}\nmodel = "served-{number}"\n'
            for number, _ in enumerate(servers, 1)
        ]
        file = self.place / ".config/chargehand/config.toml"
        file.write_text(file.read_text() + (config or "".join(agents)))

    def agent(self, site: Site) -> tuple[str, ...]:
        return ("--agent", f"talks-{site.repository.name.removeprefix('repo-')}")

    def run(self, site: Site, *words: str, plan: str | None = None) -> subprocess.Popen[bytes]:
        asked = ("run", "talk", *self.agent(site), "--only-check", "true", *words)
        return self.start(*asked, cwd=site.repository, plan=plan)

    def undisturbed(self, site: Site) -> None:
        assert repository_state(site.repository) == site.before

    def events(self, site: Site) -> list[Any]:
        with self.app() as app:
            lines = app.store.log.read(self.mission(site))
        return [decode(line.type, line.payload) for line in lines if line.payload]


def check(kit: TalkKit, site: Site) -> str:
    """Check that a mission succeeded, and return the text that its agent wrote down."""
    kit.examine(site)
    (state,) = kit.missions(site)
    assert state.status == "promoted", (state.reasons, kit.output())
    branch = git(site.repository, "for-each-ref", "--format=%(refname)", "refs/heads/chargehand/")
    assert list((kit.home / "calls").glob("*")) == []  # it is an artifact now
    with kit.app() as app:
        kept = [
            app.store.artifacts.get(row.id) for row in app.store.artifacts.list(state.id) if row.kind == "calls"
        ]
        assert kept
        assert not [content for content in kept if b"cht-" in content]
    return git(site.repository, "show", f"{branch}:talk.txt")


KILLED = {
    "cli": (("before kept#2", [2], 1), ("after kept#1", [], 1), ("after model.called#4", [], 4)),
    "acp": (("before kept#1", [1], 0), ("after settled#3", [], 3), ("before model.called#3", [], 3)),
}
"""The crash point, the replies that are requested again, and the number of replayed ones."""


def replayed(kit: TalkKit, site: Site) -> list[int]:
    """Return the turns that were replayed."""
    return [each.turn for each in kit.events(site) if isinstance(each, ModelCalled) and each.status == "replayed"]


@pytest.mark.parametrize("kind", ["cli", "acp"])
def test_each_kept_reply_is_asked_for_once(tmp_path: Path, kind: str) -> None:
    """A crash before a reply is kept lets its call go out again; after that it never does."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(nothing_survives())
        models = [ModelServer(REPLIES) for _ in KILLED[kind]]
        served = [(each, stack.enter_context(each.running())) for each in models]
        kit = TalkKit(tmp_path, served, kind=kind, act="talk")
        sites = [kit.site(SCENE) for _ in KILLED[kind]]
        for site, (point, _, _) in zip(sites, KILLED[kind], strict=True):
            kit.die_at(point, site)
        kit.go_on()
        for site, model, (point, twice, again) in zip(sites, models, KILLED[kind], strict=True):
            assert check(kit, site).split() == [*WORDS], point
            assert sorted(model.asked) == sorted([1, 2, 3, 4, *twice]), point
            assert replayed(kit, site) == list(range(1, again + 1)), point
            (state,) = kit.missions(site)
            assert [each for each in kit.events(site) if isinstance(each, ReplayDiverged)] == []
            calls = 4 + len(twice)
            assert (state.attempts[0].calls, state.attempts[0].model) == (calls, model_of(site)), point
        kit.at_rest()


def test_a_diverging_replay_continues_live_and_is_logged(tmp_path: Path) -> None:
    model = ModelServer(REPLIES)
    with nothing_survives(), model.running() as address:
        kit = TalkKit(tmp_path, [(model, address)], kind="cli", act="talk-clock")
        site = kit.site(SCENE)
        kit.die_at("after model.called#4", site)
        assert model.asked == [1, 2, 3, 4]
        kit.go_on()
        assert check(kit, site).split() == [*WORDS]
        assert model.asked == [1, 2, 3, 4, 3, 4]
        assert replayed(kit, site) == [1, 2]
        (told,) = (each for each in kit.events(site) if isinstance(each, ReplayDiverged))
        assert (told.turn, told.pointer) == (3, "/messages/4/content")
        assert " at 1" in told.recorded
        assert told.recorded != told.sent
        words = ("mission", "log", kit.mission(site))
        code, shown, _ = forked.run(words, cwd=site.repository, environ=kit.environ)
        assert (code, "replay ended at turn 3" in shown) == (0, True), shown
        kit.at_rest()


def model_of(site: Site) -> str:
    return f"served-{site.repository.name.removeprefix('repo-')}"


@pytest.mark.parametrize("ended", ["cancel", "discard"])
def test_an_abandoned_mission_is_charged_the_cost_of_its_calls(tmp_path: Path, ended: str) -> None:
    """The worker died between a reply and its booking: once the mission is ended, nothing stays reserved."""
    model = ModelServer(REPLIES)
    with nothing_survives(), model.running() as address:
        kit = TalkKit(tmp_path, [(model, address)], kind="cli", act="talk")
        site = kit.site(SCENE)
        kit.die_at("before settled#2", site)
        kit.let_go(site)
        mission = kit.mission(site)
        with kit.app() as app:
            state = getattr(app.steering, ended)(mission)
            spent = app.store.spending.total(mission)
        (attempt,) = state.attempts
        assert (attempt.calls, attempt.status) == (2, "cancelled")
        assert attempt.cost_usd == pytest.approx(0.0022)
        assert spent == (pytest.approx(0.0022), pytest.approx(0.0022))
        (lost,) = (each for each in kit.events(site) if isinstance(each, ModelCalled) and each.status == "lost")
        assert (lost.model, lost.turn, lost.input_tokens, lost.cost_known) == (model_of(site), 2, 1000, True)


class HeldServer(ModelServer):
    """A provider that holds its third reply until `free` is set."""

    def __init__(self) -> None:
        super().__init__(REPLIES)
        self.reached, self.free = threading.Event(), threading.Event()

    def _answer(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, str, bytes]:
        answer = super()._answer(body, headers)
        if len(self.asked) == 3:
            self.reached.set()
            assert self.free.wait(60)
        return answer


@pytest.mark.parametrize("end", ["the sandbox is killed", "a person cancels and resumes it"])
def test_an_interrupted_mission_resumes_without_paying_twice_for_a_reply(tmp_path: Path, end: str) -> None:
    model = HeldServer()
    with nothing_survives(), model.running() as address:
        kit = TalkKit(tmp_path, [(model, address)], kind="cli", act="talk")
        site = kit.site(SCENE)
        running = kit.run(site)
        assert model.reached.wait(60)
        if end == "the sandbox is killed":
            for pid in sandboxes(running):
                with contextlib.suppress(ProcessLookupError):  # when the first one ends, so do the others
                    os.kill(pid, signal.SIGKILL)
            model.free.set()
            assert running.wait() == 0, kit.output()
        else:
            assert kit.start("mission", "cancel", "last", cwd=site.repository).wait() == 0, kit.output()
            model.free.set()
            running.wait()
            with kit.app() as app:
                assert app.mission_reader.state(kit.mission(site)).status == "cancelled"
                app.steering.resume(kit.mission(site))
            kit.go_on()
        assert check(kit, site).split() == [*WORDS]
        assert sorted(model.asked) == [1, 2, 3, 3, 4]
        assert replayed(kit, site) == [1, 2]
        (state,) = kit.missions(site)
        assert [attempt.status for attempt in state.attempts] == ["succeeded"]
        kit.at_rest()
