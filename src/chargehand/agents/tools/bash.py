"""The `bash` tool: one command line; its output is cleaned, and shortened with all of it kept."""

from __future__ import annotations

from collections.abc import Callable

from chargehand.agents.prompts import shorten
from chargehand.agents.tool_specs import Mistake, ToolResult
from chargehand.core.text import printable
from chargehand.sandbox.contract import OnOutput, Sandbox

SPILL = "/tmp/chargehand"
"""Where long outputs lie inside the sandbox."""
# bash where there is one: it is what models write for.
_SCRIPT = 'if [ -x /bin/bash ]; then exec /bin/bash -c "$1"; fi; exec /bin/sh -c "$1"'
# Without a terminal a pager or a password prompt would wait for the time limit.
_QUIET = {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "TERM": "dumb"}
_MOST_BYTES = 2_000_000
# Bytes; one word of a command line takes 128 KiB.
_LONGEST_COMMAND = 100_000


class BashTool:
    """Runs command lines; long outputs are kept as artifacts and laid down in `spill` inside the sandbox."""

    def __init__(
        self, sandbox: Sandbox, *, keep: Callable[[bytes], str], on_output: OnOutput | None, spill: str = SPILL
    ) -> None:
        self._sandbox = sandbox
        self._keep = keep
        self._on_output = on_output
        self._spill = spill
        self._outputs = 0

    async def run(self, command: str, seconds: float) -> ToolResult:
        """Run a command line to its end or its time limit; raises `Mistake`."""
        if not command.strip() or "\0" in command:
            raise Mistake("`command` is a command line of at least one word and without NUL characters")
        if len(command.encode()) > _LONGEST_COMMAND:
            raise Mistake(f"the command has {len(command)} characters: write long texts to files with edit")
        result = await self._sandbox.exec(
            ["/bin/sh", "-c", _SCRIPT, "sh", command],
            timeout=seconds,
            environment=_QUIET,
            output_limit=_MOST_BYTES,
            on_output=self._on_output,
        )
        parts = [clean_output(result.stdout), clean_output(result.stderr)]
        out, err = (part if not part or part.endswith("\n") else f"{part}\n" for part in parts)
        cut = f"[of each stream only {_MOST_BYTES} bytes were kept]\n" if result.truncated else ""
        body, artifact = await self.shorten_output(out + (f"[stderr]\n{err}" if err else "") + cut)
        limit = f"; it met the limit of {result.limit}: run less at once" if result.limit else ""
        end = f"[exit code {result.exit_code}{limit}]"
        if result.timed_out:
            killed = "everything it started was killed. Give a longer `timeout`, or run less at once"
            end = f"[timed out after {seconds:g} s: {killed}]"
        return ToolResult(text=body + end, failed=result.timed_out, artifact=artifact)

    async def shorten_output(self, text: str) -> tuple[str, str | None]:
        """Return a text as a model sees it, and the artifact of the whole where that is longer."""
        short = shorten(text)
        if short.whole:
            return text, None
        data = text.encode()
        artifact = self._keep(data)
        self._outputs += 1
        path = f"{self._spill}/output-{self._outputs}.txt"
        script = 'mkdir -p "${1%/*}" && cat > "$1"'
        spilled = await self._sandbox.exec(["/bin/sh", "-c", script, "sh", path], stdin=data, cwd="/")
        where = f"all of it: {path}" if spilled.exit_code == 0 else "it could not be laid down: run less at once"
        shown = short.render(where)
        return shown if shown.endswith("\n") else shown + "\n", artifact


def clean_output(data: bytes) -> str:
    """Return output as text: no escapes or control characters; of an overwritten line only what came last."""
    # A progress bar overwrites its line a thousand times; a model needs what it came to.
    lines = data.decode("utf-8", "replace").split("\n")
    return printable("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines))
