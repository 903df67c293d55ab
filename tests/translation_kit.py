"""Measures how each feature of a call survives between two dialects, and writes the page about it.

`python -m tests.translation_kit > docs/reference/translation.md` writes the page.
"""

from __future__ import annotations

import copy
import functools
import json
import sys
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from chargehand.models.contract import (
    Dialect,
    GatewayFault,
    ModelCall,
    UpstreamReply,
    Usage,
    reply_from_pieces,
)
from chargehand.models.conversation import (
    EFFORT_BUDGETS,
    NeutralReply,
    ToolCallPart,
    UntranslatableError,
    fold_reply,
    reply_deltas,
)
from chargehand.models.dialects.left_out import LEFT_OUT
from chargehand.models.dialects.translation import TranslatingUpstream, read_event_data
from chargehand.models.event_stream import EventSplitter
from chargehand.models.registries import DIALECTS
from tests.translation_features import BASES, FEATURES, MODELS, REPLY_EXTRAS, Feature, put

T = TypeVar("T")
ALL: tuple[Dialect, ...] = ("openai", "responses", "anthropic", "gemini")
TITLES = {"openai": "chat completions", "responses": "responses", "anthropic": "messages", "gemini": "Gemini"}
CALLS = (
    ToolCallPart(id="c1", name="add", arguments='{"a": 1}'),
    ToolCallPart(id="c2", name="add", arguments="{}"),
)
BROKEN = '{"a": '


def find(body: object, path: str) -> list[Any]:
    """Return the values at a path; list levels are skipped, and numbers in the path are ignored."""
    found = [body]
    for name in (part for part in path.split(".") if not part.isdigit()):
        flat = [one for each in found for one in (each if isinstance(each, list) else [each])]
        found = [one[name] for one in flat if isinstance(one, dict) and name in one]
    return found


def show(path: str) -> str:
    return ".".join(part for part in path.split(".") if not part.isdigit())


