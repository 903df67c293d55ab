"""Unified diffs as git and diff write them, and as models write them (with wrong counts and line numbers)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from chargehand.agents._patch_model import FileChange, Hunk, Line, PatchProblem, Sign, workspace_path

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_QUOTED = re.compile(rb'\\([abtnvfr"\\]|[0-7]{3})')
_QUOTES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}
_SIGNS: dict[str, Sign] = {" ": " ", "-": "-", "+": "+"}
_NOWHERE = "/dev/null"


def parse_unified(lines: Sequence[str]) -> tuple[FileChange, ...]:
    """Return the changes; text before the first header is skipped. Raises `PatchProblem`."""
    reader = _Reader(lines)
    found = []
    while reader.seek():
        found.append(reader.file())
    return tuple(found)


@dataclass(slots=True)
class _Heads:
    """What the lines above the hunks of one file say."""

    git: str | None = None
    old: str | None = None
    new: str | None = None
    rename_from: str | None = None
    rename_to: str | None = None
    created: bool = False
    deleted: bool = False
    executable: bool | None = None


class _Reader:
    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._at = 0

    def seek(self) -> bool:
        """Go to the next file header; a hunk without one is a mistake."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.startswith("diff --git ") or self._is_header(self._at):
                return True
            if line.startswith("@@"):
                raise self._problem("a hunk without '--- a/path' and '+++ b/path' lines above it")
            self._at += 1
        return False

    def file(self) -> FileChange:
        """Read one file's headers and hunks."""
        heads = _Heads()
        if self._lines[self._at].startswith("diff --git "):
            heads.git = self._lines[self._at].rstrip()[len("diff --git ") :]
            self._at += 1
            while self._extended(heads):
                self._at += 1
        if self._is_header(self._at):
            heads.old = _name(self._lines[self._at][4:])
            heads.new = _name(self._lines[self._at + 1][4:])
            self._at += 2
        hunks = []
        while self._at < len(self._lines) and self._lines[self._at].startswith("@@"):
            hunks.append(self._hunk())
        return self._change(heads, tuple(hunks))

    def _is_header(self, at: int) -> bool:
        pair = self._lines[at : at + 2]
        return len(pair) == 2 and pair[0].startswith("--- ") and pair[1].startswith("+++ ")

    def _extended(self, heads: _Heads) -> bool:
        if self._at >= len(self._lines) or self._is_header(self._at):
            return False
        line = self._lines[self._at].rstrip()
        if line.startswith(("GIT binary patch", "Binary files ")):
            raise self._problem("binary patches cannot be applied: make the file with bash")
        if line.startswith(("copy from ", "copy to ")):
            raise self._problem("copies cannot be applied: add the new file with all its lines")
        if line.startswith("rename from "):
            heads.rename_from = _name(line[len("rename from ") :])
        elif line.startswith("rename to "):
            heads.rename_to = _name(line[len("rename to ") :])
        elif mode := re.fullmatch(r"(new file|deleted file|old|new) mode (\d{6})", line):
            self._mode(heads, mode[1], mode[2])
        return line.startswith(("rename ", "similarity ", "dissimilarity ", "index ", "new ", "deleted ", "old "))

    def _mode(self, heads: _Heads, which: str, mode: str) -> None:
        if not mode.startswith("100"):
            raise self._problem(f"mode {mode} (a link or submodule) cannot be applied: make it with bash")
        heads.created |= which == "new file"
        heads.deleted |= which == "deleted file"
        if which in ("new file", "new"):
            heads.executable = mode == "100755"

    def _change(self, heads: _Heads, hunks: tuple[Hunk, ...]) -> FileChange:
        old, new = self._names(heads)
        if heads.created or old == _NOWHERE:
            return FileChange(action="add", path=workspace_path(new), hunks=hunks, executable=heads.executable)
        if heads.deleted or new == _NOWHERE:
            return FileChange(action="delete", path=workspace_path(old), hunks=hunks)
        if not hunks and heads.executable is None and heads.rename_to is None:
            raise self._problem(f"the diff of {new!r} has no hunks ('@@ -1,3 +1,4 @@')", back=1)
        source, target = workspace_path(old), workspace_path(new)
        move_to = None if source == target else target
        return FileChange(action="update", path=source, move_to=move_to, hunks=hunks, executable=heads.executable)

    def _names(self, heads: _Heads) -> tuple[str, str]:
        if heads.rename_from and heads.rename_to:
            return heads.rename_from, heads.rename_to
        if heads.old is not None and heads.new is not None:
            return _stripped(heads.old, heads.new)
        # `diff --git a/path b/path` alone (an empty file, a mode): both halves are the same path
        words = heads.git or ""
        half = len(words) // 2
        old, new = _stripped(_name(words[:half]), _name(words[half + 1 :]))
        if old != new:
            raise self._problem("no '--- a/path' and '+++ b/path' lines tell the path", back=1)
        return old, new

    def _hunk(self) -> Hunk:
        title = self._lines[self._at]
        near: int | None = None
        anchors: tuple[str, ...] = ()
        left = [0, 0]
        if head := _HUNK.match(title):
            left = [int(head[2] or 1), int(head[4] or 1)]
            near = int(head[1]) - (1 if left[0] else 0)
        elif anchor := title.strip("@ .\r"):
            anchors = (anchor,)
        self._at += 1
        start = self._at
        lines: list[Line] = []
        while self._at < len(self._lines) and self._take(lines, left):
            self._at += 1
        end = self._at
        while end > start and max(left) < 0 and not self._lines[end - 1]:
            lines.pop()  # blank lines below the last counted one are layout
            end -= 1
            left = [left[0] + 1, left[1] + 1]
        if all(line.sign == " " for line in lines):
            raise self._problem("this hunk changes nothing: mark lines with '-' to remove and '+' to add", back=1)
        return Hunk(lines=tuple(lines), near=near, anchors=anchors)

    def _take(self, lines: list[Line], left: list[int]) -> bool:
        """Take one line into the hunk, or say that it is over; the header's counts are trusted while they last."""
        line = self._lines[self._at]
        if line.startswith("\\"):
            if lines:
                last = lines[-1]
                lines[-1] = Line(sign=last.sign, text=last.text, ended=False)
            return True
        if self._is_over(line, left):
            return False
        sign: Sign = _SIGNS[line[0]] if line else " "
        left[0] -= sign != "+"
        left[1] -= sign != "-"
        lines.append(Line(sign=sign, text=line[1:]))
        return True

    def _is_over(self, line: str, left: list[int]) -> bool:
        if line and line[0] not in _SIGNS:
            return True
        if max(left) > 0:
            third = self._lines[self._at + 2 : self._at + 3]
            counted_too_many = left != [1, 1] and bool(third) and third[0].startswith("@@")
            last = not line and self._at == len(self._lines) - 1
            return last or (self._is_header(self._at) and counted_too_many)
        if not line:
            rest = self._lines[self._at :]
            return not any(rest)
        return self._is_header(self._at) or line.rstrip() == "--"  # the signature that git puts below mails

    def _problem(self, text: str, *, back: int = 0) -> PatchProblem:
        return PatchProblem(f"line {self._at + 1 - back} of the patch: {text}")


def _name(word: str) -> str:
    """Return a path without its time stamp, git's quotes taken off."""
    word = word.split("\t")[0].rstrip()
    if len(word) < 2 or not (word.startswith('"') and word.endswith('"')):
        return word
    inner = word[1:-1].encode("utf-8", "surrogateescape")
    plain = _QUOTED.sub(lambda m: bytes([_QUOTES.get(m[1]) or int(m[1], 8) & 255]), inner)
    return plain.decode("utf-8", "surrogateescape")


def _stripped(old: str, new: str) -> tuple[str, str]:
    """Take git's a/ and b/ off, when both sides have them."""
    sides = ((old, "a/"), (new, "b/"))
    if all(name == _NOWHERE or name.startswith(prefix) for name, prefix in sides):
        return old.removeprefix("a/"), new.removeprefix("b/")
    return old, new
