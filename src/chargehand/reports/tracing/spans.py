"""The spans of a mission, a pure function of its log: correct despite kills, at no cost to the mission."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct, field

from chargehand.agents.recorded import read_reply
from chargehand.core import attempt_events as w
from chargehand.core import mission_events as m
from chargehand.core.events import Event, Payload, read_payload
from chargehand.core.steps import step_of
from chargehand.missions.journal import CHECKS
from chargehand.missions.transcript import parse_act

SpanKind = Literal["internal", "client"]
Attribute = str | int | float | bool
# Momentary events of a mission, with the attributes that are exported.
_NOTED: Mapping[str, tuple[str, ...]] = {
    "mission.claimed": ("worker", "epoch", "version"),
    "mission.released": ("worker",),
    "mission.interrupted": ("code",),
    "mission.paused": ("breakpoint",),
    "mission.resumed": (),
    "question.asked": ("question", "kind"),
    "question.answered": ("question",),
}
_FAILED = frozenset({"failed", "refused", "exhausted", "timed_out", "lost", "cut"})
_CHECK_FAILED = frozenset({"failed", "timed_out", "error"})


class SpanEvent(Struct, frozen=True, kw_only=True):
    """An event at one moment of a span."""

    name: str
    time: datetime
    attributes: dict[str, Attribute] = field(default_factory=dict)


class Span(Struct, frozen=True, kw_only=True):
    """A period of a mission; ids are hexadecimal, `parent` is "" for the first span of a trace.

    `problem` is why it failed, "" on success: a code or status, never a text of an agent.
    """

    trace: str
    id: str
    parent: str
    name: str
    start: datetime
    end: datetime
    kind: SpanKind = "internal"
    attributes: dict[str, Attribute] = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    problem: str = ""


def trace_id(mission: str) -> str:
    """Return the trace id of a mission: 32 hexadecimal digits derived from its id."""
    return hashlib.sha256(f"chargehand trace {mission}".encode()).hexdigest()[:32]


def span_id(mission: str, what: str) -> str:
    """Return the id of a mission's span: 16 digits, always the same for the same span."""
    return hashlib.sha256(f"chargehand span {mission} {what}".encode()).hexdigest()[:16]


def mission_spans(lines: Iterable[Event], *, after: int = 0) -> tuple[Span, ...]:
    """Return the spans of a mission from its log, in the order in which they ended; the mission's own is the last.

    With `after`, the number of a line, only spans that ended after it. An ended span is final: later events, also
    after the mission is continued or answered, add spans and change none. The mission of a task is in the trace of
    its coordinator.
    """
    builder = SpanBuilder()
    return tuple(span for line in lines for span in builder.take(line) if line.seq > after)


class _OpenSpan(Struct):
    start: datetime
    id: str
    number: int = 0
    agent: str = ""
    events: list[SpanEvent] = field(default_factory=list)


