"""Why a mission without a worker waits: derived from the facts, before and after each of them changes."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from click.testing import CliRunner

from chargehand.app.composition import App
from chargehand.app.missions import follow_mission
from chargehand.cli.main import chargehand
from chargehand.core.mission_events import MissionClaimed, MissionFinished
from chargehand.core.records import MissionRequest, Reason
from chargehand.durable.workers import LocalMembership
from chargehand.missions.journal import MissionSubmission, create_mission

ASKED = MissionRequest(text="change it", agent="", command=(), slug="change-it")


def ask(app: App) -> str:
    found = app.preparation.find()
    return create_mission(
        app.store,
        MissionSubmission(
            project=found.project.id, request=ASKED, repository=str(app.cwd), base=found.base, config={}
        ),
    )


def take(app: App, mission: str, worker: LocalMembership) -> None:
    epoch = app.store.log.claim(mission, owner=worker.id, epoch=app.store.log.get(mission).epoch)
    claimed = MissionClaimed(worker=worker.id, role="worker", epoch=epoch, version="1")
    app.store.log.append(mission, claimed, epoch=epoch)


def say(*words: str) -> Any:
    done = CliRunner().invoke(chargehand, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_queued_missions_show_the_reason_of_the_wait(app: App) -> None:
    missions = [ask(app) for _ in range(7)]
    assert {reason.code for reason in app.mission_reader.waits().values()} == {"no_worker"}
    worker = app._local.join("worker")
    try:
        for mission in missions[:5]:
            take(app, mission, worker)
        waits = app.mission_reader.waits()
        assert list(waits) == missions[5:]
        sixth, seventh = (waits[mission] for mission in missions[5:])
        assert sixth.code == seventh.code == "queued"
        assert sixth.message == "waiting for a worker: 1 worker is running 5 missions; it starts automatically"
        assert "is running 5 missions (1 ahead of it in the queue)" in seventh.message
        assert say("mission", "show", missions[5])["waits"]["message"] == sixth.message
        assert say("mission", "show", missions[0])["waits"] is None
        listed = {each["mission"]: each["waits"] for each in say("mission", "list")["missions"]}
        assert [mission for mission in missions if listed[mission]] == missions[5:]
        shown = CliRunner().invoke(chargehand, ["mission", "list"]).stdout
        assert f"{missions[6]} waits: {seventh.message}" in shown
        take(app, missions[5], worker)
        epoch = app.store.log.get(missions[0]).epoch
        app.store.log.append(missions[0], MissionFinished(status="refused"), epoch=epoch)
        app.store.log.release(missions[0], epoch=epoch)
        assert list(app.mission_reader.waits()) == missions[6:]
        assert "before it" not in app.mission_reader.waits()[missions[6]].message
    finally:
        worker.leave()
    # Its worker is gone: its missions wait for another worker, each at its place.
    waits = app.mission_reader.waits()
    assert list(waits) == missions[1:]
    assert waits[missions[6]].code == "no_worker"
    assert "(5 ahead of it in the queue)" in waits[missions[6]].message


def test_following_a_mission_reports_an_unchanged_wait_reason_once(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    mission, joined = ask(app), []

    def look_again(seconds: float) -> None:
        """Change the reason to wait at every second look, until the mission is settled."""
        looks.append(seconds)
        if len(looks) == 2:
            joined.append(app._local.join("worker"))
        elif len(looks) == 4:
            take(app, mission, joined[0])
        elif len(looks) == 6:
            epoch = app.store.log.get(mission).epoch
            app.store.log.append(mission, MissionFinished(status="refused"), epoch=epoch)
            app.store.log.release(mission, epoch=epoch)

    looks: list[float] = []
    monkeypatch.setattr(time, "sleep", look_again)
    try:
        seen = list(follow_mission(app, mission))
    finally:
        joined[0].leave()
    waits = [reason.message for reason in seen if isinstance(reason, Reason)]
    assert [message.split()[:3] for message in waits] == [["waiting", "for", "a"]]
