"""Replays a recording as long as what is asked is what was asked then."""

from __future__ import annotations

import contextlib
import json
import operator
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chargehand.core.clock import Clock, SystemClock
from chargehand.core.errors import UpstreamError
from chargehand.models._request_matching import RunPairs
from chargehand.models._swe_agent_runs import SUFFIX, load_trajectory
from chargehand.models.contract import Call, Operation, UpstreamReply
from chargehand.models.recording import FORMAT, AttemptOrdinals, Exchange, Recording, body_pieces, read_source
from chargehand.models.redaction import Redactor
from chargehand.models.scripted_replies import ONCE, ScriptedReply, decode_document, decode_events, error_reply
from chargehand.models.scripts import Script, ScriptLine
from chargehand.models.serving.side_requests import is_bare

_Key = tuple[Operation, int]


@dataclass(slots=True, kw_only=True)
class RecordedTurn:
    """A turn and what its tries were answered; `bare`: its request offered no tool.

    `place` is its number among the turns of its attempt that are bare as it is, or are not.
    """

    attempt: int
    number: int
    bare: bool
    place: int = 0
    tries: list[Exchange] = field(default_factory=list)
    taken: int = 0

    @property
    def next(self) -> Exchange:
        """What is due: the next try, or the last one once more."""
        return self.tries[min(self.taken, len(self.tries) - 1)]


class RecordedTurns:
    """The turns of a recording, and which call of this run has which."""

    def __init__(self, recording: Recording, clock: Clock) -> None:
        self._clock = clock
        self._created = _moment(recording.created)
        self._turns: dict[_Key, dict[int, RecordedTurn]] = defaultdict(dict)
        self._given: dict[tuple[_Key, int], RecordedTurn] = {}
        self._pairs: dict[int, RunPairs] = {}
        self._works: set[int] = set()
        self._begun: dict[int, datetime | None] = {}
        for exchange in recording.exchanges:
            self._add(exchange)
        for (operation, attempt), turns in self._turns.items():
            bares = 0
            for turn in sorted(turns.values(), key=lambda turn: turn.number):
                beside = operation == "reply" and attempt in self._works
                turn.place = bares + 1 if beside and turn.bare else turn.number - bares
                bares += beside and turn.bare

    def waiting(self, call: Call, attempt: int) -> Sequence[RecordedTurn]:
        """Return the turns that may answer a call, the likeliest first: its own, else those that nobody has."""
        key = (call.operation, attempt)
        given = self._given.get((key, call.turn))
        if given is not None:
            return [given]
        bare = call.operation == "reply" and is_bare(call.body)
        due = self._place(call, attempt)
        free = [turn for turn in self._turns[key].values() if not turn.taken and turn.bare == bare]
        return sorted(free, key=lambda turn: turn.place != due)

    def recorded(self, call: Call, attempt: int) -> bool:
        """Return whether there is a turn of that place, whoever has it."""
        bare, due = call.operation == "reply" and is_bare(call.body), self._place(call, attempt)
        return any(
            (turn.bare, turn.place) == (bare, due) for turn in self._turns[call.operation, attempt].values()
        )

    def _place(self, call: Call, attempt: int) -> int:
        if call.operation != "reply" or attempt not in self._works:
            return call.turn
        return call.bare + 1 if is_bare(call.body) else call.turn - call.bare

    def take(self, turn: RecordedTurn, call: Call) -> Exchange:
        """Give a turn to a call, for all its tries; return the exchange that is due."""
        self._given[(call.operation, turn.attempt), call.turn] = turn
        exchange = turn.next
        turn.taken += 1
        return exchange

    def beside(self, call: Call, attempt: int) -> bool:
        """Return whether a call is beside its attempt's work: a count, or without tools where others have some."""
        return call.operation == "count" or (attempt in self._works and is_bare(call.body))

    def pairs(self, attempt: int) -> RunPairs:
        """Return which ids of an attempt are which today."""
        if attempt not in self._pairs:
            exchanges = (
                turn.next
                for (_, number), turns in self._turns.items()
                if number == attempt
                for turn in turns.values()
            )
            then = next((at for exchange in exchanges if (at := _moment(exchange.at))), self._created)
            self._pairs[attempt] = RunPairs(then=then, now=self._clock.now())
        return self._pairs[attempt]

    def _add(self, exchange: Exchange) -> None:
        bare = exchange.operation == "reply" and is_bare(exchange.request)
        if exchange.operation == "reply" and not bare:
            self._works.add(exchange.attempt)
        self._begun.setdefault(exchange.attempt, _moment(exchange.at))
        turns = self._turns[exchange.operation, exchange.attempt]
        known = turns.setdefault(
            exchange.turn, RecordedTurn(attempt=exchange.attempt, number=exchange.turn, bare=bare)
        )
        known.tries.append(exchange)


def _moment(text: str) -> datetime | None:
    with contextlib.suppress(ValueError):
        found = datetime.fromisoformat(text)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return None


