"""Replays a recording as long as each call equals the recorded one."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from chargehand.core.clock import Clock, SystemClock
from chargehand.core.errors import UpstreamError
from chargehand.core.redaction import Redactor
from chargehand.models._swe_agent_runs import SUFFIX, load_swe_agent_run
from chargehand.models.contract import ModelCall, Operation, UpstreamReply
from chargehand.models.dialects.base import is_bare
from chargehand.models.recording import (
    FORMAT,
    AttemptOrdinals,
    RecordedExchange,
    Recording,
    read_source,
    recorded_pieces,
)
from chargehand.models.registries import DIALECTS
from chargehand.models.request_matching import (
    Divergence,
    RunPairs,
    find_difference,
    normalise_request,
    shorten_pair,
    update_ids,
)
from chargehand.models.scripted_replies import (
    NO_RETRY,
    ScriptedReply,
    decode_document,
    decode_events,
    error_reply,
)
from chargehand.models.scripts import Script, ScriptLine

# Operation and number of the attempt.
_TurnKey = tuple[Operation, int]


class _RecordedTurn(Struct, kw_only=True):
    """A turn and the replies to its tries; `bare`: its request offered no tool.

    `place` is its number among the turns of its attempt with the same `bare`.
    """

    attempt: int
    number: int
    bare: bool
    place: int = 0
    tries: list[RecordedExchange] = field(default_factory=list)
    taken: int = 0

    @property
    def next(self) -> RecordedExchange:
        """The exchange that is due: the next try, or the last one again."""
        return self.tries[min(self.taken, len(self.tries) - 1)]


class _RecordedTurns:
    """The turns of a recording, and the assignment of turns to the calls of this run."""

    def __init__(self, recording: Recording, clock: Clock) -> None:
        self._clock = clock
        self._created = _read_moment(recording.created)
        self._turns: dict[_TurnKey, dict[int, _RecordedTurn]] = defaultdict(dict)
        self._given: dict[tuple[_TurnKey, int], _RecordedTurn] = {}
        self._pairs: dict[int, RunPairs] = {}
        self._working: set[int] = set()
        for exchange in recording.exchanges:
            bare = exchange.operation == "reply" and is_bare(exchange.request)
            if exchange.operation == "reply" and not bare:
                self._working.add(exchange.attempt)
            turn = _RecordedTurn(attempt=exchange.attempt, number=exchange.turn, bare=bare)
            turns = self._turns[exchange.operation, exchange.attempt]
            turns.setdefault(exchange.turn, turn).tries.append(exchange)
        for (operation, attempt), turns in self._turns.items():
            bares = 0
            # Requests without tools have their own count: titles come at any moment, and would shift all later
            # turns.
            for turn in sorted(turns.values(), key=lambda turn: turn.number):
                beside = operation == "reply" and attempt in self._working
                turn.place = bares + 1 if beside and turn.bare else turn.number - bares
                bares += beside and turn.bare

    def list_waiting(self, call: ModelCall, attempt: int) -> Sequence[_RecordedTurn]:
        """Return the turns that may answer a call, likeliest first: its assigned turn, or else the free ones."""
        key = (call.operation, attempt)
        given = self._given.get((key, call.turn))
        if given is not None:
            return [given]
        bare = call.operation == "reply" and is_bare(call.body)
        due = self._find_place(call, attempt)
        free = [turn for turn in self._turns[key].values() if not turn.taken and turn.bare == bare]
        return sorted(free, key=lambda turn: turn.place != due)

    def is_recorded(self, call: ModelCall, attempt: int) -> bool:
        """Return whether the recording has a turn at that place, free or not."""
        wanted = (call.operation == "reply" and is_bare(call.body), self._find_place(call, attempt))
        return any((turn.bare, turn.place) == wanted for turn in self._turns[call.operation, attempt].values())

    def _find_place(self, call: ModelCall, attempt: int) -> int:
        if call.operation != "reply" or attempt not in self._working:
            return call.turn
        return call.bare + 1 if is_bare(call.body) else call.turn - call.bare

    def take(self, turn: _RecordedTurn, call: ModelCall) -> RecordedExchange:
        """Assign a turn to a call, for all its tries; return the exchange that is due."""
        self._given[(call.operation, turn.attempt), call.turn] = turn
        exchange = turn.next
        turn.taken += 1
        return exchange

    def is_beside(self, call: ModelCall, attempt: int) -> bool:
        """Return whether a call is outside its attempt's work: a count, or without tools if others have some."""
        return call.operation == "count" or (attempt in self._working and is_bare(call.body))

    def pair_runs(self, attempt: int) -> RunPairs:
        """Return which ids of a recorded attempt correspond to which ids of this run."""
        if attempt not in self._pairs:
            exchanges = (
                turn.next
                for (_, number), turns in self._turns.items()
                if number == attempt
                for turn in turns.values()
            )
            then = next((at for exchange in exchanges if (at := _read_moment(exchange.at))), self._created)
            self._pairs[attempt] = RunPairs(then=then, now=self._clock.now())
        return self._pairs[attempt]


def _read_moment(text: str) -> datetime | None:
    with contextlib.suppress(ValueError):
        found = datetime.fromisoformat(text)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return None


