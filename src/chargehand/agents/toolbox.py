"""A model's tool calls: checked, named as actions for the rules, run inside the sandbox, answered in text."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from chargehand.agents.contract import Snippets
from chargehand.agents.patch.parsing import PatchProblem
from chargehand.agents.patches import parse_patch
from chargehand.agents.prompts import shorten
from chargehand.agents.roles import Role
from chargehand.agents.tool_specs import (
    LIBRARY_TOOL,
    LOOP_ONLY,
    MAP_TOOLS,
    SNIPPET,
    SPECS,
    Mistake,
    ToolResult,
    ToolSpec,
    check_arguments,
    relocate,
    without_others,
)
from chargehand.agents.tools.editing import apply_patch, edit
from chargehand.agents.tools.files import SandboxFiles
from chargehand.agents.tools.reading import read, search
from chargehand.core.errors import InfrastructureError, NotFoundError, TierUnavailableError, UsageError, nearest
from chargehand.core.text import printable
from chargehand.policy.actions import Action, FileRead, FileWrite, Several, Shell, Snippet
from chargehand.sandbox.contract import WORKSPACE, OnOutput, Sandbox
from chargehand.sandbox.snippets import SnippetSpec

# The directory for long outputs inside the sandbox.
SPILL = "/tmp/chargehand"
# bash if it exists: models write for it.
_BASH = 'if [ -x /bin/bash ]; then exec /bin/bash -c "$1"; fi; exec /bin/sh -c "$1"'
# Without a terminal a pager or a password prompt would wait for the time limit.
_QUIET = {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "TERM": "dumb"}
_MOST_OUTPUT = 2_000_000
# Bytes; one word of a command line may have 128 KiB.
_LONGEST_COMMAND = 100_000
# Bytes of console lines and value together: below a result's limit, so that no JSON must be cut.
_SNIPPET_OUTPUT = 8_000


# Answers a query of the repository map, given its name and its words; raises as `CodeMap.answer` does.
AskMap = Callable[[str, Sequence[str]], Awaitable[str]]


def checked_call(name: str, arguments: object) -> dict[str, Any] | ToolResult:
    """Return the arguments of a call as its tool's schema requires, or a failed result with the mistake.

    For the tools that the loop runs itself; `Toolbox.call` does this for its own.
    """
    spec = next((spec for spec in SPECS if spec.name == name), None)
    try:
        if spec is None:
            raise Mistake(f"there is no tool {name[:80]!r}: {nearest(name[:80], [each.name for each in SPECS])}")
        return check_arguments(spec, arguments)
    except Mistake as mistake:
        return ToolResult(text=str(mistake), failed=True)


class Toolbox:
    """Runs a model's calls in one sandbox, one after another.

    `keep` stores bytes and returns their artifact id; `on_output` gets the output of commands as they run; `spill`
    is the directory inside the sandbox for long outputs. `seconds` is the time limit of every file tool, and of a
    command whose call gives no limit. Tools that `may_use` refuses by name are not offered, nor is `snippet`
    without `snippets`, nor arguments for other tasks unless `in_plan`, nor the queries of the repository map
    without `ask_map`, which answers them, nor that of the library unless `has_library`.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        keep: Callable[[bytes], str],
        on_output: OnOutput | None = None,
        seconds: float = 60.0,
        spill: str = SPILL,
        snippets: Snippets | None = None,
        may_use: Callable[[str], bool] = bool,
        in_plan: bool = False,
        ask_map: AskMap | None = None,
        has_library: bool = False,
    ) -> None:
        self._sandbox = sandbox
        self._files = SandboxFiles(sandbox, seconds=seconds)
        self._keep = keep
        self._on_output = on_output
        self._spill = spill
        self._outputs = 0
        self._seconds = seconds
        self._snippets = snippets
        self._ask_map = ask_map
        self.specs: tuple[ToolSpec, ...] = tuple(
            relocate(spec if in_plan else without_others(spec), sandbox.cwd)
            for spec in SPECS
            if may_use(spec.name)
            and (snippets is not None or spec.name != SNIPPET)
            and (ask_map is not None or spec.name not in MAP_TOOLS)
            and (has_library or spec.name != LIBRARY_TOOL)
        )

    async def shorten(self, text: str) -> tuple[str, str | None]:
        """Return a text shortened for a model, and the artifact of the whole text if it was cut."""
        short = shorten(text)
        if short.whole:
            return text, None
        data = text.encode()
        artifact = self._keep(data)
        self._outputs += 1
        path = f"{self._spill}/output-{self._outputs}.txt"
        script = 'mkdir -p "${1%/*}" && cat > "$1"'
        spilled = await self._sandbox.exec(["/bin/sh", "-c", script, "sh", path], stdin=data, cwd="/")
        where = f"all of it: {path}" if spilled.exit_code == 0 else "it could not be saved: run less at once"
        shown = short.render(where)
        return shown if shown.endswith("\n") else shown + "\n", artifact

    async def call(self, name: str, arguments: object) -> ToolResult:
        """Run one call; a model's mistake is a failed result. `arguments` is an object or its JSON text.

        Raises `SandboxDiedError` if the sandbox ends, and the errors of `keep` or `on_output`.
        """
        # A mistake is an answer to the model, not an error of ours.
        checked = checked_call(name, arguments)
        if isinstance(checked, ToolResult):
            return checked
        try:
            match name:
                case "bash":
                    return await self._run_command(checked["command"], checked.get("timeout", self._seconds))
                case "read":
                    return await read(self._files, keep=self._keep, **checked)
                case "edit":
                    return await edit(self._files, **checked)
                case "apply_patch":
                    return await apply_patch(self._files, **checked)
                case "search":
                    return await search(self._files, **checked)
                case "snippet":
                    return await run_snippet(self._snippets, **checked)
                case _ if name in MAP_TOOLS:
                    return await self._query_map(name, checked)
                case _:
                    assert name in LOOP_ONLY
                    raise Mistake(f"{name} cannot be called here")
        except Mistake as mistake:
            return ToolResult(text=str(mistake), failed=True)

    async def _query_map(self, name: str, checked: dict[str, Any]) -> ToolResult:
        """Ask the repository map; raises `Mistake`."""
        if self._ask_map is None:
            raise Mistake("there is no repository map here: use search")
        result = await answer_query(self._ask_map, name, checked)
        shown, artifact = await self.shorten(result.text)
        return replace(result, text=shown, artifact=artifact)

    async def _run_command(self, command: str, seconds: float) -> ToolResult:
        """Run a command line to its end or its time limit; raises `Mistake`."""
        if not command.strip() or "\0" in command:
            raise Mistake("`command` is a command line of at least one word and without NUL characters")
        if len(command.encode()) > _LONGEST_COMMAND:
            raise Mistake(f"the command has {len(command)} characters: write long texts to files with edit")
        result = await self._sandbox.exec(
            ["/bin/sh", "-c", _BASH, "sh", command],
            timeout=seconds,
            environment=_QUIET,
            output_limit=_MOST_OUTPUT,
            on_output=self._on_output,
        )
        parts = [_clean_output(result.stdout), _clean_output(result.stderr)]
        out, err = (part if not part or part.endswith("\n") else f"{part}\n" for part in parts)
        cut = f"[of each stream only {_MOST_OUTPUT} bytes were kept]\n" if result.truncated else ""
        body, artifact = await self.shorten(out + (f"[stderr]\n{err}" if err else "") + cut)
        limit = f"; it met the limit of {result.limit}: run less at once" if result.limit else ""
        end = f"[exit code {result.exit_code}{limit}]"
        if result.timed_out:
            killed = "everything it started was killed. Give a longer `timeout`, or run less at once"
            end = f"[timed out after {seconds:g} s: {killed}]"
        return ToolResult(text=body + end, failed=result.timed_out, artifact=artifact)


