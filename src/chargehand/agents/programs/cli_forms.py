"""The JSON Lines of agent CLIs, each form parsed into events; irrelevant lines make no events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from chargehand.agents._json_rpc import content_text, count_at, object_at, objects_at, text_at
from chargehand.agents.clis import OutputForm
from chargehand.agents.programs.events import AgentEvent
from chargehand.models.contract import Usage

ReadLine = Callable[[Mapping[str, Any]], Iterator[AgentEvent]]


def stream_json(line: Mapping[str, Any]) -> Iterator[AgentEvent]:
    """Read a line of `--output-format stream-json` as claude, qwen and cursor-agent write it."""
    match line.get("type"), line.get("subtype"):
        case "system", "init":
            yield AgentEvent(kind="session", text=text_at(line, "session_id"))
        case ("assistant" | "user") as speaker, _:
            for block in objects_at(object_at(line, "message"), "content"):
                call = text_at(block, "id")
                match block.get("type"):
                    case "text" if speaker == "assistant":
                        yield AgentEvent(kind="text", text=text_at(block, "text"))
                    case "thinking":
                        yield AgentEvent(kind="thought", text=text_at(block, "thinking"))
                    case "tool_use":
                        tool = text_at(block, "name")
                        yield AgentEvent(kind="call", tool=tool, call=call, arguments=block.get("input"))
                    case "tool_result":
                        failed, text = block.get("is_error") is True, content_text(block.get("content"))
                        call = text_at(block, "tool_use_id")
                        yield AgentEvent(kind="result", call=call, text=text, failed=failed)
        case "tool_call", stage:  # cursor-agent's
            yield from _read_cursor_call(line, stage)
        case "result", _:
            failed = line.get("is_error", False) is not False or line.get("subtype") != "success"
            text = text_at(line, "result") or (content_text(line.get("errors")) if failed else "")
            text = text or (str(line.get("subtype")) if failed else "")
            yield AgentEvent(kind="end", text=text, failed=failed, usage=_read_session_usage(line))


def _read_session_usage(line: Mapping[str, Any]) -> Usage | None:
    """Return tokens of the whole session, as Anthropic counts them; qwen counts as OpenAI does."""
    usage = object_at(line, "usage")
    fresh, output = count_at(usage, "input_tokens"), count_at(usage, "output_tokens")
    if fresh is None and output is None:
        return None
    written, read = count_at(usage, "cache_creation_input_tokens"), count_at(usage, "cache_read_input_tokens")
    if "total_tokens" in usage:  # qwen's
        return _read_openai_usage(usage, "cache_read_input_tokens")
    cost = line.get("total_cost_usd")
    known = isinstance(cost, int | float) and not isinstance(cost, bool) and cost >= 0
    return _add_cached_usage(fresh, output, read=read, written=written, cost=cost if known else None)


def _add_cached_usage(
    fresh: int | None, output: int | None, *, read: int | None, written: int | None, cost: float | None = None
) -> Usage:
    # `Usage.input` includes cache reads and writes; here these are counted apart.
    total = None if fresh is None else fresh + (written or 0) + (read or 0)
    return Usage(input=total, output=output, cached=read, cache_write=written, cost_usd=cost)


def _read_openai_usage(usage: Mapping[str, Any], cached: str) -> Usage:
    return Usage(
        input=count_at(usage, "input_tokens"),
        output=count_at(usage, "output_tokens"),
        cached=count_at(usage, cached),
    )


def _read_cursor_call(line: Mapping[str, Any], stage: Any) -> Iterator[AgentEvent]:
    call = text_at(line, "call_id")
    for name, made in object_at(line, "tool_call").items():
        if not isinstance(made, Mapping):
            continue
        if stage == "started":
            yield AgentEvent(
                kind="call", tool=name.removesuffix("ToolCall"), call=call, arguments=made.get("args")
            )
        elif stage == "completed":
            result = object_at(made, "result")
            failed = "success" not in result
            text = content_text(result.get("error")) if failed else content_text(result.get("success"))
            yield AgentEvent(kind="result", call=call, text=text, failed=failed)


def opencode(line: Mapping[str, Any]) -> Iterator[AgentEvent]:
    """Read a line of `opencode run --format json`: whole parts, a call together with its result."""
    part = object_at(line, "part")
    match line.get("type"):
        case "step_start":
            yield AgentEvent(kind="session", text=text_at(line, "sessionID"))
        case "text":
            yield AgentEvent(kind="text", text=text_at(part, "text"))
        case "reasoning":
            yield AgentEvent(kind="thought", text=text_at(part, "text"))
        case "tool_use":
            state, call = object_at(part, "state"), text_at(part, "callID")
            failed = state.get("status") == "error"
            text = text_at(state, "error" if failed else "output")
            yield AgentEvent(kind="call", tool=text_at(part, "tool"), call=call, arguments=state.get("input"))
            yield AgentEvent(kind="result", call=call, text=text, failed=failed)
        case "step_finish":
            tokens, cache = object_at(part, "tokens"), object_at(part, "tokens", "cache")
            output, reasoning = count_at(tokens, "output"), count_at(tokens, "reasoning")
            output = None if output is None else output + (reasoning or 0)
            read, written = count_at(cache, "read"), count_at(cache, "write")
            usage = _add_cached_usage(count_at(tokens, "input"), output, read=read, written=written)
            yield AgentEvent(kind="usage", usage=usage)
        case "error":
            error = object_at(line, "error")
            text = text_at(object_at(error, "data"), "message") or text_at(error, "message", "name")
            yield AgentEvent(kind="error", text=text)


_CODEX_TOOLS = {"command_execution": "shell", "mcp_tool_call": "mcp", "web_search": "web_search"}


def codex(line: Mapping[str, Any]) -> Iterator[AgentEvent]:
    """Read a line of `codex exec --json`."""
    item = object_at(line, "item")
    match line.get("type"):
        case "thread.started":
            yield AgentEvent(kind="session", text=text_at(line, "thread_id"))
        case "item.started" if (kind := item.get("type")) in _CODEX_TOOLS:
            arguments = {key: item[key] for key in ("command", "tool", "arguments", "query") if key in item}
            yield AgentEvent(kind="call", tool=_CODEX_TOOLS[kind], call=text_at(item, "id"), arguments=arguments)
        case "item.completed":
            yield from _read_codex_item(item)
        case "turn.completed":
            usage = _read_openai_usage(object_at(line, "usage"), "cached_input_tokens")
            yield AgentEvent(kind="end", usage=usage)
        case "turn.failed":
            yield AgentEvent(kind="end", text=text_at(object_at(line, "error"), "message"), failed=True)
        case "error":
            yield AgentEvent(kind="error", text=text_at(line, "message"))


def _read_codex_item(item: Mapping[str, Any]) -> Iterator[AgentEvent]:
    call, failed = text_at(item, "id"), item.get("status") == "failed"
    match item.get("type"):
        case "agent_message":
            yield AgentEvent(kind="text", text=text_at(item, "text"))
        case "reasoning":
            yield AgentEvent(kind="thought", text=text_at(item, "text"))
        case "error":
            yield AgentEvent(kind="error", text=text_at(item, "message"))
        case "file_change":  # reported only after it is done
            changes = list(objects_at(item, "changes"))
            yield AgentEvent(kind="call", tool="apply_patch", call=call, arguments={"changes": changes})
            yield AgentEvent(kind="result", call=call, failed=failed)
        case "command_execution" | "mcp_tool_call" | "web_search":
            text = text_at(item, "aggregated_output") or content_text(item.get("result"))
            yield AgentEvent(kind="result", call=call, text=text, failed=failed)


def gemini(line: Mapping[str, Any]) -> Iterator[AgentEvent]:
    """Read a line of gemini's `--output-format stream-json`."""
    call = text_at(line, "tool_id")
    match line.get("type"):
        case "init":
            yield AgentEvent(kind="session", text=text_at(line, "session_id"))
        case "message" if line.get("role") == "assistant":
            yield AgentEvent(kind="text", text=content_text(line.get("content")), piece=line.get("delta") is True)
        case "tool_use":
            yield AgentEvent(
                kind="call", tool=text_at(line, "tool_name"), call=call, arguments=line.get("parameters")
            )
        case "tool_result":
            failed = line.get("status") == "error"
            text = text_at(object_at(line, "error"), "message") if failed else content_text(line.get("output"))
            yield AgentEvent(kind="result", call=call, text=text, failed=failed)
        case "error":
            yield AgentEvent(kind="error", text=text_at(line, "message"))
        case "result":
            failed, stats = line.get("status") == "error", object_at(line, "stats")
            usage = _read_openai_usage(stats, "cached") if stats else None
            text = text_at(object_at(line, "error"), "message")
            yield AgentEvent(kind="end", text=text, failed=failed, usage=usage)


FORMS: Mapping[OutputForm, ReadLine] = {
    "stream_json": stream_json,
    "opencode": opencode,
    "codex": codex,
    "gemini": gemini,
}
