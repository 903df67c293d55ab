"""Why a mission that nobody has taken up waits: from the facts, before and after each of them changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from chargehand.app.composition import App
from chargehand.cli._mission_log import _tell_wait
from chargehand.cli.main import chargehand
from chargehand.cli.output import Output
from chargehand.core.mission_events import MissionClaimed, MissionFinished
from chargehand.core.records import MissionRequest
from chargehand.durable._workers import LocalMembership
from chargehand.missions._missions import create_mission

ASKED = MissionRequest(text="change it", agent="", command=(), slug="change-it")


def ask(app: App) -> str:
    found = app.find()
    return create_mission(
        app.store, project=found.project.id, request=ASKED, repository=str(app.cwd), base=found.base, config={}
    )


def take(app: App, mission: str, worker: LocalMembership) -> None:
    epoch = app.store.log.claim(mission, owner=worker.id, epoch=app.store.log.get(mission).epoch)
    claimed = MissionClaimed(worker=worker.id, role="worker", epoch=epoch, version="1")
    app.store.log.append(mission, claimed, epoch=epoch)


def say(*words: str) -> Any:
    done = CliRunner().invoke(chargehand, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_sixth_mission_says_what_it_waits_for(app: App) -> None:
    missions = [ask(app) for _ in range(7)]
    assert {reason.code for reason in app.look.waits().values()} == {"no_worker"}
    worker = app._local.join("worker")
    try:
        for mission in missions[:5]:
            take(app, mission, worker)
        waits = app.look.waits()
        assert list(waits) == missions[5:]
        sixth, seventh = (waits[mission] for mission in missions[5:])
        assert sixth.code == seventh.code == "queued"
        assert sixth.message == "not taken up yet: 1 worker is alive and runs 5 missions; it goes on by itself"
        assert "runs 5 missions; 1 asked for before it wait too" in seventh.message
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
        assert list(app.look.waits()) == missions[6:]
        assert "before it" not in app.look.waits()[missions[6]].message
    finally:
        worker.leave()
    # Its worker is gone: what it held waits for another one, each where it stood.
    waits = app.look.waits()
    assert list(waits) == missions[1:]
    assert waits[missions[6]].code == "no_worker"
    assert "5 asked for before it wait too" in waits[missions[6]].message


def test_watching_says_it_once_and_anew_where_it_changes(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    mission, out = ask(app), Output(as_json=False)
    state = app.look.state(mission)
    told = _tell_wait(app, out, state, "")
    assert _tell_wait(app, out, state, told) == told
    worker = app._local.join("worker")
    try:
        told = _tell_wait(app, out, state, told)
        take(app, mission, worker)
        assert _tell_wait(app, out, app.look.state(mission), told) == told
    finally:
        worker.leave()
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[1:4] for line in said] == [["no", "worker", "is"], ["not", "taken", "up"]]
