"""The tools that write: `edit` replaces exact text in one file, `apply_patch` changes several files atomically."""

from __future__ import annotations

import json
import posixpath
import re
import sys
import tomllib
from collections import Counter

from chargehand.agents.patch.parsing import PatchProblem
from chargehand.agents.patches import (
    PlannedFile,
    diff_text,
    nearest_region,
    parse_patch,
    paths_of,
    plan_changes,
    whitespace_hint,
)
from chargehand.agents.tool_specs import Mistake, ToolResult
from chargehand.agents.tools.files import PathStatus, PendingWrite, SandboxFiles, writable
from chargehand.agents.tools.reading import missing
from chargehand.core.text import parse_python
from chargehand.sandbox.contract import WORKSPACE

# Bytes of a file whose syntax is checked.
LARGEST_CHECKED = 200_000
# JSON files with these names contain comments by custom: they are not checked.
_WITH_COMMENTS = ("tsconfig", "jsconfig", ".eslintrc", "devcontainer", "settings", "launch", "tasks")
_SHOWN_PLACES = 10
_MOST_FILES = 200
_MOST_CHARACTERS = 8_000


async def edit(files: SandboxFiles, path: str, old: str, new: str, all: bool = False) -> ToolResult:
    """Replace `old` by `new` in a file of the workspace; raises `Mistake`."""
    status = await files.look(path)
    target = writable(path, status)
    if not status.exists and old:
        raise Mistake(await missing(files, path, status))
    before = decode_text(await files.content(path, status)) if status.exists else ""
    if not old and before:
        raise Mistake(f"{path} exists and is not empty: give the text to replace as `old`")
    after = replace_text(before, old, new, path=path, every=all) if old else new
    if after == before and status.exists:
        raise Mistake(f"{path} would stay as it is: `old` and `new` are the same")
    data = encode_text(after)
    await files.write([PendingWrite(path=target, data=data, mode_of=status.word if status.exists else "")])
    return ToolResult(text=change_report(path, before, after, data, is_new=not status.exists))


def replace_text(text: str, old: str, new: str, *, path: str, every: bool = False) -> str:
    """Return `text` with `old` replaced; raises `Mistake` unless it occurs once (or `every`).

    In a file whose lines end in CRLF, `old` and `new` may be written with plain line feeds.
    """
    # Models write plain line feeds whatever the file has; if the text mixes both, only as given.
    if "\r\n" in text and "\r" not in old + new and (old not in text or text.count("\n") == text.count("\r\n")):
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    # Overlapping places too: choosing one of them would be a guess.
    places = [found.start() for found in re.finditer(f"(?={re.escape(old)})", text)]
    if not places:
        if not text:
            raise Mistake(f"{path} is empty: write it with an empty `old`")
        wanted = old.removesuffix("\n").splitlines()
        region = nearest_region(text.splitlines(), wanted)
        if region is None:
            raise Mistake(f"`old` is not in {path}, nor anything like it: read the file again")
        hint = whitespace_hint(region.lines, wanted)
        shown = str(region).encode("utf-8", "replace").decode()
        raise Mistake(f"`old` is not in {path} as written.{hint} The nearest place is:\n{shown}")
    if len(places) > 1 and not every:
        numbers = [str(text.count("\n", 0, at) + 1) for at in places[:_SHOWN_PLACES]]
        more = ", ..." if len(places) > _SHOWN_PLACES else ""
        raise Mistake(
            f"`old` occurs in {path} {len(places)} times (from lines {', '.join(numbers)}{more}): "
            "add lines around it until it is the only one, or set all=true"
        )
    return text.replace(old, new)


