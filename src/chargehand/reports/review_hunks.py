"""Hunks of a change for a person's review: lines with context, a stable id, and the lines' origin.

They are the hunks of `workspace.hunks`, which a restore reverts; changes whose contexts touch are one hunk here.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec
from msgspec import Struct

from chargehand.core.records import Change
from chargehand.reports.documents import Document
from chargehand.workspace.depot import Depot
from chargehand.workspace.hunks import Hunk, find_hunks, split_lines

_CONTEXT = 3
# Limits of a file compared by lines, of everything read for one review, and of a shown line.
_LONGEST_FILE_BYTES = 4_000_000
_MOST_READ_BYTES = 64_000_000
_LONGEST_LINE_BYTES = 2_000
# Limits of the lines shown of one hunk, and of all patches together in bytes of JSON.
_MOST_LINES = 2_000
_MOST_PATCH_BYTES = 3_500_000
# The number of latest versions of a file that are searched for the origin of its lines.
_MOST_VERSIONS = 30


class LineOrigin(Struct, frozen=True, kw_only=True):
    """A checkpoint and its origin; `attempt` is its number, `None` if no attempt made it."""

    attempt: int | None
    checkpoint: str
    trigger: str
    step: str | None


class Version(Struct, frozen=True, kw_only=True):
    """A path's mode and content from a checkpoint on; `None` if absent."""

    origin: LineOrigin
    mode: int | None
    id: str | None


class ReviewHunk(Document, frozen=True):
    """Changed lines; a side without lines names the line before, as in a diff.

    `id` stays the same as long as the lines do, wherever they move in the file. `reject` is the hunk's name for
    `checkpoint restore --hunk`, null if only the whole file can be reverted. `checkpoint` is the first checkpoint
    with these lines, null if unknown.
    """

    id: str
    old_start: int
    old_lines: int
    new_start: int
    new_lines: int
    reject: str | None
    attempt: int | None
    checkpoint: str | None
    trigger: str | None
    step: str | None


class FileHunks(Struct, frozen=True, kw_only=True):
    """A changed file split into hunks; each `@@` of the patch is one of the hunks, in order.

    A file without comparable lines has one hunk and no patch. Counts are `None` if lines cannot be counted.
    """

    added: int | None
    removed: int | None
    binary: bool
    patch: str
    truncated: bool
    hunks: tuple[ReviewHunk, ...]


class HunkReader:
    """Splits the files of a change into hunks, within a budget that the files read first use up.

    `history` has the versions of each path, the oldest first.
    """

    def __init__(self, depot: Depot, history: Mapping[str, Sequence[Version]]) -> None:
        self._depot = depot
        self._history = history
        self._to_read = _MOST_READ_BYTES
        self._to_show = _MOST_PATCH_BYTES

    def read(self, change: Change) -> FileHunks:
        """Return one changed file as hunks."""
        old, new = (self._content(*side) for side in _sides(change))
        binary = any(content is not None and b"\0" in content for content in (old, new))
        hunks = None if old is None or new is None or binary else find_hunks(old, new)
        if old is None or new is None or not hunks:
            counted = 0 if hunks is not None else None
            versions = self._history.get(change.path, ())
            origin = versions[-1].origin if versions else None
            for version in reversed(versions):
                if (version.mode, version.id) != (change.new_mode, change.new_id):
                    break
                origin = version.origin
            told = f"{change.path}\0{change.old_mode}{change.old_id}\0{change.new_mode}{change.new_id}"
            whole = _hunk(
                id=hashlib.sha256(os.fsencode(told)).hexdigest()[:20],
                old_start=0,
                old_lines=0,
                new_start=0,
                new_lines=0,
                reject=None,
                origin=origin,
            )
            unseen = hunks is None and not binary
            return FileHunks(
                added=counted, removed=counted, binary=binary, patch="", truncated=unseen, hunks=(whole,)
            )
        return self._compare(change, old, new, hunks)

    def _content(self, mode: int | None, id: str | None) -> bytes | None:
        """Return a side's content, `None` if it is not compared: not a file or link, too large, or over budget."""
        if mode is None or id is None:
            return b""
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            return None
        size = self._depot.blob_size(id)
        if size > min(_LONGEST_FILE_BYTES, self._to_read):
            return None
        self._to_read -= size
        return self._depot.read_blob(id)

    def _compare(self, change: Change, old: bytes, new: bytes, hunks: Sequence[Hunk]) -> FileHunks:
        before, after = split_lines(old), split_lines(new)
        origins = self._origins(change, old, after, hunks)
        by_lines = all(mode is not None and stat.S_ISREG(mode) for mode, _ in _sides(change))
        made, shown, cut = [], [], False
        seen: dict[str, int] = {}
        for group in _group_hunks(hunks):
            first, last = group[0], group[-1]
            told = hashlib.sha256(os.fsencode(change.path))
            for hunk in group:
                told.update(b"\0-" + b"".join(before[hunk.old : hunk.old + hunk.old_lines]))
                told.update(b"\0+" + b"".join(after[hunk.new : hunk.new + hunk.new_lines]))
            digest = told.hexdigest()[:20]
            seen[digest] = seen.get(digest, 0) + 1
            text, all_shown = _render(before, after, group)
            size = len(msgspec.json.encode(text))
            if size > self._to_show:
                # Its place among the hunks has to be kept.
                text, all_shown, size = (
                    _head(before, after, group)[0] + "\\ Too long to show\n",
                    False,
                    100,
                )
            self._to_show -= size
            shown.append(text)
            cut = cut or not all_shown
            origin = max((origins[hunk] for hunk in group), key=lambda found: found[0])[1]
            old_lines = last.old + last.old_lines - first.old
            new_lines = last.new + last.new_lines - first.new
            made.append(
                _hunk(
                    id=digest if seen[digest] == 1 else f"{digest}-{seen[digest]}",
                    old_start=first.old + (1 if old_lines else 0),
                    old_lines=old_lines,
                    new_start=first.new + (1 if new_lines else 0),
                    new_lines=new_lines,
                    reject=_name_for_restore(change.path, group) if by_lines else None,
                    origin=origin,
                )
            )
        return FileHunks(
            added=sum(hunk.new_lines for hunk in hunks),
            removed=sum(hunk.old_lines for hunk in hunks),
            binary=False,
            patch="".join(shown),
            truncated=cut,
            hunks=tuple(made),
        )

    def _origins(
        self, change: Change, old: bytes, after: Sequence[bytes], hunks: Sequence[Hunk]
    ) -> dict[Hunk, tuple[int, LineOrigin | None]]:
        """Return for each hunk the position in the history and the origin of the earliest version that has it."""
        versions = self._history.get(change.path, ())[-_MOST_VERSIONS:]
        last = (len(versions) - 1, versions[-1].origin if versions else None)
        found = dict.fromkeys(hunks, last)
        wanted = {(h.old, h.old_lines, b"".join(after[h.new : h.new + h.new_lines])): h for h in hunks}
        for place in range(len(versions) - 1, -1, -1):
            version = versions[place]
            if version.id == change.new_id:
                found |= dict.fromkeys(wanted.values(), (place, version.origin))
                continue
            content = self._content(version.mode, version.id)
            there = None if content is None else find_hunks(old, content)
            if content is None or there is None:
                break
            lines = split_lines(content)
            keys = {(h.old, h.old_lines, b"".join(lines[h.new : h.new + h.new_lines])) for h in there}
            # Lines that were removed and came back belong to the version that brought them back.
            wanted = {key: hunk for key, hunk in wanted.items() if key in keys}
            if not wanted:
                break
            found |= dict.fromkeys(wanted.values(), (place, version.origin))
        return found


