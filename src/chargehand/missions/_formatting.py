"""Formatters run in a sandbox on a workspace of its own: what they make of a tree, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from chargehand.checks.formatters import Formatter
from chargehand.core.records import Change
from chargehand.sandbox.contract import ExecResult, Sandbox
from chargehand.workspace.depot import Depot
from chargehand.workspace.workspace import Workspace

_AT_ONCE = 400
"""Files that one run of a formatter is given at most: their names must fit into a command line."""
_KEPT_BYTES = 4000
_NOT_FOUND = (126, 127)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatRun:
    """How one formatter fared; `problem` is "" where it went well, what it said otherwise."""

    name: str
    files: int
    seconds: float
    problem: str = ""
    missing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Formatted:
    """What became of a tree; `changes` are of files that a formatter was given, whatever else it wrote."""

    before: str
    tree: str
    changes: tuple[Change, ...]
    runs: tuple[FormatRun, ...]


async def run_formatters(
    depot: Depot,
    workspace: Workspace,
    sandbox: Sandbox,
    formatters: Sequence[Formatter],
    files: Mapping[str, Sequence[str]],
    *,
    tree: str,
    seconds: float,
) -> Formatted:
    """Run the formatters on their files, one after the other, each for `seconds` at most a call."""
    runs = [await _run(sandbox, each, files[each.name], seconds) for each in formatters if files[each.name]]
    after = (await asyncio.to_thread(workspace.checkpoint, "formatted")).tree
    given = {path for paths in files.values() for path in paths}
    touched = sorted(change.path for change in depot.diff(tree, after) if change.path in given)
    made = depot.replace_paths(tree, touched, after)
    return Formatted(before=tree, tree=made, changes=depot.diff(tree, made), runs=tuple(runs))


async def _run(sandbox: Sandbox, formatter: Formatter, files: Sequence[str], seconds: float) -> FormatRun:
    taken, problems, missing = 0.0, [], False
    for part in _parts(files):
        result = await sandbox.exec((*formatter.command, *(f"./{path}" for path in part)), timeout=seconds)
        taken += result.seconds
        if result.exit_code or result.timed_out:
            missing = missing or result.exit_code in _NOT_FOUND
            problems.append(_problem(result, seconds))
    return FormatRun(
        name=formatter.name,
        files=len(files),
        seconds=taken,
        problem="\n".join(problems)[:_KEPT_BYTES],
        missing=missing,
    )


def _parts(files: Sequence[str]) -> Iterator[Sequence[str]]:
    return (files[start : start + _AT_ONCE] for start in range(0, len(files), _AT_ONCE))


def _problem(result: ExecResult, seconds: float) -> str:
    if result.timed_out:
        return f"it took longer than {seconds:g} s"
    said = (result.stderr or result.stdout).decode(errors="replace").strip()
    return said or f"it ended with exit code {result.exit_code}"
