"""Questions to a person: asked on a terminal as they come, else answered by `chargehand mission answer`."""

from __future__ import annotations

from collections.abc import Callable

import click

from chargehand.app.composition import App
from chargehand.app.worker import ensure_worker
from chargehand.cli._prepare import find_mission
from chargehand.cli.output import Output
from chargehand.cli.rendering import result_document, show_result
from chargehand.core.errors import UsageError
from chargehand.core.mission_events import PROMOTE
from chargehand.core.questions import Question
from chargehand.core.state import MissionState
from chargehand.core.text import printable

_LONGEST = 100_000
_DIGITS = 9


def ask_person(out: Output, asked: Question) -> str | None:
    """Return what the person at the terminal answers; `None` where they leave it for later."""
    click.echo(err=True)
    click.secho(_who_asks(asked), err=True, bold=True)
    click.echo(printable(asked.text), err=True)
    for number, option in enumerate(asked.options, start=1):
        click.echo(f"  {number}  {printable(option)}", err=True)
    hint = " (a number, or your own words; empty: later)" if asked.options else " (empty: later)"
    said = click.prompt(f"Your answer{hint}", default="", show_default=False, err=True).strip()
    return resolved(asked, said) if said else None


def _who_asks(asked: Question) -> str:
    if asked.until:
        return "It goes on by itself; answer to try earlier:"
    return "The agent asks:" if asked.attempt is not None else "Chargehand asks:"


def resolved(asked: Question, said: str) -> str:
    """Return an answer: the number of an option stands for its text."""
    # Not any longer number: Python refuses to read thousands of digits.
    if len(said) <= _DIGITS and said.isdecimal() and 1 <= int(said) <= len(asked.options):
        return asked.options[int(said) - 1]
    return said


def go_on_with_answers(
    app: App,
    out: Output,
    state: MissionState,
    *,
    go_on: Callable[[str], MissionState],
    promote: Callable[[str], MissionState],
) -> MissionState:
    """Put what a mission waits for to the person at the terminal, until nothing is asked or they leave it."""
    while out.can_ask and state.status == "waiting" and state.waits_for_quota is None:
        asked = state.open_question
        if asked is not None:
            answer = ask_person(out, asked)
            if answer is None:
                break
            app.steering.answer(state.id, answer)
            state = go_on(state.id)
            continue
        if PROMOTE not in state.questions or not _wants(state):
            break
        return promote(state.id)
    return state


def _wants(state: MissionState) -> bool:
    click.echo(err=True)
    for reason in state.reasons:
        click.echo(f"{reason.code}: {printable(reason.message)}", err=True)
    return click.confirm("Only a person may let this in. Promote it?", default=False, err=True)


def answer(out: Output, mission: str, text: str | None) -> int:
    """Answer what a mission asks, and let a worker go on with it; without a text, say what is asked."""
    with App.open() as app:
        found = find_mission(app, mission)
        state = app.look.state(found)
        asked = state.open_question
        if text is None and asked is not None:
            text = ask_person(out, asked) if out.can_ask else None
            if text is None:
                _show_question(out, state, asked)
                return 3
        answered = answer_to(app, found, checked_answer(asked, text or ""))
        if ensure_worker(app):
            out.notice("a worker was started for it")
        out.document(result_document(answered))
        show_result(out, answered)
    return 0


def answer_to(app: App, mission: str, text: str) -> MissionState:
    """Answer what a mission asks, by order where it runs. Raises `RefusedError`."""
    ordered = app.order(mission, "answer", text=text)
    return app.look.state(mission) if ordered else app.steering.answer(mission, text)


def checked_answer(asked: Question | None, text: str) -> str:
    """Return an answer as it is recorded. Raises `UsageError` where it is empty or too long."""
    if asked is not None and not text.strip():
        raise UsageError("the answer is empty", hint="say something the agent can go on with")
    if len(text.encode(errors="replace")) > _LONGEST:
        raise UsageError(f"the answer has more than {_LONGEST} bytes", hint="put the rest into a file")
    return resolved(asked, text.strip()) if asked is not None else text


def _show_question(out: Output, state: MissionState, asked: Question) -> None:
    out.document({"mission": state.id, "question": asked.id, "text": asked.text, "options": asked.options})
    out.text(_who_asks(asked), bold=True)
    out.text(asked.text)
    for number, option in enumerate(asked.options, start=1):
        out.text(f"  {number}  {option}")
    out.text(f"answer:   chargehand mission answer {state.id} TEXT")
