"""`chargehand mission log` and `watch`: the events, as they are and as they come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from chargehand.app.composition import App
from chargehand.app.event_text import describe_event, step_name
from chargehand.app.worker import ensure_worker
from chargehand.cli._prepare import find_mission
from chargehand.cli.output import Output, to_json
from chargehand.cli.rendering import show_result
from chargehand.core.events import Event
from chargehand.core.state import SETTLED, MissionState
from chargehand.missions._transcript import transcript

_LOOK_SECONDS = 0.2


def show_log(out: Output, mission: str, *, follow: bool) -> int:
    """Write a mission's events, one line each."""
    with App.open() as app:
        found = find_mission(app, mission)
        for event in _followed(app, out, found) if follow else app.store.log.read(found):
            _show(out, event, _log_line(event))
    return 0


def _log_line(event: Event) -> str:
    return f"{event.seq:>4}  {event.time[:19]}  {step_name(event):<11}  {event.type:<20}  {describe_event(event)}"


def show_project_log(out: Output, *, repo: Path | None) -> int:
    """Write the events of a project's own log, one line each; none where nothing was done by hand."""
    with App.open() as app:
        for event in app.store.log.read(app.project(repo).id):
            _show(out, event, f"{event.seq:>4}  {event.time[:19]}  {event.type:<20}  {describe_event(event)}")
    return 0


def show_transcript(out: Output, mission: str) -> int:
    """Write the conversation of a mission's agents: of native ones as it was, of others as they tell it."""
    with App.open() as app:
        state = app.look.state(find_mission(app, mission))
        for line in transcript(app.store, state):
            out.document({"mission": state.id, **to_json(line)})
            heads = _OWN_WORD if line.own_word else _HEADS
            out.text(heads[line.speaker].format(line=line), bold=True)
            out.text(_indented(line.text))
    return 0


_HEADS = {
    "person": "{line.attempt}  to the agent",
    "model": "{line.reply}  {line.model}",
    "call": "{line.reply}  {line.model} calls {line.tool}",
    "result": "{line.reply}  result of {line.tool}",
}
_OWN_WORD = {
    "agent": "{line.attempt}  the agent says",
    "thought": "{line.attempt}  the agent thinks",
    "call": "{line.attempt}  the agent says it calls {line.tool}",
    "result": "{line.attempt}  the agent's result of {line.tool}",
    "error": "{line.attempt}  the agent tells an error",
}


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def watch_mission(out: Output, mission: str) -> int:
    """Write what happens to a mission until it is settled, and how it stands then."""
    with App.open() as app:
        found = find_mission(app, mission)
        if app.has_work() or app.look.state(found).waits_for_quota is not None:
            ensure_worker(app)
        for event in _followed(app, out, found):
            text = describe_event(event)
            if text or out.as_json:
                _show(out, event, f"{event.time[11:19]}  {step_name(event):<11}  {text}")
        if not out.as_json:
            show_result(out, app.look.state(found))
    return 0


def _followed(app: App, out: Output, mission: str) -> Iterator[Event]:
    """Yield what is in the log and what comes, until the mission is settled or nobody reads."""
    seen, told = 0, ""
    while not out.closed:
        state = app.look.state(mission)
        settled = state.status in SETTLED and not goes_on(state)
        for event in app.store.log.read(mission, after=seen):
            seen = event.seq
            yield event
        if settled:
            return
        told = _tell_wait(app, out, state, told)
        time.sleep(_LOOK_SECONDS)


def _tell_wait(app: App, out: Output, state: MissionState, told: str) -> str:
    """Say once why a mission that nobody has taken up waits, and anew where that changes; no event tells it."""
    if out.as_json or (state.status != "planned" and not goes_on(state)):
        return told
    asleep = state.waits_for_quota
    reason = app.look.waits().get(state.id) if asleep is None else asleep.reason
    if reason is None or reason.message == told:
        return told
    out.text(f"          waits: {reason.message}")
    return reason.message


def goes_on(state: MissionState) -> bool:
    """Tell whether a mission goes on by itself: another worker takes it up, or its moment comes."""
    if state.waits_for_quota is not None:
        return True
    return any(reason.code == "worker_lost" for reason in state.reasons) and state.status == "paused"


def _show(out: Output, event: Event, line: str) -> None:
    payload = None if event.payload is None else msgspec.json.decode(event.payload)
    out.document(
        {
            "mission": event.mission,
            "seq": event.seq,
            "time": event.time,
            "type": event.type,
            "step": step_name(event) or None,
            "payload": payload,
            "hash": event.hash,
        }
    )
    out.text(line)