def run(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits: an event loop for each of thousands takes seconds."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    work.close()
    raise AssertionError("it waits")


@dataclass
class Sent:
    """A request as its provider receives it, and the features named as left out."""

    body: Mapping[str, Any] = field(default_factory=dict)
    left: frozenset[str] = frozenset()
    refused: bool = False


class _Listener:
    """Records the call and answers it with an error."""

    def __init__(self) -> None:
        self.calls: list[ModelCall] = []

    async def send(self, call: ModelCall) -> UpstreamReply:
        self.calls.append(call)
        return reply_from_pieces(400, [b"{}"])

    async def close(self) -> None:
        pass


def send(client: Dialect, upstream: Dialect, body: Mapping[str, Any], model: str) -> Sent:
    """Send a request as the gateway does, up to the wire."""
    rules, listener = DIALECTS[client], _Listener()
    try:
        screened = rules.screen(copy.deepcopy(dict(body)))
        ready = rules.prepare(screened.body, model, rules.output_limit(screened.body))
        call = ModelCall(id="c", dialect=client, body=ready, attempt="a", turn=1)
        inner = listener if client == upstream else TranslatingUpstream(listener, upstream, DIALECTS)
        reply = run(inner.send(call))
    except (UntranslatableError, GatewayFault):
        return Sent(refused=True)
    except Exception as error:
        if getattr(error, "code", "") == "uncarried":
            return Sent(refused=True)
        raise
    (call,) = listener.calls
    names = reply.lower_headers.get(LEFT_OUT, "")
    wire = {**DIALECTS[upstream].locate(call)[1], "model": model}
    return Sent(body=wire, left=frozenset(screened.left_out) | frozenset(names.split(", ") if names else ()))


def judge(feature: Feature, client: Dialect, upstream: Dialect) -> str:
    """Return the fate of a feature: its path, `in words`, `named`, `refused`, or `lost`."""
    spelling = feature.spelled.get(client)
    if spelling is None:
        return "-"
    model = {**MODELS, **feature.models}[upstream]
    base = BASES[client]
    for path, value in spelling.before:
        base = put(base, path, value)
    without, sent = send(client, upstream, base, model), send(client, upstream, put(base, *spelling.step), model)
    if sent.refused:
        return "refused"
    there = feature.there.get(upstream) or getattr(feature.spelled.get(upstream), "path", None)
    there = spelling.path if client == upstream else there
    said = []
    if there is not None and find(sent.body, there) not in ([], find(without.body, there)):
        said.append(f"`{show(there)}`")
    elif isinstance(spelling.value, str) and "zq" in spelling.value and "zq" in json.dumps(sent.body):
        said.append("in words")
    if named := sorted(sent.left - without.left):
        said.append("named" if not said else f"named {', '.join(f'`{one}`' for one in named)}")
    return ", ".join(said) or "lost"


def judge_marks(client: Dialect, upstream: Dialect) -> str:
    """Return the path of cache marks that the client did not set."""
    if upstream != "anthropic":
        return "-"
    marks = find(send(client, upstream, BASES[client], MODELS[upstream]).body, "messages.content.cache_control")
    return "`messages.content.cache_control`" if marks else "lost"


@dataclass
class Got:
    """A reply as a client reads it, the gateway's remarks, and the reported fault of the provider."""

    reply: NeutralReply
    left: tuple[str, ...]
    fault: str
    raw: bytes


class _Answering:
    def __init__(self, pieces: list[bytes], *, stream: bool) -> None:
        self.pieces, self.kind = pieces, "text/event-stream" if stream else "application/json"

    async def send(self, call: ModelCall) -> UpstreamReply:
        return reply_from_pieces(200, self.pieces, content_type=self.kind)

    async def close(self) -> None:
        pass


def receive(client: Dialect, upstream: Dialect, pieces: Iterable[bytes], *, stream: bool) -> Got:
    """Pass a provider's reply on to a client, and read it there."""
    body = put(BASES[client], "stream", True) if stream else BASES[client]
    call = ModelCall(id="c", dialect=client, body=body, attempt="a", turn=1)

    async def answered() -> tuple[UpstreamReply, bytes]:
        inner = _Answering(list(pieces), stream=stream)
        reply = await (inner if client == upstream else TranslatingUpstream(inner, upstream, DIALECTS)).send(call)
        return reply, b"".join([piece async for piece in reply.chunks])

    reply, raw = run(answered())
    reader = DIALECTS[client].reply_reader("s")
    if stream:
        split = EventSplitter()
        events = [*split.feed(raw), split.rest()]
        deltas = [piece for event in events for piece in reader.read_event(read_event_data(event))]
        deltas += reader.finish()
    else:
        deltas = reader.read_whole(json.loads(raw))
    left = reply.left_out() if reply.left_out is not None else ()
    return Got(fold_reply(deltas), left, reply.fault() if reply.fault is not None else "", raw)


def write_reply(upstream: Dialect, said: NeutralReply, *, stream: bool) -> list[bytes]:
    """Return a provider's reply in its dialect."""
    writer = DIALECTS[upstream].reply_writer("up", "r")
    if stream:
        return [writer.write_delta(delta) for delta in reply_deltas(said)]
    return [json.dumps(writer.write_whole(said)).encode()]


USAGE = Usage(input=100, output=7, cached=40)
REPLIES: dict[str, NeutralReply] = {
    "words": NeutralReply(text="hello", usage=USAGE, ended=True),
    "reasoning shown": NeutralReply(text="hello", thoughts="hm", usage=USAGE, ended=True),
    "two tool calls with their ids": NeutralReply(calls=CALLS, stop="tools", usage=USAGE, ended=True),
    "words before a call": NeutralReply(text="so", calls=CALLS[:1], stop="tools", usage=USAGE, ended=True),
    "why it ended: output limit": NeutralReply(text="hel", stop="length", usage=USAGE, ended=True),
    "why it ended: refused": NeutralReply(text="no", stop="refusal", usage=USAGE, ended=True),
}


def judge_reply(name: str, client: Dialect, upstream: Dialect, *, stream: bool) -> str:
    """Return `carried` if the client reads all text, calls and usage."""
    said = REPLIES[name]
    got = receive(client, upstream, write_reply(upstream, said, stream=stream), stream=stream).reply
    calls = [(call.id, call.name, json.loads(call.arguments or "{}")) for call in got.calls]
    same = calls == [(call.id, call.name, json.loads(call.arguments)) for call in said.calls]
    whole = (got.text, got.thoughts, got.stop) == (said.text, said.thoughts, said.stop)
    used = (got.usage.input, got.usage.output, got.usage.cached) == (100, 7, 40)
    return "carried" if same and whole and used else "lost"


def malformed_reply(upstream: Dialect, *, stream: bool) -> list[bytes]:
    """Return a reply whose only tool call has half a JSON object as its arguments, preceded by text."""
    call = ToolCallPart(id="c1", name="add", arguments=BROKEN, unchecked=True)
    said = NeutralReply(text="I add.", calls=(call,), stop="tools", usage=USAGE)
    if upstream == "gemini":
        # Its arguments are no text; Google reports at the end that they could not be read.
        candidate = {"content": {"role": "model", "parts": [{"text": "I add."}]}, "index": 0}
        candidate |= {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": f"add({BROKEN})"}
        usage = {"promptTokenCount": 100, "candidatesTokenCount": 7, "cachedContentTokenCount": 40}
        document = json.dumps({"candidates": [candidate], "usageMetadata": usage}).encode()
        return [b"data: " + document + b"\n\n"] if stream else [document]
    return write_reply(upstream, said, stream=stream)


def judge_malformed(client: Dialect, upstream: Dialect, *, stream: bool) -> str:
    """Return how a client receives a reply with a malformed call."""
    got = receive(client, upstream, malformed_reply(upstream, stream=stream), stream=stream)
    kept = "I add." in got.reply.text and got.reply.ended and got.reply.usage.output == 7
    if not kept or json.dumps(BROKEN)[1:-1].encode() not in got.raw.replace(b"\\\\\\", b"\\"):
        return "lost"
    if client == upstream:
        return "as it came"
    if not got.fault:
        return "lost"
    arguments = got.reply.calls[0].arguments if got.reply.calls else ""
    return "in words" if not arguments else "as it came" if arguments == BROKEN else "`malformed_arguments`"


def judge_extra(name: str, client: Dialect, upstream: Dialect, *, stream: bool) -> str:
    """Return the fate of a part that only its provider's dialect has."""
    pieces = REPLY_EXTRAS[name].get(upstream)
    if pieces is None:
        return "-"
    got = receive(client, upstream, pieces[stream], stream=stream)
    return "carried" if client == upstream else "named" if got.left else "lost"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [list(head), *map(list, rows)]
    cells.insert(1, ["---"] * len(cells[0]))
    return "".join(f"| {' | '.join('' if cell == '-' else cell for cell in row)} |\n" for row in cells)


@functools.cache
def request_rows() -> list[list[str]]:
    """Return a row for each feature and client that has it."""
    rows = [
        [feature.name, TITLES[client], *(judge(feature, client, upstream) for upstream in ALL)]
        for feature in FEATURES
        for client in ALL
        if client in feature.spelled
    ]
    marks = "cache marks that nobody set"
    return [
        *rows,
        *([marks, TITLES[client], *(judge_marks(client, upstream) for upstream in ALL)] for client in ALL),
    ]


@functools.cache
def reply_rows() -> list[list[str]]:
    """Return a row for each feature and provider that has it; whole replies and streams in one cell if alike."""
    judges = [(name, judge_reply, name) for name in REPLIES]
    judges += [(name, judge_extra, name) for name in REPLY_EXTRAS]
    rows = []
    for title, judging, name in judges:
        for upstream in ALL:
            cells = [
                _merge(judging(name, client, upstream, stream=False), judging(name, client, upstream, stream=True))
                for client in ALL
            ]
            if set(cells) != {"-"}:
                rows.append([title, TITLES[upstream], *cells])
    for upstream in ALL:
        cells = [
            _merge(judge_malformed(c, upstream, stream=False), judge_malformed(c, upstream, stream=True))
            for c in ALL
        ]
        rows.append(["malformed tool call", TITLES[upstream], *cells])
    return rows


def _merge(whole: str, streamed: str) -> str:
    return whole if whole == streamed else f"{whole}; stream: {streamed}"


FAMILIES: tuple[tuple[str, Dialect, str, str], ...] = (
    ("Claude from 4.6", "anthropic", "claude-opus-4-6", "output_config.effort"),
    ("earlier Claude and others", "anthropic", "claude-sonnet-4-5", "thinking.budget_tokens"),
    ("Gemini from 3", "gemini", "gemini-3-flash", "generationConfig.thinkingConfig.thinkingLevel"),
    ("Gemini 2.5", "gemini", "gemini-2.5-flash", "generationConfig.thinkingConfig.thinkingBudget"),
    ("OpenAI", "openai", "gpt-5", "reasoning_effort"),
)


PLAIN: dict[Dialect, dict[str, Any]] = {
    "openai": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "gemini": {"model": "m", "contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
}


def _sent_amount(client: Dialect, step: tuple[str, object], family: tuple[str, Dialect, str, str]) -> str:
    """Return the value that one family of models receives for an amount of reasoning."""
    _, upstream, model, there = family
    sent = send(client, upstream, put(PLAIN[client], *step), model)
    found = [
        one for path in (there, "thinking.type", f"{_CONFIG}.thinkingBudget") for one in find(sent.body, path)
    ]
    text = (f"{found[0]:,}" if isinstance(found[0], int) else str(found[0])) if found else ""
    if sent.left:
        return f"{text}, named" if text else "named"
    return text or "lost"


_CONFIG = "generationConfig.thinkingConfig"


def effort_rows() -> list[list[str]]:
    """Return a row for each effort."""
    rows = []
    for word, tokens in EFFORT_BUDGETS.items():
        step = ("reasoning_effort", word)
        cells = [_sent_amount("openai", (step), one) for one in FAMILIES if one[1] != "openai"]
        rows.append([word, f"{tokens:,}", *cells])
    return rows


def budget_rows() -> list[list[str]]:
    """Return a row for each range of budgets, by its greatest one."""
    rows = []
    names = {
        0: "0, `disabled`, false",
        4_096: "1 to 4,096",
        8_192: "to 8,192",
        40_000: "more",
        -1: "-1, `adaptive`",
    }
    for tokens, name in names.items():
        thinking = {"type": "adaptive"} if tokens < 0 else {"type": "enabled", "budget_tokens": tokens}
        steps: dict[Dialect, tuple[str, object]] = {
            "openai": ("thinking", thinking if tokens else {"type": "disabled"}),
            "gemini": (f"{_CONFIG}.thinkingBudget", tokens),
        }
        clients: list[Dialect] = ["openai" if one[1] == "gemini" else "gemini" for one in FAMILIES]
        cells = [_sent_amount(client, steps[client], one) for client, one in zip(clients, FAMILIES, strict=True)]
        rows.append([name, *cells])
    return rows


HEAD = """# What becomes of a call in another dialect

Tried out by [the tests that hold this page](../../tests/unit/test_translation.py); `python -m
tests.translation_kit > docs/reference/translation.md` writes it. How a call gets to a model of another
dialect stands in [the gateway's page](gateway.md#dialects).

Nothing that a client asks for is left out in silence. What the other side has is carried. All else is named,
by the client's own field, in the reply's header `x-chargehand-left-out` and in the log (`left_out` of
`model.called`, once in an attempt for each model and name); what a request cannot do without is refused
(`uncarried`), and the next model is asked. This holds for fields of a call that passes in its own dialect
too, and for any field that nobody has heard of: [a test](../../tests/unit/test_translation_fields.py) goes
through the fields that the official clients know.

In the tables, the path is where the feature stands in what the provider gets; *in words*: as text beside it;
*named*: left out and named; a path and *named*: carried in part, such as a temperature of 1.5 as 1;
*refused*: as above. Same client and provider: the body passes as it is. Tried with {models}.

## Requests

"""

EFFORTS = """
## How much to reason

An effort stands for a budget where the provider takes budgets, and the other way round; of the words of
OpenAI's dialects a budget becomes only those that every model that reasons knows. A budget is lowered to four
fifths of the output limit, and raised to the least that the model takes; where it is not what was asked for,
it is named. Models that cannot reason (by the [catalogue](models.md), `gpt-4`, Claude before 3.7) are sent
none of it.

Claude reasons neither beside a tool that it must call, nor, before 4.6, in the midst of tool calls that
another provider's client brings: its own signed reasoning would have to come along. Beside reasoning it takes
no `temperature`, no `top_k`, and `top_p` from 0.95 on; those are named then. Without reasoning Claude takes
one of `temperature` and `top_p`.

"""

MARKS = """
## Cache marks

Anthropic caches only what is marked. Where no mark stands in a request, whatever its client speaks, the
gateway marks the system's part (or the last tool) and the newest two turns of the user as the request goes
out; recordings do not show these marks. A client's own marks are kept as they are, four at most, and then
none are added.

## Replies

*Named*: in the header of a whole reply, and in the log; of a stream in the log alone, since its head is out
by then. The names begin with `reply.` and are the provider's fields.

"""

TAIL = """
A tool call whose arguments are no JSON object is the model's fault, not its provider's. The reply is kept and
paid for once; chat completions and responses pass the text on as it came, and messages and Gemini, whose
arguments are objects, get it as `{"malformed_arguments": TEXT}`, so that the tool refuses it and the model
learns of it. Gemini's own end `MALFORMED_FUNCTION_CALL` comes in words. The log's `reason` says
`model_malformed` beside a status of `ok`."""


def render_page() -> str:
    """Return the reference page as Markdown."""
    models = ", ".join(f"`{model}`" for model in dict.fromkeys(MODELS.values()))
    columns = [f"to {TITLES[upstream]}" for upstream in ALL]
    families = [name for name, *_ in FAMILIES]
    return (
        HEAD.format(models=models)
        + _table(["feature", "client", *columns], request_rows())
        + EFFORTS
        + _table(["effort", "budget", *families[:-1]], effort_rows())
        + "\n"
        + _table(["budget", *families], budget_rows())
        + MARKS
        + _table(["feature", "provider", *columns], reply_rows())
        + TAIL
    )


if __name__ == "__main__":
    sys.stdout.write(render_page())
