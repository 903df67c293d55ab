"""The toolbox of the native agent: calls are checked, run inside the sandbox, and answered in text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from chargehand.agents.contract import Snippets
from chargehand.agents.patch.parsing import PatchProblem, parse_patch
from chargehand.agents.roles import Role
from chargehand.agents.tool_specs import (
    LOOP_ONLY,
    SNIPPET,
    SPECS,
    Mistake,
    ToolResult,
    ToolSpec,
    check_arguments,
)
from chargehand.agents.tools.bash import SPILL, BashTool
from chargehand.agents.tools.editing import apply_patch, edit
from chargehand.agents.tools.files import SandboxFiles
from chargehand.agents.tools.reading import read, search
from chargehand.core.errors import InfrastructureError, TierUnavailableError, UsageError, nearest
from chargehand.core.text import printable
from chargehand.policy.actions import Action, FileRead, FileWrite, Several, Shell, Snippet
from chargehand.sandbox.contract import OnOutput, Sandbox
from chargehand.sandbox.snippets import SnippetSpec

# Bytes of console lines and value together: below a result's limit, so that no JSON has to be cut.
_SNIPPET_OUTPUT = 8_000


def checked_call(name: str, arguments: object) -> dict[str, Any] | ToolResult:
    """Return the arguments of a call as its tool's schema wants them, or a failed result that says what is wrong.

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

    `keep` stores bytes and returns their artifact id; `on_output` gets what commands print as they run; `seconds`
    is the time limit of every file tool, and of a command whose call gives none. Tools that `may_use` refuses by
    name are not offered, nor is `snippet` where there are no `snippets`.
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
    ) -> None:
        self._files = SandboxFiles(sandbox, seconds=seconds)
        self._keep = keep
        self._bash = BashTool(sandbox, keep=keep, on_output=on_output, spill=spill)
        self._seconds = seconds
        self._snippets = snippets
        self.specs: tuple[ToolSpec, ...] = tuple(
            spec for spec in SPECS if may_use(spec.name) and (snippets is not None or spec.name != SNIPPET)
        )

    async def shorten(self, text: str) -> tuple[str, str | None]:
        """Return a text made short enough for a model, and the artifact of the whole where it was cut."""
        return await self._bash.shorten_output(text)

    async def call(self, name: str, arguments: object) -> ToolResult:
        """Run one call; a model's mistake is a failed result. `arguments` is an object or its JSON text.

        Raises `SandboxDiedError` when the sandbox ends, and what `keep` or `on_output` raise.
        """
        # A mistake is an answer to the model, not an error of ours.
        checked = checked_call(name, arguments)
        if isinstance(checked, ToolResult):
            return checked
        try:
            return await self._run(name, checked)
        except Mistake as mistake:
            return ToolResult(text=str(mistake), failed=True)

    async def _run(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        match name:
            case "bash":
                return await self._bash.run(arguments["command"], arguments.get("timeout", self._seconds))
            case "read":
                return await read(self._files, keep=self._keep, **arguments)
            case "edit":
                return await edit(self._files, **arguments)
            case "apply_patch":
                return await apply_patch(self._files, **arguments)
            case "search":
                return await search(self._files, **arguments)
            case "snippet":
                return await run_snippet(self._snippets, **arguments)
            case _:
                assert name in LOOP_ONLY
                raise Mistake(f"{name} cannot be called here")


async def run_snippet(snippets: Snippets | None, language: str, code: str, input: str | None = None) -> ToolResult:
    """Run a short program that computes a value, away from the workspace; raises `Mistake`.

    The result is JSON with the limits that it ran under.
    """
    if snippets is None:
        raise Mistake("snippets cannot be run on this machine: use bash")
    try:
        value = None if input is None else json.loads(input)
    except (ValueError, RecursionError) as error:
        raise Mistake(f"`input` is not JSON ({error}): a text, too, stands in double quotes") from error
    try:
        spec = SnippetSpec(language=cast("Any", language), source=code, input=value, output_limit=_SNIPPET_OUTPUT)
        result = await snippets.run(spec)
    except (UsageError, TierUnavailableError) as error:
        raise Mistake(f"{error.message}; {error.hint}") from error
    except InfrastructureError as error:  # the pool's own, not the attempt's sandbox
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


def action_of(name: str, arguments: object) -> Action | None:
    """Return what a call would do in terms of policy, `None` where it is malformed and so does nothing.

    What is wrong with a malformed call its tool says, without a question to the rules.
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
            return _action_of_patch(checked["patch"])
        case _:
            return FileRead(path=str(checked.get("path") or "."))


def _action_of_patch(text: str) -> Action | None:
    try:
        changes = parse_patch(text)
    except PatchProblem:
        return None
    actions: list[FileWrite] = []
    for change in changes:
        moved = change.move_to is not None
        actions.append(FileWrite(path=change.path, removal=moved or change.action == "delete"))
        if change.move_to is not None:
            actions.append(FileWrite(path=change.move_to))
    return Several(actions=tuple(actions))


def role_refusal(role: Role, tool: str, offered: Sequence[ToolSpec]) -> str:
    """Return why a call to a tool that the role does not have was not carried out."""
    tools = ", ".join(spec.name for spec in offered)
    return f"the role {role.name} has no tool {printable(tool)[:80]!r}; its tools are {tools}"
