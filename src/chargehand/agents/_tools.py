"""The tools of the native agent: calls are checked, carried out inside the sandbox, and answered in text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chargehand.agents._tools_arguments import checked_arguments
from chargehand.agents._tools_bash import SPILL, Shell
from chargehand.agents._tools_edit import edit
from chargehand.agents._tools_files import Files
from chargehand.agents._tools_model import Mistake, ToolResult, ToolSpec
from chargehand.agents._tools_patch import apply_patch
from chargehand.agents._tools_read import read
from chargehand.agents._tools_search import search
from chargehand.agents._tools_snippet import Snippets, snippet
from chargehand.agents._tools_specs import LOOP_ONLY, MUTATING, SNIPPET, SPECS
from chargehand.core.errors import nearest
from chargehand.sandbox.contract import OnOutput, Sandbox

__all__ = ["MUTATING", "SPECS", "ToolResult", "ToolSpec", "Toolbox", "checked_call"]


def checked_call(name: str, arguments: object) -> dict[str, Any] | ToolResult:
    """Return the arguments of a call that keeps its tool's schema, or the failed result that tells what is wrong.

    For the tools that the loop carries out itself; `Toolbox.call` does this for its own.
    """
    spec = next((spec for spec in SPECS if spec.name == name), None)
    try:
        if spec is None:
            raise Mistake(f"there is no tool {name[:80]!r}: {nearest(name[:80], [each.name for each in SPECS])}")
        return checked_arguments(spec, arguments)
    except Mistake as mistake:
        return ToolResult(text=str(mistake), failed=True)


class Toolbox:
    """Carries out a model's calls in one sandbox, one after another.

    `keep` stores bytes and returns their artifact id; `on_output` gets what commands print as they run; `seconds`
    is the time limit of a command whose call gives none, and of every file tool. Where there are no `snippets`,
    that tool is not offered, nor is any that `may_use` does not let pass by its name.
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
        self._files = Files(sandbox, seconds=seconds)
        self._keep = keep
        self._shell = Shell(sandbox, keep=keep, on_output=on_output, spill=spill)
        self._seconds = seconds
        self._snippets = snippets
        self.specs: tuple[ToolSpec, ...] = tuple(
            spec for spec in SPECS if may_use(spec.name) and (snippets is not None or spec.name != SNIPPET)
        )

    async def bounded(self, text: str) -> tuple[str, str | None]:
        """Return a text made short enough for a model, and the artifact of the whole where it was not."""
        return await self._shell.shortened(text)

    async def call(self, name: str, arguments: object) -> ToolResult:
        """Carry out one call; a model's mistake is a failed result. `arguments` is an object or its JSON text.

        Raises `SandboxDiedError` when the sandbox ends, and what `keep` or `on_output` raise.
        """
        checked = checked_call(name, arguments)
        if isinstance(checked, ToolResult):
            return checked
        try:
            return await self._carried_out(name, checked)
        except Mistake as mistake:
            return ToolResult(text=str(mistake), failed=True)

    async def _carried_out(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        match name:
            case "bash":
                return await self._shell.run(arguments["command"], arguments.get("timeout", self._seconds))
            case "read":
                return await read(self._files, keep=self._keep, **arguments)
            case "edit":
                return await edit(self._files, **arguments)
            case "apply_patch":
                return await apply_patch(self._files, **arguments)
            case "search":
                return await search(self._files, **arguments)
            case "snippet":
                return await snippet(self._snippets, **arguments)
            case _:
                assert name in LOOP_ONLY
                raise Mistake(f"{name} cannot be called here")