VOLATILE = frozenset(
    {
        "client_metadata",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "metadata",
        "model",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "user",
    }
)
"""Fields of a request that may differ: who asks, under what name, and how much the budget lets through."""
_LONGEST_SHOWN = 80
_BEFORE = 30
_ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first place (a JSON pointer) where a call is not what was recorded, with both values, shortened."""

    attempt: int
    turn: int
    pointer: str
    recorded: str
    sent: str

    def __str__(self) -> str:
        return (
            f"attempt {self.attempt}, turn {self.turn} differs from the recording at {self.pointer or '/'}: "
            f"recorded {self.recorded}, sent {self.sent}"
        )


class ReplayUpstream:
    """Answers from a recording by attempt and turn with the recorded status, headers and body.

    A call gets what its turn was answered, or, where programs ask several things at once, the first that the same
    request of the attempt was. Ids, hashes, moments and durations may be those of another run (`RunPairs`). A call
    that nothing recorded equals gets 409, and so does every later one of its attempt, but where it was beside the
    attempt's work: without tools in an attempt that has them, or a count. `lenient` answers it by its turn all the
    same. `on_divergence` is told of each. A turn that was not recorded gets 410. Neither is to be tried again.
    `redactor` must know the templates that the recording was made with, with today's values; `attempts` (id to
    number) says which attempt is which, else they are numbered as they come.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        redactor: Redactor | None = None,
        attempts: Mapping[str, int] | None = None,
        lenient: bool = False,
        on_divergence: Callable[[Divergence], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._redactor = redactor or Redactor()
        self._attempts = AttemptOrdinals(attempts)
        self._lenient = lenient
        self._tell = on_divergence or _nobody
        self._diverged: dict[int, Divergence] = {}
        self._turns = RecordedTurns(recording, clock or SystemClock())

    async def send(self, call: Call) -> UpstreamReply:
        """Answer as the recording has it; raises `UpstreamError` where no reply came then."""
        attempt = self._attempts.of(call.attempt)
        if attempt in self._diverged:
            return _refused(call, self._diverged[attempt])
        body = normalised(self._redactor.tree(call.body))
        turns = self._turns.waiting(call, attempt)
        pairs = self._turns.pairs(attempt)
        found = next((turn for turn in turns if _difference(call, body, turn, pairs) is None), None)
        if found is None and not (turns and self._turns.recorded(call, attempt)):
            message = f"the recording has no turn {call.turn} of attempt {attempt}"
            return error_reply(call.dialect, 410, "recording_exhausted", message, headers=ONCE)
        if found is None:
            divergence = _divergence(call, body, turns[0], pairs)
            self._tell(divergence)
            exchange = turns[0].next
            if not self._lenient or call.dialect != exchange.dialect or _streamed(exchange) != call.stream:
                if not self._turns.beside(call, attempt):
                    self._diverged[attempt] = divergence
                return _refused(call, divergence)
            found = turns[0]
        return self._replayed(self._turns.take(found, call), pairs)

    async def close(self) -> None:
        """Nothing is held open."""

    def _replayed(self, exchange: Exchange, pairs: RunPairs) -> UpstreamReply:
        if exchange.status == 0:
            raise _as_recorded(exchange)
        pieces = body_pieces(of_today(self._redactor.expand(exchange.reply), pairs.todays))
        return UpstreamReply(
            status=exchange.status, headers=dict(exchange.headers), chunks=_pieces(pieces, exchange)
        )


def _difference(
    call: Call, body: Mapping[str, Any], turn: RecordedTurn, pairs: RunPairs
) -> tuple[str, Any, Any] | None:
    exchange = turn.next
    if call.dialect != exchange.dialect:
        return "", exchange.dialect, call.dialect
    found = first_difference(normalised(exchange.request), body, alike=pairs.alike)
    if found is None:
        pairs.keep()
    else:
        pairs.forget()
    return found


def _divergence(call: Call, body: Mapping[str, Any], turn: RecordedTurn, pairs: RunPairs) -> Divergence:
    pointer, recorded, sent = _difference(call, body, turn, pairs) or ("", None, None)
    was, now = _shown(recorded, sent)
    return Divergence(attempt=turn.attempt, turn=call.turn, pointer=pointer, recorded=was, sent=now)


def of_today(reply: dict[str, Any], todays: Mapping[str, str]) -> dict[str, Any]:
    """Return a reply with the ids of this run in place of those of then, also where a stream spreads them."""
    if not todays:
        return reply
    names = {f"chargehand-run-{number}": was for number, was in enumerate(todays)}
    then = Redactor(templates=names)
    named = {"sse": then.stream(reply["sse"])} if "sse" in reply else then.tree(reply)
    made: dict[str, Any] = Redactor(templates={name: todays[was] for name, was in names.items()}).expand(named)
    return made


async def _pieces(pieces: list[bytes], exchange: Exchange) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    if exchange.cut:
        raise _as_recorded(exchange)


def _as_recorded(exchange: Exchange) -> UpstreamError:
    message = (exchange.error or {}).get("message") or f"the recorded reply to call {exchange.call!r} broke off"
    if (exchange.error or {}).get("code") == "upstream_timeout":
        return UpstreamError(message, code="upstream_timeout")
    return UpstreamError(message, code="upstream_cut" if exchange.status else "upstream_unreachable")


def _nobody(divergence: Divergence) -> None:
    """Take note of nothing."""


def _refused(call: Call, divergence: Divergence) -> UpstreamReply:
    return error_reply(call.dialect, 409, "replay_diverged", str(divergence), headers=ONCE)


def _streamed(exchange: Exchange) -> bool:
    return exchange.request.get("stream") is True


def normalised(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request without what may differ from run to run."""
    kept = {key: value for key, value in request.items() if key not in VOLATILE and value is not None}
    config = kept.get("generationConfig")
    if isinstance(config, Mapping):
        kept["generationConfig"] = {key: value for key, value in config.items() if key != "maxOutputTokens"}
    return {**kept, "stream": request.get("stream") is True}


def first_difference(
    recorded: Any, sent: Any, pointer: str = "", *, alike: Callable[[str, str], bool] = operator.eq
) -> tuple[str, Any, Any] | None:
    """Return the JSON pointer of the first place where two trees differ, and what stands there in each.

    `alike` says which texts count as the same.
    """
    if isinstance(recorded, Mapping) and isinstance(sent, Mapping):
        keys = [*recorded, *(key for key in sent if key not in recorded)]
        pairs = [(str(key), recorded.get(key, _ABSENT), sent.get(key, _ABSENT)) for key in keys]
    elif isinstance(recorded, list) and isinstance(sent, list):
        longest = range(max(len(recorded), len(sent)))
        pairs = [(str(n), _at(recorded, n), _at(sent, n)) for n in longest]
    elif isinstance(recorded, str) and isinstance(sent, str):
        return None if alike(recorded, sent) else (pointer, recorded, sent)
    else:
        same = recorded == sent and isinstance(recorded, bool) == isinstance(sent, bool)
        return None if same else (pointer, recorded, sent)
    for key, was, now in pairs:
        escaped = key.replace("~", "~0").replace("/", "~1")
        found = first_difference(was, now, f"{pointer}/{escaped}", alike=alike)
        if found is not None:
            return found
    return None


def difference(
    recorded: Any, sent: Any, *, alike: Callable[[str, str], bool] = operator.eq
) -> tuple[str, str, str]:
    """Return where two trees differ first, and what stands there in each, shortened."""
    pointer, was, now = first_difference(recorded, sent, alike=alike) or ("", recorded, sent)
    return pointer, *_shown(was, now)


def _at(items: list[Any], position: int) -> Any:
    return items[position] if position < len(items) else _ABSENT


def _shown(was: Any, now: Any) -> tuple[str, str]:
    """Return two values shortened; of long texts, from shortly before the place where they part."""
    if isinstance(was, str) and isinstance(now, str):
        same = next((n for n, (one, other) in enumerate(zip(was, now, strict=False)) if one != other), _BEFORE)
        start = max(0, same - _BEFORE)
        if start and max(len(was), len(now)) > _LONGEST_SHOWN:
            was, now = f"…{was[start:]}", f"…{now[start:]}"
    return _short(was), _short(now)


def _short(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def load_script(path: Path) -> Script:
    """Return the script that a file holds: as it is written, the replies of a recording, or a run (`.traj`).

    Raises `UsageError` (`script_invalid`, `recording_invalid`, `file_unreadable`).
    """
    content, name = read_source(path, "script")
    if path.suffix == SUFFIX:
        return load_trajectory(content, name)
    is_recording = f'"{FORMAT}"'.encode() in content.partition(b"\n")[0]
    return script_from(Recording.load(path)) if is_recording else Script.load(path)


def script_from(recording: Recording) -> Script:
    """Return what the models of a recording said as a script, which takes calls as they come."""
    lines = tuple(
        ScriptLine(line=number, attempt=exchange.attempt, turn=exchange.turn, reply=_scripted(exchange))
        for number, exchange in enumerate(recording.exchanges, start=2)
        if exchange.operation == "reply"
    )
    return Script(lines=lines, note=recording.note)


def _scripted(exchange: Exchange) -> ScriptedReply:
    if exchange.status >= 400:
        after = exchange.headers.get("retry-after", "")
        return ScriptedReply(fault=f"{exchange.status}/{after}" if after.isdecimal() else str(exchange.status))
    said = _said(exchange)
    if exchange.cut or exchange.status == 0:
        return ScriptedReply(text=said.text, tools=said.tools, fault="cut")
    return said


def _said(exchange: Exchange) -> ScriptedReply:
    if "sse" in exchange.reply:
        return decode_events(exchange.dialect, [one.get("data") for one in exchange.reply["sse"]])
    return decode_document(exchange.dialect, exchange.reply.get("json"))
