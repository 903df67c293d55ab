"""Patches of models, read and applied in memory: a patch is fully computed before any file is written.

Hunks are found exactly, or ignoring white space at line ends; nothing more is guessed.
"""

from __future__ import annotations

import difflib
import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from chargehand.agents.patch.parsing import (
    BEGIN,
    FileChange,
    PatchHunk,
    PatchLine,
    PatchProblem,
    is_envelope,
    parse_envelope,
    parse_unified,
)
from chargehand.sandbox.contract import WORKSPACE

_SHOWN_PLACES = 8


class PlannedFile(Struct, frozen=True, kw_only=True):
    """The result for one path: its new text (None: removed), the path whose mode it takes, a changed mode."""

    path: str
    old: str | None
    new: str | None
    mode_of: str | None = None
    executable: bool | None = None


def parse_patch(text: str, *, cwd: str = WORKSPACE) -> tuple[FileChange, ...]:
    """Parse a patch in either notation; raises `PatchProblem`, whose text explains the mistake.

    Its paths are relative to `cwd`, or to the top of the repository, as git writes them, if one of them begins
    with the directory of `cwd` in the repository.
    """
    lines, within = text.split("\n"), f"{posixpath.relpath(cwd, WORKSPACE)}/"
    parse = parse_envelope if is_envelope(lines) else parse_unified
    changes = parse(lines, cwd)
    if any(path.startswith(within * 2) for path in paths_of(changes)):
        changes = parse(lines, WORKSPACE)
    if not changes:
        raise PatchProblem(
            f"no change found in the patch: write {BEGIN!r} with '*** Update File: path' sections, or a unified "
            "diff with '--- a/path' and '+++ b/path' lines"
        )
    return changes


def patch_in(request: str) -> str:
    """Return the patch in a request: people may write text above an envelope."""
    return request[max(request.find(BEGIN), 0) :]


def is_patch(request: str) -> bool:
    """Return whether a request can be read as a patch."""
    try:
        return bool(parse_patch(patch_in(request)))
    except PatchProblem:
        return False


def paths_of(changes: Sequence[FileChange]) -> tuple[str, ...]:
    """Return every path that a patch reads or writes, each once."""
    named = [path for change in changes for path in (change.path, change.move_to) if path]
    return tuple(dict.fromkeys(named))


def plan_changes(changes: Sequence[FileChange], files: Mapping[str, str | None]) -> tuple[PlannedFile, ...]:
    """Apply a patch to `files` (None: the file does not exist); raises `PatchProblem`.

    A change sees the result of the changes before it. Paths that end unchanged are left out.
    """
    now = dict(files)
    mode_of: dict[str, str | None] = {}
    executable: dict[str, bool | None] = {}

    def require_vacant(path: str) -> None:
        if now[path]:
            raise PatchProblem(f"{path} exists already: update it, or delete it first")

    for change in changes:
        path = change.path
        if change.action == "add":
            require_vacant(path)
            now[path] = added_text(change.hunks, path=path)
            executable[path] = change.executable
            continue
        text = now[path]
        if text is None:
            raise PatchProblem(f"{path}: there is no such file")
        after = apply_hunks(text, change.hunks, path=path)
        if change.action == "delete":
            if after and change.hunks:
                raise PatchProblem(f"{path}: the file has more lines than the patch removes")
            now[path] = None
            continue
        target = change.move_to or path
        if target != path:
            require_vacant(target)
            now[path] = None
            mode_of[target] = mode_of.get(path) or path
        now[target] = after
        if change.executable is not None:
            executable[target] = change.executable
    return tuple(
        PlannedFile(
            path=path, old=files[path], new=new, mode_of=mode_of.get(path), executable=executable.get(path)
        )
        for path, new in now.items()
        if new != files[path] or executable.get(path) is not None
    )


def apply_hunks(text: str, hunks: Sequence[PatchHunk], *, path: str) -> str:
    """Apply hunks to `text`; raises `PatchProblem` naming `path`, the hunk and the nearest region."""
    old = TextLines.of(text)
    new = TextLines([], old.ended)
    cursor = 0
    mostly_crlf = sum(line.endswith("\r") for line in old.lines) * 2 > len(old.lines)
    for number, hunk in enumerate(hunks, 1):
        start, exact = _HunkSearch(old.lines, hunk, cursor, f"{path}, hunk {number} of {len(hunks)}").place()
        new.lines += old.lines[cursor:start]
        cursor = start
        # Kept lines stay as in the file; added ones take its line ends if the patch lacks them.
        for line in hunk.lines:
            if line.sign == " ":
                new.lines.append(old.lines[cursor])
            elif line.sign == "+":
                fitted = line.text.removesuffix("\r") + ("\r" if mostly_crlf else "")
                new.lines.append(line.text if exact or not old.lines else fitted)
            cursor += line.sign != "+"
        # Only marks on the hunk's last lines change whether the text ends in a line feed.
        lines_after = [line for line in hunk.lines if line.sign != "-"]
        lines_before = [line for line in hunk.lines if line.sign != "+"]
        if lines_after and not lines_after[-1].ended:
            new.ended = False
        elif lines_before and not lines_before[-1].ended:
            new.ended = True
    new.lines += old.lines[cursor:]
    return new.join()


