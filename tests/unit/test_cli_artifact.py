"""Artifacts at the command line: listed by mission, printed byte for byte, and safe on a terminal."""

from __future__ import annotations

import base64
import contextlib
import json
import os
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.terminal_kit import COMMAND, Terminal

from chargehand.app.composition import App
from chargehand.cli.main import chargehand
from chargehand.core.mission_events import BaseResolved, MissionCreated
from chargehand.core.records import Base, MissionRequest

NASTY = b"red \x1b[31mtext\x1b[0m\x07 and \xff bytes\n"


@pytest.fixture
def mission(app: App) -> str:
    request = MissionRequest(text="x", agent="command:true", command=("true",), slug="x")
    made = MissionCreated(project=app.preparation.find().project.id, repository=str(app.cwd), request=request)
    app.store.log.append("m-1", made, BaseResolved(base=Base(commit="1" * 40, tree="2" * 40, revision="HEAD")))
    return "m-1"


def say(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(chargehand, list(words))
    assert done.exit_code == code, done.output
    return done


def document(*words: str) -> Any:
    return json.loads(say(*words, "--json").stdout)


def error(*words: str, code: int) -> dict[str, str]:
    done = say(*words, "--json", code=code)
    assert done.stdout == ""
    found: dict[str, str] = json.loads(done.stderr)["error"]
    return found


def test_artifacts_of_a_mission_are_listed(app: App, mission: str) -> None:
    assert document("artifact", "list", mission) == {"mission": mission, "artifacts": []}
    assert "has no artifacts" in say("artifact", "list", mission).stdout
    ids = [
        app.store.artifacts.put(text, kind=kind, mission=mission)
        for kind, text in (("report", b"{}"), ("agent", NASTY))
    ]
    app.store.artifacts.put(b"of another one", kind="agent", mission="m-2")
    listed = document("artifact", "list", mission)["artifacts"]
    assert [(each["id"], each["kind"], each["size"]) for each in listed] == [
        (ids[0], "report", 2),
        (ids[1], "agent", len(NASTY)),
    ]
    assert all(each["time"].startswith("20") for each in listed)
    assert ids[1][:12] in say("artifact", "list").stdout


def test_an_artifact_is_printed_as_exact_bytes_or_as_json(app: App, mission: str) -> None:
    nasty = app.store.artifacts.put(NASTY, kind="agent", mission=mission)
    assert say("artifact", "show", nasty[:8].upper()).stdout_bytes == NASTY
    shown = document("artifact", "show", nasty)
    assert (shown["encoding"], base64.b64decode(shown["content"])) == ("base64", NASTY)
    text = app.store.artifacts.put("grün\x1b[0m\n".encode(), kind="report", mission=mission)
    app.store.artifacts.put("grün\x1b[0m\n".encode(), kind="step", mission="m-2")
    shown = document("artifact", "show", text)
    assert (shown["encoding"], shown["content"], shown["size"]) == ("utf-8", "grün\x1b[0m\n", 10)
    assert {(each["mission"], each["kind"]) for each in shown["kept"]} == {(mission, "report"), ("m-2", "step")}


def test_a_terminal_gets_no_escapes(app: App, mission: str) -> None:
    nasty = app.store.artifacts.put(NASTY, kind="agent", mission=mission)
    words = (*COMMAND, "artifact", "show", nasty)
    with contextlib.closing(Terminal(words, cwd=app.home, environment=dict(os.environ))) as terminal:
        assert terminal.end() == 0
    assert "red " in terminal.raw
    assert "\x1b" not in terminal.raw
    assert "\x07" not in terminal.raw


def test_a_missing_artifact_is_an_error(app: App, mission: str) -> None:
    made = app.store.artifacts.put(b"x", kind="agent", mission=mission)
    unknown = "0000" if not made.startswith("0000") else "1111"
    found = error("artifact", "show", unknown, code=2)
    assert (found["code"], "artifact list" in found["hint"]) == ("not_found", True)
    assert "too short" in error("artifact", "show", made[:3], code=2)["message"]
    assert error("artifact", "show", "../../etc", code=2)["code"] == "not_found"
    assert error("artifact", "list", "m-none", code=2)["code"] == "not_found"
    for path in (app.home / "artifacts").rglob(f"{made}*"):
        path.unlink()
    assert error("artifact", "show", made, code=6)["code"] == "artifact_corrupt"


def test_a_beginning_that_fits_several_is_not_guessed(app: App, mission: str) -> None:
    seen: dict[str, str] = {}
    for number in range(5000):
        made = app.store.artifacts.put(str(number).encode(), kind="agent", mission=mission)
        if made[:4] in seen:
            break
        seen[made[:4]] = made
    found = error("artifact", "show", made[:4], code=2)
    assert (found["code"], made[:12] in found["hint"]) == ("ambiguous", True)
