"""The recorded steps of agents, and the conversation that they contain.

A native agent records every reply and every act as a step below its attempt's; an agent that is a separate program
reports its own words and acts, which no other source confirms.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from chargehand.core.state import MissionState
from chargehand.missions.journal import load_step_output
from chargehand.store.store import Store

if TYPE_CHECKING:
    from chargehand.agents.recorded import RecordedStep
    from chargehand.agents.tool_specs import ToolCall

# The step of one attempt; its agent's steps are below it.
WORK = "attempt/{number}/work"


def acts_prefix(number: int) -> str:
    """Return the prefix of the names of an attempt's own steps."""
    return WORK.format(number=number) + "/"


def parse_act(step: str) -> tuple[int, RecordedStep] | None:
    """Return the attempt and the kind of a native agent's step, `None` for any other step."""
    from chargehand.agents.recorded import parse_step

    match step.split("/", 3):
        case ["attempt", number, "work", name] if (found := parse_step(name)) is not None:
            return int(number), found
    return None


def count_replies(state: MissionState, number: int) -> int:
    """Return how many replies of an attempt are recorded."""
    acts = (parse_act(step) for step in state.steps)
    return sum(act is not None and act[0] == number and act[1].kind == "reply" for act in acts)


Speaker = Literal["person", "model", "call", "result", "agent", "thought", "error"]
_REPORTED_SPEAKERS: Mapping[str, Speaker] = {
    "text": "agent",
    "thought": "thought",
    "call": "call",
    "result": "result",
    "error": "error",
}


class TranscriptEntry(Struct, frozen=True, kw_only=True):
    """One thing said or done; `reply` is the number for a fork (`ATTEMPT.TURN`), "" if it cannot be forked.

    A `call` and its `result` carry the tool's name; `artifact` contains a truncated result. `own_word` marks
    entries reported by an agent of another program, which no other source confirms.
    """

    speaker: Speaker
    attempt: int
    reply: str
    text: str
    tool: str = ""
    model: str = ""
    failed: bool = False
    artifact: str | None = None
    own_word: bool = False


def read_transcript(store: Store, state: MissionState) -> Iterator[TranscriptEntry]:
    """Yield the conversation of a mission's attempts, in order; nothing for agents that report nothing."""
    for _, entries in transcript_steps(store, state):
        yield from entries


def transcript_steps(
    store: Store, state: MissionState, *, first: int = 0
) -> Iterator[tuple[int, Iterator[TranscriptEntry]]]:
    """Yield each step of a mission, from step `first` on, that contains conversation: its number and entries."""
    calls: dict[tuple[str, int], ToolCall] = {}  # a result names its call by reply and index only
    for number, done in enumerate(state.steps.values()):
        if number < first:
            continue
        match done.step.split("/", 3):
            case ["attempt", attempt, "work", name] if name.startswith("told/"):
                yield number, _read_reported(int(attempt), store, load_step_output(store, done))
                continue
        act = parse_act(done.step)
        if act is None:
            continue
        if act[1].kind == "call" and not calls and first:  # its reply is before the first step that is read
            reply = state.steps.get(f"{acts_prefix(act[0])}turn/{act[1].turn}/reply")
            if reply is not None:
                _note_calls(f"{act[0]}.{act[1].turn}", load_step_output(store, reply), calls)
        yield number, _read_recorded(*act, load_step_output(store, done), calls)


def _note_calls(number: str, output: Any, calls: dict[tuple[str, int], ToolCall]) -> None:
    from chargehand.agents.recorded import read_reply

    calls |= {(number, call.index): call for call in read_reply(output).calls}


def _read_reported(attempt: int, store: Store, run: Mapping[str, Any]) -> Iterator[TranscriptEntry]:
    """Yield an agent's reports from one run; a run that ended well has its end only in the log."""
    kept = store.artifacts.get(run["artifact"]) if run.get("artifact") else b""
    tools: dict[str, str] = {}
    for event in map(json.loads, kept.splitlines()):
        call, failed, text = event.get("call", ""), event.get("failed", False), event.get("text", "")
        speaker = "error" if event["kind"] == "end" and failed else _REPORTED_SPEAKERS.get(event["kind"])
        if speaker is None:
            continue
        if speaker == "call":
            tools[call] = event.get("tool", "")
            text = event.get("arguments", "")
        tool = tools.get(call, "") if speaker in ("call", "result") else ""
        yield TranscriptEntry(
            speaker=speaker, attempt=attempt, reply="", text=text, tool=tool, failed=failed, own_word=True
        )


def _read_recorded(
    attempt: int, step: RecordedStep, output: Any, calls: dict[tuple[str, int], ToolCall]
) -> Iterator[TranscriptEntry]:
    """Yield the entries of a native agent's step: its opening, a reply with its calls, or a result."""
    number = f"{attempt}.{step.turn}"
    if step.kind == "opening":
        for text in output["texts"]:
            yield TranscriptEntry(speaker="person", attempt=attempt, reply="", text=text)
    elif step.kind == "reply":
        from chargehand.agents.recorded import read_reply

        for note in output["notes"]:
            yield TranscriptEntry(speaker="person", attempt=attempt, reply=number, text=note)
        _note_calls(number, output, calls)
        reply, model = read_reply(output), output["model"]
        if reply.text:
            yield TranscriptEntry(speaker="model", attempt=attempt, reply=number, text=reply.text, model=model)
        for call in reply.calls:
            text = json.dumps(call.arguments, ensure_ascii=False)
            yield TranscriptEntry(
                speaker="call", attempt=attempt, reply=number, text=text, tool=call.name, model=model
            )
    elif step.kind == "call":
        # An act that may change files stores its output next to the resulting tree; a read-only act is its output.
        made = output.get("output", output)
        made_by = calls.get((number, step.index))
        yield TranscriptEntry(
            speaker="result",
            attempt=attempt,
            reply=number,
            text=made["text"],
            tool=made_by.name if made_by is not None else "",
            failed=made["failed"],
            artifact=made["artifact"],
        )
