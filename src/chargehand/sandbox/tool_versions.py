"""Reports the versions of a toolchain's tools by starting each one inside a sandbox."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from chargehand.core.ports import DriverName
from chargehand.sandbox.contract import Sandbox, SandboxLimits, SandboxSpec
from chargehand.sandbox.host_programs.search import is_system_path
from chargehand.sandbox.probe import scratch_plan
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.sandbox.toolchain import Toolchain

_VERSION_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "go": ("version",),
    "java": ("-version",),
    "javac": ("-version",),
}
_NAMES = (
    *("python", "python3", "pip", "uv", "pytest", "ruff"),
    *("node", "npm", "npx", "pnpm", "yarn", "bun", "deno"),
    *("cargo", "rustc", "go", "java", "javac", "mvn", "gradle"),
    *("cc", "gcc", "g++", "clang", "make", "cmake", "ninja", "git"),
)
AGENT_PROGRAMS = ("claude", "codex", "gemini", "opencode", "aider", "goose", "qwen", "copilot", "amp")
_VERSION = re.compile(r"\d+(?:\.\d+)+(?:[-+.\w]*\w)?")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LIMITS = SandboxLimits(memory_mb=4096, processes=256, tmp_mb=64)
_SECONDS = 20
# Sandboxes at once: a start mostly waits for the disk, and the machine has other work.
_AT_ONCE = 4


class ToolVersion(Struct, frozen=True, kw_only=True):
    """One program as sandboxes have it: `host` is its path on the host, `inside` the path that PATH finds there.

    `version` is the version that it printed inside; if it did not start, `problem` gives the reason and `version`
    is empty.
    """

    name: str
    version: str
    host: str
    inside: str
    problem: str = ""


async def read_tool_versions(
    toolchain: Toolchain, *, scratch: Path, driver: DriverName
) -> tuple[ToolVersion, ...]:
    """Start every known program of the toolchain in sandboxes below `scratch`, a few at once; takes seconds.

    Raises `TierUnavailableError` if no sandbox is available.
    """
    found = [(name, place) for name in (*_NAMES, *AGENT_PROGRAMS) if (place := toolchain.find(name))]
    waiting = list(reversed(found))
    seen = {}
    async with ProcessTier(toolchain) as tier:

        async def work() -> None:
            """Start one program after another in one sandbox, until no program waits."""
            with scratch_plan(scratch, driver) as plan:
                sandbox = await tier.open(SandboxSpec(mounts=plan, limits=_LIMITS))
                try:
                    while waiting:
                        name, place = waiting.pop()
                        seen[name] = await _ask_version(sandbox, name, place)
                finally:
                    await sandbox.close()

        # Several sandboxes: a program that hangs or fills its home must not affect all other answers.
        workers = [asyncio.create_task(work()) for _ in range(min(_AT_ONCE, len(found)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    return tuple(seen[name] for name, _ in found)


async def _ask_version(sandbox: Sandbox, name: str, place: str) -> ToolVersion:
    where = await sandbox.exec(["sh", "-c", 'command -v -- "$1"', "sh", name], timeout=_SECONDS)
    said = await sandbox.exec((name, *_VERSION_ARGUMENTS.get(name, ("--version",))), timeout=_SECONDS)
    inside = where.stdout.decode(errors="replace").strip()
    lines = _lines(said.stdout) + _lines(said.stderr)
    if said.exit_code == 0:
        versions = [match[0] for line in lines if (match := _VERSION.search(line))]
        version = versions[0] if versions else (lines or ["unknown"])[0][:40]
        return ToolVersion(name=name, version=version, host=place, inside=inside)
    # The reason of a failure is in a line that contains "error", else in the last line.
    errors = [line for line in reversed(lines) if "rror" in line]
    why = "took more than 20 s" if said.timed_out else (errors or lines[-1:] or [""])[0][:200]
    problem = f"does not start inside: {why or f'exit code {said.exit_code}'}"
    return ToolVersion(name=name, version="", host=place, inside=inside, problem=problem)


def describe_origin(seen: ToolVersion) -> str:
    """Return in a few words how a program gets into a sandbox."""
    if is_system_path(seen.inside):
        return "of the system"
    return "linked" if seen.inside.startswith("/opt/toolchain/") else "shown at its own path"


def _lines(output: bytes) -> list[str]:
    text = _COLOUR.sub("", output.decode(errors="replace"))
    return [line.strip() for line in text.splitlines() if line.strip()]