class ReplayUpstream:
    """Answers from a recording by attempt and turn with the recorded status, headers and body.

    A call gets the reply of its turn or, if programs ask several things at once, the first one recorded for the
    same request of the attempt. Ids, hashes, moments and durations may be those of another run (`RunPairs`). A
    call that equals no recorded one gets 409, and so does every later call of its attempt; a call outside the
    attempt's work (without tools in an attempt that has them, or a count) does not affect later ones. With
    `lenient` such a call is answered by its turn anyway. `on_divergence` is called for each. A turn that was not
    recorded gets 410. Clients must not retry either status.

    `redactor` must know the templates that the recording was made with, with today's values; `attempts` (id to
    number) identifies the attempts, which are otherwise numbered in order of appearance.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        redactor: Redactor | None = None,
        attempts: Mapping[str, int] | None = None,
        lenient: bool = False,
        on_divergence: Callable[[Divergence], None] = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self._redactor = redactor or Redactor()
        self._attempts = AttemptOrdinals(attempts)
        self._lenient = lenient
        self._on_divergence = on_divergence
        self._diverged: dict[int, Divergence] = {}
        self._turns = _RecordedTurns(recording, clock or SystemClock())

    async def send(self, call: ModelCall) -> UpstreamReply:
        """Answer from the recording; raises `UpstreamError` if no reply was recorded."""
        attempt = self._attempts.of(call.attempt)
        if attempt in self._diverged:
            return _refuse(call, self._diverged[attempt])
        body = normalise_request(self._redactor.tree(call.body))
        turns = self._turns.list_waiting(call, attempt)
        pairs = self._turns.pair_runs(attempt)
        found = next((turn for turn in turns if _find_difference(call, body, turn, pairs) is None), None)
        # Official clients retry a 409, which would change nothing: both 410 and 409 forbid a retry.
        if found is None and not (turns and self._turns.is_recorded(call, attempt)):
            message = f"the recording has no turn {call.turn} of attempt {attempt}"
            return error_reply(DIALECTS[call.dialect], 410, "recording_exhausted", message, headers=NO_RETRY)
        if found is None:
            found = turns[0]
            pointer, recorded, sent = _find_difference(call, body, found, pairs) or ("", None, None)
            was, now = shorten_pair(recorded, sent)
            divergence = Divergence(attempt=found.attempt, turn=call.turn, pointer=pointer, recorded=was, sent=now)
            self._on_divergence(divergence)
            streamed = found.next.request.get("stream") is True
            if not self._lenient or (call.dialect, call.stream) != (found.next.dialect, streamed):
                if not self._turns.is_beside(call, attempt):
                    self._diverged[attempt] = divergence
                return _refuse(call, divergence)
        exchange = self._turns.take(found, call)
        if exchange.status == 0:
            raise _to_error(exchange)
        pieces = recorded_pieces(update_ids(self._redactor.expand(exchange.reply), pairs.todays))

        async def chunks() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece
            if exchange.cut:
                raise _to_error(exchange)

        return UpstreamReply(status=exchange.status, headers=dict(exchange.headers), chunks=chunks())

    async def close(self) -> None:
        """Do nothing: nothing is held open."""


def _find_difference(
    call: ModelCall, body: Mapping[str, Any], turn: _RecordedTurn, pairs: RunPairs
) -> tuple[str, Any, Any] | None:
    exchange = turn.next
    if call.dialect != exchange.dialect:
        return "", exchange.dialect, call.dialect
    found = find_difference(normalise_request(exchange.request), body, alike=pairs.is_alike)
    if found is None:
        pairs.confirm()
    else:
        pairs.forget()
    return found


def _to_error(exchange: RecordedExchange) -> UpstreamError:
    message = (exchange.error or {}).get("message") or f"the recorded reply to call {exchange.call!r} broke off"
    if (exchange.error or {}).get("code") == "upstream_timeout":
        return UpstreamError(message, code="upstream_timeout")
    return UpstreamError(message, code="upstream_cut" if exchange.status else "upstream_unreachable")


def _refuse(call: ModelCall, divergence: Divergence) -> UpstreamReply:
    return error_reply(DIALECTS[call.dialect], 409, "replay_diverged", str(divergence), headers=NO_RETRY)


def load_script(path: Path) -> Script:
    """Load a script from a file: a script, the replies of a recording, or a SWE-agent run (`.traj`).

    Raises `UsageError` (`script_invalid`, `recording_invalid`, `file_unreadable`).
    """
    content, name = read_source(path, "script")
    if path.suffix == SUFFIX:
        return load_swe_agent_run(content, name)
    is_recording = f'"{FORMAT}"'.encode() in content.partition(b"\n")[0]
    return script_from_recording(Recording.load(path)) if is_recording else Script.load(path)


def script_from_recording(recording: Recording) -> Script:
    """Return the replies in a recording as a script, which answers calls in any order."""
    lines = tuple(
        ScriptLine(line=number, attempt=exchange.attempt, turn=exchange.turn, reply=_to_scripted(exchange))
        for number, exchange in enumerate(recording.exchanges, start=2)
        if exchange.operation == "reply"
    )
    return Script(lines=lines, note=recording.note)


def _to_scripted(exchange: RecordedExchange) -> ScriptedReply:
    if exchange.status >= 400:
        after = exchange.headers.get("retry-after", "")
        return ScriptedReply(fault=f"{exchange.status}/{after}" if after.isdecimal() else str(exchange.status))
    dialect = DIALECTS[exchange.dialect]
    if "sse" in exchange.reply:
        said = decode_events(dialect, [one.get("data") for one in exchange.reply["sse"]])
    else:
        said = decode_document(dialect, exchange.reply.get("json"))
    if exchange.cut or exchange.status == 0:
        return ScriptedReply(text=said.text, tools=said.tools, fault="cut")
    return said
