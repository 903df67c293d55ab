"""Patches between `*** Begin Patch` and `*** End Patch`, with `@@` anchors instead of line numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from chargehand.agents._patch_model import FileChange, Hunk, Line, PatchProblem, Sign, workspace_path

BEGIN, END = "*** Begin Patch", "*** End Patch"
_ADD, _UPDATE, _DELETE, _MOVE = "*** Add File:", "*** Update File:", "*** Delete File:", "*** Move to:"
_END_OF_FILE = "*** End of File"
_NUMBERS = re.compile(r"-(\d+)(?:,\d+)? \+\d+(?:,\d+)?(?: @@ ?| *$)")
_SIGNS: dict[str, Sign] = {" ": " ", "-": "-", "+": "+"}


def looks_like_envelope(lines: Sequence[str]) -> bool:
    """Say whether the text is meant in this notation."""
    heads = (BEGIN, END, _ADD, _UPDATE, _DELETE)
    return any(line.startswith(heads) for line in lines)


def parse_envelope(lines: Sequence[str]) -> tuple[FileChange, ...]:
    """Return the changes; raises `PatchProblem`."""
    bodies = [line.rstrip() for line in lines]
    if BEGIN not in bodies:
        raise PatchProblem(f"the patch must begin with a line {BEGIN!r}")
    start = bodies.index(BEGIN) + 1
    if END not in bodies[start:]:
        raise PatchProblem(f"the patch must end with a line {END!r}: without it, it may have been cut off")
    end = bodies.index(END, start)
    return _Reader(lines[start:end], start + 1).changes()


class _Reader:
    """Reads section after section; `first` is the number of the first line, for messages."""

    def __init__(self, lines: Sequence[str], first: int) -> None:
        self._lines = lines
        self._first = first
        self._at = 0

    def changes(self) -> tuple[FileChange, ...]:
        found = []
        while self._at < len(self._lines):
            head = self._lines[self._at].rstrip()
            if head:
                found.append(self._section(head))
            else:
                self._at += 1
        return tuple(found)

    def _section(self, head: str) -> FileChange:
        self._at += 1
        if head.startswith(_ADD):
            return FileChange(action="add", path=_path(head, _ADD), hunks=self._added())
        if head.startswith(_DELETE):
            return FileChange(action="delete", path=_path(head, _DELETE))
        if head.startswith(_UPDATE):
            return self._update(_path(head, _UPDATE))
        raise self._problem(
            f"expected {_ADD!r}, {_UPDATE!r} or {_DELETE!r} and a path, found {head[:80]!r}", back=1
        )

    def _added(self) -> tuple[Hunk, ...]:
        lines: list[Line] = []
        while (line := self._next()) is not None:
            if line.startswith("+"):
                lines.append(Line(sign="+", text=line[1:]))
            elif line.startswith("\\") and lines:
                lines[-1] = Line(sign="+", text=lines[-1].text, ended=False)
            elif line.strip():
                raise self._problem(f"every line of a new file begins with '+', found {line[:80]!r}")
            self._at += 1
        return (Hunk(lines=tuple(lines)),) if lines else ()

    def _update(self, path: str) -> FileChange:
        move_to = None
        line = self._next(own=_MOVE)
        if line is not None and line.startswith(_MOVE):
            move_to = _path(line.rstrip(), _MOVE)
            self._at += 1
        hunks: list[Hunk] = []
        while (line := self._next()) is not None:
            if line.strip() or hunks:
                hunk = self._hunk()
                if hunk.lines:
                    hunks.append(hunk)
            else:
                self._at += 1
        if not hunks and move_to is None:
            raise self._problem(f"the update of {path!r} has no lines that begin with '-' or '+'", back=1)
        return FileChange(action="update", path=path, move_to=move_to, hunks=tuple(hunks))

    def _hunk(self) -> Hunk:
        anchors, near = self._anchors()
        lines: list[Line] = []
        blank = 0
        at_end = False
        while (line := self._next(own=_END_OF_FILE)) is not None and not line.startswith("@@"):
            self._at += 1
            if line.startswith(_END_OF_FILE):
                at_end = True
                break
            blank = 0 if line.strip("\r") else blank + 1
            self._take(lines, line)
        if blank:  # blank lines between hunks are layout, not context
            del lines[-blank:]
        if lines and all(each.sign == " " for each in lines):
            raise self._problem("this hunk only has context: mark lines with '-' to remove and '+' to add", back=1)
        if anchors and not lines:
            raise self._problem(f"nothing follows the anchor {anchors[-1]!r}", back=1)
        return Hunk(lines=tuple(lines), near=near, anchors=anchors, at_end=at_end)

    def _anchors(self) -> tuple[tuple[str, ...], int | None]:
        anchors: list[str] = []
        near = None
        while (line := self._next()) is not None and line.startswith("@@"):
            rest = line[2:].strip()
            if numbers := _NUMBERS.match(rest):
                near = max(int(numbers[1]) - 1, 0)
                rest = ""  # what git writes after the numbers is a guess at the function, often far above
            rest = rest.removesuffix("@@").strip()
            if rest:
                anchors.append(rest)
            self._at += 1
        return tuple(anchors), near

    def _take(self, lines: list[Line], line: str) -> None:
        if line.startswith("\\") and lines:
            last = lines[-1]
            lines[-1] = Line(sign=last.sign, text=last.text, ended=False)
            return
        if not line.strip("\r"):
            lines.append(Line(sign=" ", text=line))
            return
        sign = _SIGNS.get(line[0])
        if sign is None:
            raise self._problem(
                f"a line of a hunk begins with ' ' (kept), '-' (removed) or '+' (added), found {line[:80]!r}",
                back=1,
            )
        lines.append(Line(sign=sign, text=line[1:]))

    def _next(self, *, own: str | None = None) -> str | None:
        """Return the line at hand, or None at the end or the head of another section."""
        if self._at >= len(self._lines):
            return None
        line = self._lines[self._at]
        if line.startswith("***") and not (own and line.startswith(own)):
            return None
        return line

    def _problem(self, text: str, *, back: int = 0) -> PatchProblem:
        return PatchProblem(f"line {self._first + self._at - back} of the patch: {text}")


def _path(line: str, head: str) -> str:
    return workspace_path(line.removeprefix(head).strip())