async def apply_patch(files: SandboxFiles, patch: str) -> ToolResult:
    """Apply a patch in either notation to all of its files; writes nothing if it raises `Mistake`."""
    try:
        changes = parse_patch(patch, cwd=files.cwd)
        paths = paths_of(changes)
        if len(paths) > _MOST_FILES:
            raise Mistake(f"the patch changes {len(paths)} files: at most {_MOST_FILES} at once")
        statuses = {path: await files.look(posixpath.join(WORKSPACE, path)) for path in paths}
        made = {change.path if change.action == "add" else change.move_to for change in changes}
        needed = {change.path for change in changes if change.action != "add"} - made
        before: dict[str, str | None] = {}
        for path, status in statuses.items():
            if path in needed and not status.exists:
                raise Mistake(f"nothing was changed. {await missing(files, path, status)}")
            writable(path, status)
            before[path] = decode_text(await files.content(path, status)) if status.exists else None
        planned = plan_changes(changes, before)
    except PatchProblem as problem:
        raise Mistake(f"nothing was changed. {problem}") from None
    if not planned:
        raise Mistake("the patch leaves every file as it is")
    writes = [_plan_write(each, statuses) for each in planned]
    if twice := next((path for path, times in Counter(each.path for each in writes).items() if times > 1), None):
        # Through a link, two paths can lead to one file: choosing one of the two texts would be a guess.
        raise Mistake(f"nothing was changed. Two paths of the patch are the same file, {twice}")
    await files.write(writes)
    reports = []
    left = _MOST_CHARACTERS
    for each in planned:
        text = f"{each.path}: removed"
        if each.new is not None:
            text = change_report(
                each.path, each.old or "", each.new, encode_text(each.new), is_new=each.old is None
            )
        left -= len(text)
        reports.append(text if left > 0 else f"{each.path}: changed")
    return ToolResult(text="\n".join(reports))


def _plan_write(planned: PlannedFile, statuses: dict[str, PathStatus]) -> PendingWrite:
    status = statuses[planned.path]
    if planned.new is None:  # the link itself is removed, not its target
        return PendingWrite(path=status.word.removeprefix("./"), data=None)
    mode_of = status.word if status.exists else ""
    if planned.mode_of:
        mode_of = statuses[planned.mode_of].word
    data = encode_text(planned.new)
    return PendingWrite(
        path=status.real or planned.path, data=data, mode_of=mode_of, executable=planned.executable
    )


def decode_text(data: bytes) -> str:
    """Return a file's text; `encode_text` restores bytes that are not UTF-8."""
    return data.decode("utf-8", "surrogateescape")


def encode_text(text: str) -> bytes:
    """Return the bytes of a text that `decode_text` returned."""
    return text.encode("utf-8", "surrogateescape")


def change_report(path: str, before: str, after: str, data: bytes, *, is_new: bool = False) -> str:
    """Return the report to the model on a change: the diff, and whether the file still parses."""
    lines = after.count("\n") + bool(after and not after.endswith("\n"))
    text = (
        f"{path}: new file, {lines} line{'' if lines == 1 else 's'}" if is_new else diff_text(before, after, path)
    )
    shown = text.encode("utf-8", "replace").decode()
    syntax = syntax_line(path, data)
    return f"{shown}\n{syntax}" if syntax else shown


def syntax_line(path: str, data: bytes) -> str | None:
    """Return "syntax: ok", or the error with its line; `None` for files that are not checked. Nothing is run."""
    name = path.rpartition("/")[2]
    if len(data) > LARGEST_CHECKED:
        return None
    try:
        if name.endswith((".py", ".pyi")):
            parse_python(data)
        elif name.endswith(".toml"):
            tomllib.loads(data.decode())
        elif name.endswith(".json") and not name.startswith(_WITH_COMMENTS):
            json.loads(data)
        else:
            return None
    except SyntaxError as error:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return f"syntax: {error.msg} at line {error.lineno or '?'} (as Python {version} reads it)"
    except json.JSONDecodeError as error:
        return f"syntax: {error.msg} at line {error.lineno}, column {error.colno}"
    except (ValueError, RecursionError, MemoryError) as error:  # TOML errors, wrong encodings, too deep nesting
        return f"syntax: {str(error)[:200] or 'too deeply nested to check'}"
    return "syntax: ok"