class SpanBuilder:
    """Builds spans from the lines of one log in order, from the first; `seq` is the number of the last line."""

    def __init__(self) -> None:
        self.seq = 0
        self._ended: list[Span] = []
        self._mission = self._trace = self._above = ""
        self._about: dict[str, Attribute | None] = {}
        self._root: _OpenSpan | None = None
        self._settled = False
        self._attempts: dict[str, _OpenSpan] = {}
        self._sandboxes: dict[str, str] = {}
        self._checks_began: datetime | None = None
        self._verdict: m.VerdictGiven | None = None
        self._promotion: datetime | None = None
        self._promoted: datetime | None = None
        self._tools: dict[tuple[int, int, int], str] = {}

    def take(self, line: Event) -> tuple[Span, ...]:
        """Process the next line, and return the spans that it ends."""
        self.seq = line.seq
        self._ended = []
        now = datetime.fromisoformat(line.time)
        payload = read_payload(line)
        if self._root is None or self._settled:
            self._begin(line, payload, now)
        if payload is None:  # erased, damaged, or of a newer version
            return ()
        if line.type in _NOTED and self._root is not None:
            attributes = {name: getattr(payload, name) for name in _NOTED[line.type]}
            self._root.events.append(SpanEvent(name=line.type, time=now, attributes=attributes))
        # By the event's name: `_take_model_called` handles `model.called`.
        take = getattr(self, f"_take_{line.type.replace('.', '_')}", None)
        if take is not None:
            take(payload, now, line)
        return tuple(self._ended)

    def _begin(self, line: Event, payload: Payload | None, now: datetime) -> None:
        """Begin the mission's span, or a span for what follows after it was settled."""
        if self._root is None:
            self._mission = line.mission
            parent = payload.parent if isinstance(payload, m.MissionCreated) else ""
            self._trace = trace_id(parent or line.mission)
            self._above = span_id(parent, "mission") if parent else ""
            self._root = _OpenSpan(now, span_id(line.mission, "mission"))
        else:
            self._above = span_id(self._mission, "mission")
            self._root = _OpenSpan(now, span_id(self._mission, f"mission {line.seq}"))
        self._settled = False

    def _add(
        self,
        name: str,
        what: str,
        start: datetime,
        end: datetime,
        *,
        id: str | None = None,
        parent: str | None = None,
        attributes: dict[str, Attribute | None] | None = None,
        problem: str = "",
        kind: SpanKind = "internal",
        events: Sequence[SpanEvent] = (),
    ) -> str:
        assert self._root is not None
        known = {key: value for key, value in (attributes or {}).items() if value not in (None, "")}
        own = id or span_id(self._mission, what)
        self._ended.append(
            Span(
                trace=self._trace,
                id=own,
                parent=self._root.id if parent is None else parent,
                name=name,
                start=min(start, end),
                end=end,
                kind=kind,
                attributes={"chargehand.mission": self._mission, **known},
                events=tuple(events),
                problem=problem,
            )
        )
        return own

    def _since(self, now: datetime, seconds: float, attempt: str = "") -> datetime:
        """Return the start of an activity with this duration, not before the start of its attempt."""
        within = self._attempts.get(attempt) or self._root
        assert within is not None
        # A damaged line may contain a value beyond any calendar.
        return now - timedelta(seconds=max(0.0, min(seconds, (now - within.start).total_seconds())))

    # --- the mission

    def _take_mission_created(self, payload: m.MissionCreated, now: datetime, line: Event) -> None:
        self._about = {
            "chargehand.project": payload.project,
            "chargehand.agent": payload.request.agent,
            "chargehand.task": payload.task,
            "chargehand.parent": payload.parent,
        }

    def _take_mission_admitted(self, payload: m.MissionAdmitted, now: datetime, line: Event) -> None:
        start = self._since(now, payload.seconds)
        self._add("wait", f"wait {line.seq}", start, now, attributes={"chargehand.waits_for": payload.waits_for})

    def _take_mission_finished(self, payload: m.MissionFinished, now: datetime, line: Event) -> None:
        assert self._root is not None
        # From its entry in the journal to its last effect.
        if self._promotion is not None and self._promoted is not None:
            begun = self._promotion
            self._add("promotion", f"promotion {begun.isoformat()}", begun, self._promoted)
        self._promotion = self._promoted = None
        over = payload.status not in ("waiting", "paused")
        for attempt in list(self._attempts) if over else ():
            self._end_attempt(attempt, now, "lost")
        codes = ",".join(reason.code for reason in payload.reasons)
        about = {**self._about, "chargehand.status": payload.status, "chargehand.reasons": codes}
        self._add(
            "mission", "mission", self._root.start, now, id=self._root.id, parent=self._above, attributes=about,
            events=self._root.events, problem=payload.status if payload.status in _FAILED else "",
        )  # fmt: skip
        self._settled = True

    # --- attempts and their activities

    def _take_attempt_started(self, payload: w.AttemptStarted, now: datetime, line: Event) -> None:
        own = span_id(self._mission, f"attempt {payload.attempt}")
        self._attempts[payload.attempt] = _OpenSpan(now, own, payload.number, payload.agent)

    def _take_attempt_resumed(self, payload: w.AttemptResumed, now: datetime, line: Event) -> None:
        attempt = self._attempts.get(payload.attempt)
        if attempt is not None:
            attempt.events.append(SpanEvent(name=line.type, time=now))

    def _take_attempt_finished(self, payload: m.AttemptFinished, now: datetime, line: Event) -> None:
        cost = payload.cost_usd if payload.cost_known else None
        self._end_attempt(payload.attempt, now, payload.status, cost=cost)

    def _end_attempt(self, attempt: str, now: datetime, status: str, *, cost: float | None = None) -> None:
        opened = self._attempts.pop(attempt, None)
        if opened is None:
            return
        about: dict[str, Attribute | None] = {
            "chargehand.attempt": attempt,
            "chargehand.attempt.number": opened.number,
            "chargehand.agent": opened.agent,
            "chargehand.status": status,
            "chargehand.cost_usd": cost,
        }
        problem = status if status in _FAILED else ""
        what = f"attempt {attempt}"
        self._add("attempt", what, opened.start, now, attributes=about, problem=problem, events=opened.events)

    def _take_model_called(self, payload: w.ModelCalled, now: datetime, line: Event) -> None:
        operation = "embeddings" if payload.operation == "embed" else "chat"
        about: dict[str, Attribute | None] = {
            "gen_ai.operation.name": operation,
            "gen_ai.request.model": payload.upstream or payload.model,
            "gen_ai.usage.input_tokens": payload.input_tokens,
            "gen_ai.usage.output_tokens": payload.output_tokens,
            "chargehand.attempt": payload.attempt,
            "chargehand.turn": payload.turn,
            "chargehand.status": payload.status,
            "chargehand.cost_usd": payload.cost_usd if payload.cost_known else None,
            "http.response.status_code": payload.http_status or None,
        }
        self._add(
            f"{operation} {payload.model}", f"call {payload.call} {line.seq}",
            self._since(now, payload.seconds, payload.attempt), now, kind="client", attributes=about,
            parent=self._parent(payload.attempt), problem=payload.status if payload.status in _FAILED else "",
        )  # fmt: skip

    def _parent(self, attempt: str) -> str | None:
        opened = self._attempts.get(attempt)
        return opened.id if opened is not None else None

    def _take_sandbox_opened(self, payload: w.SandboxOpened, now: datetime, line: Event) -> None:
        if payload.attempt is not None:
            self._sandboxes[payload.sandbox] = payload.attempt
        if payload.purpose == CHECKS:
            self._checks_began = now

    def _take_sandbox_closed(self, payload: w.SandboxClosed, now: datetime, line: Event) -> None:
        about: dict[str, Attribute | None] = {
            "chargehand.sandbox": payload.sandbox,
            "chargehand.ready_seconds": payload.ready_seconds,
            "chargehand.peak_memory": payload.peak_memory,
            "chargehand.cpu_seconds": payload.cpu_seconds,
        }
        attempt = self._sandboxes.pop(payload.sandbox, "")
        self._add(
            f"sandbox {payload.purpose}", f"sandbox {payload.sandbox}", self._since(now, payload.seconds, attempt),
            now, attributes=about, parent=self._parent(attempt),
        )  # fmt: skip

    def _take_command_finished(self, payload: w.CommandFinished, now: datetime, line: Event) -> None:
        attempt = self._sandboxes.get(payload.sandbox, "")
        about: dict[str, Attribute | None] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "command",
            "process.exit_code": payload.exit_code,
            "chargehand.limit": payload.limit,
        }
        self._add(
            "execute_tool command", f"command {line.seq}", self._since(now, payload.seconds, attempt), now,
            attributes=about, parent=self._parent(attempt), problem="failed" if payload.exit_code else "",
        )  # fmt: skip

    # --- recorded steps

    def _take_step_finished(self, payload: m.StepFinished, now: datetime, line: Event) -> None:
        act = parse_act(payload.step)
        if act is not None and act[1].kind == "reply":
            # The names of the tools that a reply calls; a large reply is not in the log.
            with contextlib.suppress(KeyError, TypeError, AttributeError):
                calls = read_reply(payload.output).calls
                self._tools |= {(act[0], act[1].turn, call.index): call.name for call in calls}
        elif act is not None and act[1].kind == "call":
            self._add_tool_call(act[0], act[1].turn, act[1].index, payload, now, line)
        elif "/work/" not in payload.step:
            self._add_step(payload, now, line)

    def _add_tool_call(
        self, number: int, turn: int, index: int, payload: m.StepFinished, now: datetime, line: Event
    ) -> None:
        tool = self._tools.get((number, turn, index), "unknown")
        attempt = next((name for name, each in self._attempts.items() if each.number == number), "")
        about: dict[str, Attribute | None] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "chargehand.attempt": attempt,
            "chargehand.turn": turn,
        }
        start = self._since(now, payload.seconds, attempt)
        what = f"step {payload.step} {line.seq}"
        self._add(f"execute_tool {tool}", what, start, now, attributes=about, parent=self._parent(attempt))

    def _add_step(self, payload: m.StepFinished, now: datetime, line: Event) -> None:
        number = payload.step.split("/")[1] if payload.step.startswith("attempt/") else ""
        attempt = next((name for name, each in self._attempts.items() if str(each.number) == number), "")
        about: dict[str, Attribute | None] = {"chargehand.step": step_of(payload)}
        verdict, self._verdict = self._verdict, None
        if verdict is not None:
            about |= {"chargehand.verdict": verdict.verdict.status, "chargehand.tree": verdict.verdict.tree}
        start = self._since(now, payload.seconds, attempt)
        if payload.step.endswith("/work") and attempt:
            # Its seconds exclude the time in which its worker was dead; its span includes it.
            start = self._attempts[attempt].start
        what = f"step {payload.step} {line.seq}"
        own = self._add(payload.step, what, start, now, attributes=about, parent=self._parent(attempt))
        if verdict is not None and not verdict.reused:
            self._add_checks(verdict, start, now, parent=own, line=line)

    def _take_verdict_given(self, payload: m.VerdictGiven, now: datetime, line: Event) -> None:
        self._verdict = payload

    def _add_checks(
        self, given: m.VerdictGiven, start: datetime, now: datetime, *, parent: str, line: Event
    ) -> None:
        """Add a span for each check; only the durations are recorded, and checks run one after the other."""
        begins = min(now, max(start, self._checks_began or start))
        for number, check in enumerate(given.verdict.checks):
            left = (now - begins).total_seconds()
            ends = begins + timedelta(seconds=max(0.0, min(check.seconds, left)))
            about: dict[str, Attribute | None] = {
                "chargehand.check.number": number + 1,
                "chargehand.check.status": check.status,
                "chargehand.check.tests": check.tests,
                "process.exit_code": check.exit_code,
            }
            self._add(
                "check", f"check {line.seq} {number}", begins, ends, parent=parent, attributes=about,
                problem=check.status if check.status in _CHECK_FAILED else "",
            )  # fmt: skip
            begins = ends
        self._checks_began = None

    # --- promotion

    def _take_promotion_prepared(self, payload: m.PromotionPrepared, now: datetime, line: Event) -> None:
        # Repeated after a crash: the promotion began with the first one.
        self._promotion = self._promotion or now

    def _take_promotion_done(self, payload: m.PromotionDone, now: datetime, line: Event) -> None:
        self._promoted = now

    def _take_export_changed(self, payload: m.ExportChanged, now: datetime, line: Event) -> None:
        self._promoted = now

    def _take_apply_changed(self, payload: m.ApplyChanged, now: datetime, line: Event) -> None:
        self._promoted = now