class _HunkSearch(Struct, frozen=True):
    """The search for a hunk's place among `lines`, from `cursor` on; problems name it by `title`."""

    lines: Sequence[str]
    hunk: PatchHunk
    cursor: int
    title: str

    def place(self) -> tuple[int, bool]:
        """Return where the hunk's old lines begin, and whether they match exactly; raises `PatchProblem`."""
        hunk, wanted = self.hunk, self.hunk.old
        below_anchors, unsure = self._find_anchors()
        if not wanted:
            return self._place_insertion(below_anchors), hunk.near is not None
        at_end = hunk.at_end or any(not line.ended for line in hunk.lines if line.sign != "+")
        # White space at line ends is the most common mistake of models; nothing more is guessed.
        for exact in (True, False):
            places = self._find_places(self.cursor, exact=exact)
            if at_end:
                places = [start for start in places if start + len(wanted) == len(self.lines)] or places
            if len(places) == 1:
                return places[0], exact
            if hunk.near in places:
                return hunk.near, exact
            after = [start for start in places if start >= below_anchors]
            if hunk.anchors and after and not unsure:
                return after[0], exact
            if places:
                shown = ", ".join(str(start + 1) for start in places[:_SHOWN_PLACES])
                more = ", ..." if len(places) > _SHOWN_PLACES else ""
                raise self._problem(
                    f"its lines occur in several places (lines {shown}{more}): give more lines around the "
                    "change, or an '@@' line with a unique line above it"
                )
        if self._find_places(0, exact=False):
            raise self._problem("its lines are above the previous hunk: write the hunks in the order of the file")
        region = nearest_region(self.lines, wanted)
        if region is None:
            raise self._problem("the file has no similar lines: read the file again")
        hint = whitespace_hint(region.lines, wanted)
        raise self._problem(f"its lines are not in the file as written.{hint} The nearest place is:\n{region}")

    def _find_places(self, start: int, *, exact: bool) -> list[int]:
        wanted = self.hunk.old if exact else [line.rstrip() for line in self.hunk.old]
        lines = self.lines if exact else [line.rstrip() for line in self.lines]
        length = len(wanted)
        return [
            at
            for at in range(start, len(lines) - length + 1)
            if lines[at] == wanted[0] and list(lines[at : at + length]) == wanted
        ]

    def _place_insertion(self, below_anchors: int) -> int:
        """Return the place of lines in a hunk that only adds."""
        hunk = self.hunk
        if not self.lines:
            return 0
        if hunk.at_end:
            return len(self.lines)
        if hunk.anchors:
            return max(below_anchors, self.cursor)
        if hunk.near is not None and self.cursor <= hunk.near <= len(self.lines):
            return hunk.near
        raise self._problem("it only adds lines: give the lines around the place where they go")

    def _find_anchors(self) -> tuple[int, bool]:
        """Return the line below the anchors, and whether one of them occurs in several places."""
        cursor = self.cursor
        unsure = False
        stripped = [line.strip() for line in self.lines]
        for anchor in self.hunk.anchors:
            # A whole line, or the beginning of one up to the end of a word (`class A` for `class A:`).
            places = [at for at in range(cursor, len(stripped)) if stripped[at] == anchor] or [
                at
                for at in range(cursor, len(stripped))
                if stripped[at].startswith(anchor)
                and not (stripped[at][len(anchor)].isalnum() and anchor[-1].isalnum())
            ]
            if not places:
                near = nearest_region(self.lines, [anchor])
                shown = f"\n{near}" if near else ""
                raise self._problem(f"the file has no line {anchor!r} to start from{shown}")
            unsure = unsure or len(places) > 1
            cursor = places[0] + 1
        if unsure and not self.hunk.old:
            anchor = self.hunk.anchors[-1]
            raise self._problem(f"{anchor!r} occurs in several places: give the lines around the change")
        return cursor, unsure

    def _problem(self, text: str) -> PatchProblem:
        return PatchProblem(f"{self.title}: {text}")