async def answer_query(ask: AskMap, name: str, checked: Mapping[str, Any]) -> ToolResult:
    """Answer a query of the repository map; the text may be long."""
    (given,) = checked.values()
    try:
        return ToolResult(text=await ask(name, [given] if isinstance(given, str) else given))
    except NotFoundError as error:
        return ToolResult(text=f"{error.message}: use search", failed=True)
    except InfrastructureError as error:  # an error of the map, not of the attempt's sandbox
        return ToolResult(text=f"the map could not be read: {error.message}. Use search.", failed=True)


def _clean_output(data: bytes) -> str:
    """Return output as text without escapes or control characters; of overwritten lines only the last state."""
    # A progress bar overwrites its line a thousand times; a model needs only its last state.
    lines = data.decode("utf-8", "replace").split("\n")
    return printable("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines))


async def run_snippet(snippets: Snippets | None, language: str, code: str, input: str | None = None) -> ToolResult:
    """Run a short program that computes a value, away from the workspace; raises `Mistake`.

    The result is JSON with the limits that applied.
    """
    # The tool is not offered then, but a model may call it from memory.
    if snippets is None:
        raise Mistake("snippets cannot be run on this machine: use bash")
    try:
        value = None if input is None else json.loads(input)
    except (ValueError, RecursionError) as error:
        raise Mistake(f"`input` is not JSON ({error}): a text also needs double quotes") from error
    try:
        spec = SnippetSpec(language=cast("Any", language), source=code, input=value, output_limit=_SNIPPET_OUTPUT)
        result = await snippets.run(spec)
    except (UsageError, TierUnavailableError) as error:
        raise Mistake(f"{error.message}; {error.hint}") from error
    except InfrastructureError as error:  # an error of the pool, not of the attempt's sandbox
        return ToolResult(text=f"the snippet could not be run: {error.message}. Use bash.", failed=True)
    document = {
        "value": result.value,
        "console": [{"level": line.level, "text": line.text} for line in result.console],
        "error": result.error,
        "seconds": round(result.seconds, 3),
        "peak_memory": result.peak_memory,
        "limits": {"memory_mb": spec.memory_mb, "seconds": spec.seconds, "output_bytes": spec.output_limit},
    }
    text = json.dumps(msgspec.to_builtins(document), ensure_ascii=False)
    return ToolResult(text=text, failed=result.error is not None)


def action_of(name: str, arguments: object, *, cwd: str = WORKSPACE) -> Action | None:
    """Return a call from `cwd` as a policy action, or `None` if it is malformed and so does nothing.

    The tool itself explains the mistake in a malformed call, without asking the rules.
    """
    checked = checked_call(name, arguments)
    if isinstance(checked, ToolResult):
        return None
    match name:
        case "bash":
            return Shell(text=checked["command"])
        case "snippet":
            return Snippet(language=checked["language"], source=checked["code"])
        case "edit":
            return FileWrite(path=checked["path"])
        case "apply_patch":
            try:
                changes = parse_patch(checked["patch"], cwd=cwd)
            except PatchProblem:
                return None
            top = "" if cwd == WORKSPACE else f"{WORKSPACE}/"
            writes: list[FileWrite] = []
            for change in changes:
                moved = change.move_to is not None
                writes.append(FileWrite(path=top + change.path, removal=moved or change.action == "delete"))
                if change.move_to is not None:
                    writes.append(FileWrite(path=top + change.move_to))
            return Several(actions=tuple(writes))
        case _:
            return FileRead(path=str(checked.get("path") or "."))


def role_refusal(role: Role, tool: str, offered: Sequence[ToolSpec]) -> str:
    """Return why a call to a tool outside the role was not carried out."""
    tools = ", ".join(spec.name for spec in offered)
    return f"the role {role.name} has no tool {printable(tool)[:80]!r}; its tools are {tools}"
