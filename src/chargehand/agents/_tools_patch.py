"""The `apply_patch` tool: several files at once, all or none."""

from __future__ import annotations

from collections.abc import Sequence

from chargehand.agents._patch import parse_patch
from chargehand.agents._patch_model import FileChange, PatchProblem
from chargehand.agents._patch_plan import Planned, paths_of, plan
from chargehand.agents._tools_edit import decoded, encoded, report
from chargehand.agents._tools_files import Change, Entry, Files, writable
from chargehand.agents._tools_model import Mistake, ToolResult
from chargehand.agents._tools_read import missing

_MOST_FILES = 200
_MOST_CHARACTERS = 8_000


async def apply_patch(files: Files, patch: str) -> ToolResult:
    """Apply a patch in either notation; raises `Mistake` and then has written nothing."""
    try:
        changes = parse_patch(patch)
        paths = paths_of(changes)
        if len(paths) > _MOST_FILES:
            raise Mistake(f"the patch changes {len(paths)} files: at most {_MOST_FILES} at once")
        entries = {path: await files.look(path) for path in paths}
        needed = _needed(changes)
        before = {path: await _text(files, path, entries[path], path in needed) for path in paths}
        planned = plan(changes, before)
    except PatchProblem as problem:
        raise Mistake(f"nothing was changed. {problem}") from None
    if not planned:
        raise Mistake("the patch leaves every file as it is")
    await files.write(_each_once([_change(each, entries) for each in planned]))
    return ToolResult(text=_told(planned))


def _needed(changes: Sequence[FileChange]) -> set[str]:
    """Return the paths that must be there already: changed by the patch and not made by it."""
    made = {change.path if change.action == "add" else change.move_to for change in changes}
    return {change.path for change in changes if change.action != "add"} - made


async def _text(files: Files, path: str, entry: Entry, needed: bool) -> str | None:
    if needed and not entry.exists:
        raise Mistake(f"nothing was changed. {await missing(files, path, entry)}")
    writable(path, entry)
    return decoded(await files.content(path, entry)) if entry.exists else None


def _change(each: Planned, entries: dict[str, Entry]) -> Change:
    entry = entries[each.path]
    if each.new is None:
        return Change(path=entry.word.removeprefix("./"), data=None)  # a link itself goes, not what it leads to
    mode_of = entries[each.mode_of].word if each.mode_of else entry.word if entry.exists else ""
    data = encoded(each.new)
    return Change(path=entry.real or each.path, data=data, mode_of=mode_of, executable=each.executable)


def _each_once(changes: list[Change]) -> list[Change]:
    """Two paths may lead to one file by a link: which of the two texts it should get would be a guess."""
    seen: set[str] = set()
    for change in changes:
        if change.path in seen:
            raise Mistake(f"nothing was changed. Two paths of the patch are the same file, {change.path}")
        seen.add(change.path)
    return changes


def _told(planned: tuple[Planned, ...]) -> str:
    parts, left = [], _MOST_CHARACTERS
    for each in planned:
        part = _told_of(each)
        left -= len(part)
        parts.append(part if left > 0 else f"{each.path}: changed")
    return "\n".join(parts)


def _told_of(each: Planned) -> str:
    if each.new is None:
        return f"{each.path}: removed"
    return report(each.path, each.old or "", each.new, encoded(each.new), made=each.old is None)