class TextLines(Struct):
    """A text as lines without their line feeds; `ended` is false if the last line has no line feed."""

    lines: list[str]
    ended: bool = True

    @classmethod
    def of(cls, text: str) -> TextLines:
        """Split a text."""
        if not text:
            return cls([])
        lines = text.split("\n")
        return cls(lines[:-1]) if not lines[-1] else cls(lines, ended=False)

    def join(self) -> str:
        """Return the text."""
        return "\n".join(self.lines) + ("\n" if self.lines and self.ended else "")


def added_text(hunks: Sequence[PatchHunk], *, path: str) -> str:
    """Return the content of a new file; raises `PatchProblem` if its hunks expect existing lines."""
    lines: list[PatchLine] = [line for hunk in hunks for line in hunk.lines]
    if any(line.sign != "+" for line in lines):
        raise PatchProblem(f"{path}: every line of a new file begins with '+'")
    return TextLines([line.text for line in lines], all(line.ended for line in lines)).join()


_REGION_LINES = 20
_COMPARED_LINES = 4000
_LINE_SHOWN = 200
_DIFF_LINES = 60
_DIFF_BYTES = 400_000


class TextRegion(Struct, frozen=True):
    """Lines of a text and the number of the first (from 1)."""

    first: int
    lines: tuple[str, ...]

    def __str__(self) -> str:
        shown = (f"{self.first + at:6}\t{_cut_line(line)}" for at, line in enumerate(self.lines[:_REGION_LINES]))
        return "\n".join(shown)


def nearest_region(lines: Sequence[str], wanted: Sequence[str]) -> TextRegion | None:
    """Return the region of `lines` most similar to `wanted`, or None if no line is similar."""
    # Each line that occurs in both, ignoring white space, votes for a beginning; rare ones weigh more. Not difflib
    # on the whole text: that is quadratic, and a model waits for the answer.
    offsets: dict[str, list[int]] = {}
    for offset, line in enumerate(wanted[:_COMPARED_LINES]):
        if line.strip():
            offsets.setdefault(line.strip(), []).append(offset)
    found = [(at, line.strip()) for at, line in enumerate(lines) if line.strip() in offsets]
    common = Counter(text for _, text in found)
    votes: Counter[int] = Counter()
    for at, text in found:
        for offset in offsets[text][:_REGION_LINES]:
            votes[at - offset] += len(text) * 1000 // common[text]  # a brace is everywhere and says little
    start = max(votes, key=lambda start: (votes[start], -start)) if votes else None
    if start is None:
        # No line is equal: use the one most similar to the longest wanted line.
        longest = max(range(len(wanted)), key=lambda at: len(wanted[at].strip()), default=0)
        target = wanted[longest].strip()[:_LINE_SHOWN] if wanted else ""
        stripped = [line.strip()[:_LINE_SHOWN] for line in lines[:_COMPARED_LINES]]
        close = difflib.get_close_matches(target, set(stripped), n=1, cutoff=0.5) if target else []
        if not close:
            return None
        start = stripped.index(close[0]) - longest
    start = max(0, min(start, len(lines) - 1))
    return TextRegion(start + 1, tuple(lines[start : start + max(len(wanted), 1)]))


def whitespace_hint(found: Sequence[str], wanted: Sequence[str]) -> str:
    """Return a sentence (after a space) if two regions differ only in white space, else nothing."""
    if [line.split() for line in found] != [line.split() for line in wanted]:
        return ""
    tabs = [any(line.startswith("\t") for line in side) for side in (found, wanted)]
    if tabs[0] != tabs[1]:
        return f" Only the indentation differs: the file uses {'tabs' if tabs[0] else 'spaces'}."
    return " Only white space differs: copy the lines with their exact indentation."


def unified_diff(old: str, new: str, path: str, *, context: int = 3) -> str:
    """Return the change as a strictly valid unified diff, with marks for missing line feeds."""
    made = difflib.unified_diff(_split_lines(old), _split_lines(new), f"a/{path}", f"b/{path}", n=context)
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in made)


def diff_text(old: str, new: str, path: str) -> str:
    """Return a small diff for the model: its first lines, and the number of the rest."""
    if len(old) + len(new) > _DIFF_BYTES:
        return f"{path}: {len(old)} -> {len(new)} characters"
    lines = [_cut_line(line) for line in unified_diff(old, new, path, context=2).split("\n")]
    if len(lines) <= _DIFF_LINES:
        return "\n".join(lines).rstrip("\n")
    return "\n".join(lines[:_DIFF_LINES]) + f"\n[... {len(lines) - _DIFF_LINES} more lines of the diff ...]"


def _split_lines(text: str) -> list[str]:
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _cut_line(line: str) -> str:
    line = line.rstrip("\r")
    return line if len(line) <= _LINE_SHOWN else line[:_LINE_SHOWN] + f"[... {len(line) - _LINE_SHOWN} more]"
