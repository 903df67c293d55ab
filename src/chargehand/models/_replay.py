"""Replays a recording as long as what is asked is what was asked then."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from chargehand.core import UpstreamError
from chargehand.models._attempts import AttemptOrdinals, Turns
from chargehand.models._call_names import RunNames
from chargehand.models._contract import Call, Operation, UpstreamReply
from chargehand.models._decode import decode_document, decode_events
from chargehand.models._recording import FORMAT, Exchange, Recording, body_pieces, read_source
from chargehand.models._redact import Redactor
from chargehand.models._render import ScriptedReply, error_reply
from chargehand.models._script import Script, ScriptLine
from chargehand.models._trajectory import SUFFIX, load_trajectory

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

    A call that is not what was recorded then gets 409, and so does every later one of its attempt; `lenient`
    answers it by its turn all the same. `on_divergence` is told of each. A turn that was not recorded gets 410.
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
    ) -> None:
        self._redactor = redactor or Redactor()
        self._attempts = AttemptOrdinals(attempts)
        self._lenient = lenient
        self._tell = on_divergence or _nobody
        self._diverged: dict[int, Divergence] = {}
        # Ids that requests hold differ from run to run: by their order those of then are those of now.
        self._then: defaultdict[int, RunNames] = defaultdict(RunNames)
        self._now: defaultdict[int, RunNames] = defaultdict(RunNames)
        self._turns: dict[Operation, Turns[Exchange]] = {name: Turns() for name in get_args(Operation)}
        for exchange in recording.exchanges:
            self._turns[exchange.operation].add(exchange.attempt, exchange.turn, exchange)

    async def send(self, call: Call) -> UpstreamReply:
        """Answer as the recording has it; raises `UpstreamError` where no reply came then."""
        attempt = self._attempts.of(call.attempt)
        if attempt in self._diverged:
            return _refused(call, self._diverged[attempt])
        exchange = self._turns[call.operation].take(attempt, call.turn)
        if exchange is None:
            message = f"the recording has no turn {call.turn} of attempt {attempt}"
            return error_reply(call.dialect, 410, "recording_exhausted", message)
        divergence = self._compare(call, exchange)
        if divergence is not None:
            self._tell(divergence)
            if not self._lenient or call.dialect != exchange.dialect or _streamed(exchange) != call.stream:
                self._diverged[attempt] = divergence
                return _refused(call, divergence)
        return self._replayed(exchange)

    async def close(self) -> None:
        """Nothing is held open."""

    def _compare(self, call: Call, exchange: Exchange) -> Divergence | None:
        found: tuple[str, Any, Any] | None = ("", exchange.dialect, call.dialect)
        if call.dialect == exchange.dialect:
            sent = self._now[exchange.attempt].asked(normalised(self._redactor.tree(call.body)))
            found = first_difference(self._then[exchange.attempt].asked(normalised(exchange.request)), sent)
        if found is None:
            return None
        pointer, recorded, sent = found
        return Divergence(
            attempt=exchange.attempt, turn=call.turn, pointer=pointer, recorded=_short(recorded), sent=_short(sent)
        )

    def _replayed(self, exchange: Exchange) -> UpstreamReply:
        if exchange.status == 0:
            raise _as_recorded(exchange)
        named = self._then[exchange.attempt].answered(exchange.reply)
        pieces = body_pieces(self._now[exchange.attempt].expand(self._redactor.expand(named)))
        return UpstreamReply(
            status=exchange.status, headers=dict(exchange.headers), chunks=_pieces(pieces, exchange)
        )


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
    return error_reply(call.dialect, 409, "replay_diverged", str(divergence))


def _streamed(exchange: Exchange) -> bool:
    return exchange.request.get("stream") is True


def normalised(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request without what may differ from run to run."""
    kept = {key: value for key, value in request.items() if key not in VOLATILE and value is not None}
    config = kept.get("generationConfig")
    if isinstance(config, Mapping):
        kept["generationConfig"] = {key: value for key, value in config.items() if key != "maxOutputTokens"}
    return {**kept, "stream": request.get("stream") is True}


def first_difference(recorded: Any, sent: Any, pointer: str = "") -> tuple[str, Any, Any] | None:
    """Return the JSON pointer of the first place where two trees differ, and what stands there in each."""
    if isinstance(recorded, Mapping) and isinstance(sent, Mapping):
        keys = [*recorded, *(key for key in sent if key not in recorded)]
        pairs = [(str(key), recorded.get(key, _ABSENT), sent.get(key, _ABSENT)) for key in keys]
    elif isinstance(recorded, list) and isinstance(sent, list):
        longest = range(max(len(recorded), len(sent)))
        pairs = [(str(n), _at(recorded, n), _at(sent, n)) for n in longest]
    else:
        same = recorded == sent and isinstance(recorded, bool) == isinstance(sent, bool)
        return None if same else (pointer, recorded, sent)
    for key, was, now in pairs:
        escaped = key.replace("~", "~0").replace("/", "~1")
        found = first_difference(was, now, f"{pointer}/{escaped}")
        if found is not None:
            return found
    return None


def difference(recorded: Any, sent: Any) -> tuple[str, str, str]:
    """Return where two trees differ first, and what stands there in each, shortened."""
    pointer, was, now = first_difference(recorded, sent) or ("", recorded, sent)
    return pointer, _short(was), _short(now)


def _at(items: list[Any], position: int) -> Any:
    return items[position] if position < len(items) else _ABSENT


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
