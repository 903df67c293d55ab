"""Texts meant to break programs, as requests, messages and answers: stored unchanged, and shown safely."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chargehand.app.composition import App
from chargehand.cli.main import chargehand
from chargehand.core.ids import new_id
from chargehand.core.mission_events import (
    BaseResolved,
    MessageSent,
    MissionCreated,
    MissionFinished,
    QuestionAnswered,
    QuestionAsked,
)
from chargehand.core.records import Base, MissionRequest

STRINGS = Path(__file__).parents[3] / "shared/data/naughty_strings.json"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LONG = "1" * 5000  # more digits than Python parses as a number

pytestmark = pytest.mark.skipif(
    not STRINGS.exists() and not os.environ.get("CI"), reason="the strings are not beside this checkout"
)


def naughty() -> list[str]:
    """Return all of the strings."""
    found: list[str] = json.loads(STRINGS.read_text())
    assert len(found) > 500
    return found


def say(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(chargehand, list(words))
    assert done.exit_code == code, done.output
    return done.stdout


def document(*words: str) -> Any:
    return json.loads(say(*words, "--json"))


def created(app: App, text: str) -> tuple[MissionCreated, BaseResolved]:
    request = MissionRequest(text=text, agent="command:true", command=("true",), slug="x")
    base = Base(commit="1" * 40, tree="2" * 40, revision="HEAD", branch="main")
    project = app.preparation.find().project
    return MissionCreated(project=project.id, repository=str(project.path), request=request), BaseResolved(
        base=base
    )


def test_all_of_them_are_kept_and_shown(app: App) -> None:
    texts = naughty()
    ids = {new_id("mission"): text for text in texts}
    made, base = created(app, texts[0])
    for mission, text in ids.items():
        app.store.log.append(mission, *_as(made, text), base)
    talk = next(iter(ids))
    for number, text in enumerate(texts):
        asked = QuestionAsked(question=f"q{number}", tree="2" * 40, reasons=(), text=text, options=(text,))
        answered = QuestionAnswered(question=f"q{number}", text=text, identity="os:me")
        app.store.log.append(talk, MessageSent(identity="os:me", text=text), asked, answered)
    state = app.mission_reader.state(talk)
    assert [message.text for message in state.messages] == texts
    assert [(each.text, each.options, each.answer) for each in state.questions.values()] == [
        (text, (text,), text) for text in texts
    ]
    for row in document("mission", "list", "--all")["missions"]:
        assert row["request"] == ids[row["mission"]]
    log = [json.loads(line)["payload"] for line in say("mission", "log", talk, "--json").splitlines()]
    assert [line["text"] for line in log if {"identity", "text"} <= set(line) and "question" not in line] == texts
    shown = say("mission", "list", "--all") + say("mission", "log", talk)
    shown += "".join(say("mission", "show", mission) for mission in list(ids)[::40])
    assert CONTROLS.findall(shown) == []


def _as(made: MissionCreated, text: str) -> tuple[MissionCreated]:
    request = MissionRequest(text=text, agent="command:true", command=("true",), slug="x")
    return (MissionCreated(project=made.project, repository=made.repository, request=request),)


@pytest.mark.parametrize("part", range(3))
def test_some_of_them_by_the_commands(app: App, part: int) -> None:
    """As messages to a waiting mission, and as answers to an agent's questions."""
    texts = [text for text in naughty() if text.strip() and "\0" not in text][part::120]
    mission = new_id("mission")
    app.store.log.append(mission, *created(app, "ask"))
    for text in texts:
        say("mission", "send", mission, "--", text)
    assert [message.text for message in app.mission_reader.state(mission).messages] == texts
    for number, text in enumerate([*texts, LONG]):
        asked = QuestionAsked(question=f"q{number}", tree="2" * 40, reasons=(), text=text, attempt="a-1")
        app.store.log.append(mission, asked, MissionFinished(status="waiting"))
        assert document("mission", "show", mission)["question"]["text"] == text
        app.steering.answer(mission, text)
        answered = app.mission_reader.state(mission).questions[f"q{number}"]
        assert (answered.answer, app.mission_reader.state(mission).status) == (text, "planned")


def test_blank_or_oversized_answers_and_messages_are_rejected(app: App) -> None:
    mission = new_id("mission")
    app.store.log.append(mission, *created(app, "ask"))
    asked = QuestionAsked(question="q", tree="2" * 40, reasons=(), text="?", options=("yes",), attempt="a-1")
    app.store.log.append(mission, asked, MissionFinished(status="waiting"))
    for text in ("", "  \t", "x" * 100_001):
        assert CliRunner().invoke(chargehand, ["mission", "answer", mission, "--", text]).exit_code == 2
        assert CliRunner().invoke(chargehand, ["mission", "send", mission, "--", text]).exit_code == 2
    assert app.mission_reader.state(mission).open_question is not None
    assert app.mission_reader.state(mission).messages == []
