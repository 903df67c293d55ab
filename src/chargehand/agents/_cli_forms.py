"""The JSON Lines of agent CLIs, each form read into events; lines that nobody needs make none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from chargehand.agents._events import AgentEvent
from chargehand.agents._look import count_at, inner, money_at, objects_at, said, text_at
from chargehand.models.contract import Usage

Form = Callable[[Mapping[str, Any]], Iterator[AgentEvent]]


def stream_json(line: Mapping[str, Any]) -> Iterator[AgentEvent]:
    """Read a line of `--output-format stream-json` as claude, qwen and cursor-agent write it."""
    match line.get("type"), line.get("subtype"):
        case "system", "init":
            yield AgentEvent(kind="session", text=text_at(line, "session_id"))
        case ("assistant" | "user") as speaker, _:
            for block in objects_at(inner(line, "message"), "content"):
                yield from _block(block, speaker)
        case "tool_call", stage:  # cursor-agent's
            yield from _cursor_call(line, stage)
        case "result", _:
            failed = line.get("is_error", False) is not False or line.get("subtype") != "success"
            text = text_at(line, "result") or (said(line.get("errors")) if failed else "")
            text = text or (str(line.get("subtype")) if failed else "")
            usage = _anthropic_usage(inner(line, "usage"), cost=money_at(line, "total_cost_usd"))
            yield AgentEvent(kind="end", text=text, failed=failed, usage=usage)


def _block(block: Mapping[str, Any], speaker: str) -> Iterator[AgentEvent]:
    match block.get("type"):
        case "text" if speaker == "assistant":
            yield AgentEvent(kind="text", text=text_at(block, "text"))
        case "thinking":
            yield AgentEvent(kind="thought", text=text_at(block, "thinking"))
        case "tool_use":
            yield AgentEvent(
                kind="call", tool=text_at(block, "name"), call=text_at(block, "id"), arguments=block.get("input")
            )
        case "tool_result":
            failed = block.get("is_error") is True
            text = said(block.get("content"))
            yield AgentEvent(kind="result", call=text_at(block, "tool_use_id"), text=text, failed=failed)


def _anthropic_usage(usage: Mapping[str, Any], *, cost: float | None) -> Usage | None:
    """Return tokens of the whole session; what was read from or written to a cache is not in `input_tokens`."""
    fresh, output = count_at(usage, "input_tokens"), count_at(usage, "output_tokens")
    if fresh is None and output is None:
        return None
    written, read = count_at(usage, "cache_creation_input_tokens"), count_at(usage, "cache_read_input_tokens")
    if "total_tokens" in usage:  # qwen's are those of OpenAI, where input includes what was cached
        return Usage(input=fresh, output=output, cached=read)
    total = None if fresh is None else fresh + (written or 0) + (read or 0)
    return Usage(input=total, output=output, cached=read, cache_write=written, cost_usd=cost)


def _cursor_call(line: Mapping[str, Any], stage: Any) -> Iterator[AgentEvent]:
    call = text_at(line, "call_id")
    for name, made in inner(line, "tool_call").items():
        if not isinstance(made, Mapping):
            continue
        if stage == "started":
            yield AgentEvent(
                kind="call", tool=name.removesuffix("ToolCall"), call=call, arguments=made.get("args")
            )
        elif stage == "completed":
            result = inner(made, "result")
            failed = "success" not in result
            text = said(result.get("error")) if failed else said(result.get("success"))
            yield AgentEvent(kind="result", call=call, text=text, failed=failed)


def opencode(line: Mapping[str, Any]) -> Iterator[AgentEvent]:
    """Read a line of `opencode run --format json`: whole parts, a call together with its result."""
    part = inner(line, "part")
    match line.get("type"):
        case "step_start":
            yield AgentEvent(kind="session", text=text_at(line, "sessionID"))
        case "text":
            yield AgentEvent(kind="text", text=text_at(part, "text"))
        case "reasoning":
            yield AgentEvent(kind="thought", text=text_at(part, "text"))
        case "tool_use":
            state, call = inner(part, "state"), text_at(part, "callID")
            failed = state.get("status") == "error"
            text = text_at(state, "error" if failed else "output")
            yield AgentEvent(kind="call", tool=text_at(part, "tool"), call=call, arguments=state.get("input"))
            yield AgentEvent(kind="result", call=call, text=text, failed=failed)
        case "step_finish":
            yield AgentEvent(kind="usage", usage=_opencode_usage(part))
        case "error":
            error = inner(line, "error")
            text = text_at(inner(error, "data"), "message") or text_at(error, "message", "name")
            yield AgentEvent(kind="error", text=text)


def _opencode_usage(part: Mapping[str, Any]) -> Usage:
    tokens, cache = inner(part, "tokens"), inner(part, "tokens", "cache")
    fresh, read, written = count_at(tokens, "input"), count_at(cache, "read"), count_at(cache, "write")
    output, reasoning = count_at(tokens, "output"), count_at(tokens, "reasoning")
    return Usage(
        input=None if fresh is None else fresh + (read or 0) + (written or 0),
        output=None if output is None else output + (reasoning or 0),
        cached=read,
        cache_write=written,
    )


def codex(line: Mapping[str, Any]) -> Iterator[AgentEvent]:
    """Read a line of `codex exec --json`."""
    item = inner(line, "item")
    match line.get("type"):
        case "thread.started":
            yield AgentEvent(kind="session", text=text_at(line, "thread_id"))
        case "item.started":
            yield from _codex_started(item)
        case "item.completed":
            yield from _codex_completed(item)
        case "turn.completed":
            usage = inner(line, "usage")
            told = Usage(
                input=count_at(usage, "input_tokens"),
                output=count_at(usage, "output_tokens"),
                cached=count_at(usage, "cached_input_tokens"),
            )
            yield AgentEvent(kind="end", usage=told)
        case "turn.failed":
            yield AgentEvent(kind="end", text=text_at(inner(line, "error"), "message"), failed=True)
        case "error":
            yield AgentEvent(kind="error", text=text_at(line, "message"))


_CODEX_TOOLS = {"command_execution": "shell", "mcp_tool_call": "mcp", "web_search": "web_search"}


def _codex_started(item: Mapping[str, Any]) -> Iterator[AgentEvent]:
    kind = item.get("type")
    if kind in _CODEX_TOOLS:
        arguments = {key: item[key] for key in ("command", "tool", "arguments", "query") if key in item}
        yield AgentEvent(kind="call", tool=_CODEX_TOOLS[kind], call=text_at(item, "id"), arguments=arguments)


def _codex_completed(item: Mapping[str, Any]) -> Iterator[AgentEvent]:
    call, failed = text_at(item, "id"), item.get("status") == "failed"
    match item.get("type"):
        case "agent_message":
            yield AgentEvent(kind="text", text=text_at(item, "text"))
        case "reasoning":
            yield AgentEvent(kind="thought", text=text_at(item, "text"))
        case "error":
            yield AgentEvent(kind="error", text=text_at(item, "message"))
        case "file_change":  # told when it is done, and not before
            changes = list(objects_at(item, "changes"))
            yield AgentEvent(kind="call", tool="apply_patch", call=call, arguments={"changes": changes})
            yield AgentEvent(kind="result", call=call, failed=failed)
        case "command_execution" | "mcp_tool_call" | "web_search":
            text = text_at(item, "aggregated_output") or said(item.get("result"))
            yield AgentEvent(kind="result", call=call, text=text, failed=failed)


def gemini(line: Mapping[str, Any]) -> Iterator[AgentEvent]:
    """Read a line of gemini's `--output-format stream-json`."""
    call = text_at(line, "tool_id")
    match line.get("type"):
        case "init":
            yield AgentEvent(kind="session", text=text_at(line, "session_id"))
        case "message" if line.get("role") == "assistant":
            yield AgentEvent(kind="text", text=said(line.get("content")), piece=line.get("delta") is True)
        case "tool_use":
            yield AgentEvent(
                kind="call", tool=text_at(line, "tool_name"), call=call, arguments=line.get("parameters")
            )
        case "tool_result":
            failed = line.get("status") == "error"
            text = text_at(inner(line, "error"), "message") if failed else said(line.get("output"))
            yield AgentEvent(kind="result", call=call, text=text, failed=failed)
        case "error":
            yield AgentEvent(kind="error", text=text_at(line, "message"))
        case "result":
            failed, stats = line.get("status") == "error", inner(line, "stats")
            told = Usage(
                input=count_at(stats, "input_tokens"),
                output=count_at(stats, "output_tokens"),
                cached=count_at(stats, "cached"),
            )
            text = text_at(inner(line, "error"), "message")
            yield AgentEvent(kind="end", text=text, failed=failed, usage=told if stats else None)