def _sides(change: Change) -> tuple[tuple[int | None, str | None], tuple[int | None, str | None]]:
    return (change.old_mode, change.old_id), (change.new_mode, change.new_id)


def _group_hunks(hunks: Sequence[Hunk]) -> Iterator[list[Hunk]]:
    group = [hunks[0]]
    for before, hunk in pairwise(hunks):
        if hunk.old - (before.old + before.old_lines) > 2 * _CONTEXT:
            yield group
            group = []
        group.append(hunk)
    yield group


def _name_for_restore(path: str, group: Sequence[Hunk]) -> str:
    first, last = group[0], group[-1]
    # A deletion is named by the line before it; at the top of a file by the line after it.
    start = first.new + 1 if first.new_lines else max(first.new, 1)
    end = last.new + last.new_lines if last.new_lines else max(last.new, 1)
    return f"{path}:{start}-{end}"


def _head(before: Sequence[bytes], after: Sequence[bytes], group: Sequence[Hunk]) -> tuple[str, int, int]:
    """Return the `@@` line of a group with its context, and the range of old lines that it covers."""
    first, last = group[0], group[-1]
    start = max(0, first.old - _CONTEXT)
    end = min(len(before), last.old + last.old_lines + _CONTEXT)
    new_start = first.new - (first.old - start)
    new_end = last.new + last.new_lines + end - (last.old + last.old_lines)
    sides = [
        f"{at + (1 if count else 0)},{count}"
        for at, count in ((start, end - start), (new_start, new_end - new_start))
    ]
    return f"@@ -{sides[0]} +{sides[1]} @@\n", start, end


def _render(before: Sequence[bytes], after: Sequence[bytes], group: Sequence[Hunk]) -> tuple[str, bool]:
    """Return a group as a unified diff, and whether it is complete."""
    head, at, end = _head(before, after, group)
    lines: list[bytes] = []
    for hunk in group:
        lines += [b" " + line for line in before[at : hunk.old]]
        at = hunk.old + hunk.old_lines
        lines += [b"-" + line for line in before[hunk.old : at]]
        lines += [b"+" + line for line in after[hunk.new : hunk.new + hunk.new_lines]]
    lines += [b" " + line for line in before[at:end]]
    shown = lines[:_MOST_LINES]
    whole = len(shown) == len(lines)
    text = [head]
    for line in shown:
        whole = whole and len(line) <= _LONGEST_LINE_BYTES
        plain = line.removesuffix(b"\n")
        text.append(
            plain[:_LONGEST_LINE_BYTES].decode(errors="replace")
            + ("…\n" if len(plain) > _LONGEST_LINE_BYTES else "\n")
        )
        if not line.endswith(b"\n"):
            text.append("\\ No newline at end of file\n")
    if len(shown) < len(lines):
        text.append(f"\\ {len(lines) - len(shown)} more lines are not shown\n")
    return "".join(text), whole


def _hunk(
    *,
    id: str,
    old_start: int,
    old_lines: int,
    new_start: int,
    new_lines: int,
    reject: str | None,
    origin: LineOrigin | None,
) -> ReviewHunk:
    return ReviewHunk(
        id=id,
        old_start=old_start,
        old_lines=old_lines,
        new_start=new_start,
        new_lines=new_lines,
        reject=reject,
        attempt=None if origin is None else origin.attempt,
        checkpoint=None if origin is None else origin.checkpoint,
        trigger=None if origin is None else origin.trigger,
        step=None if origin is None else origin.step,
    )
