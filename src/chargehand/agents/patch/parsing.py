"""Patches as models write them, parsed into changes of files: unified diffs, and `*** Begin Patch` envelopes.

Both are read with the mistakes that models make: wrong counts and line numbers, blank lines as layout.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from chargehand.core.text import late_pattern

PatchAction = Literal["add", "update", "delete"]
Sign = Literal[" ", "-", "+"]


class PatchProblem(ValueError):
    """A patch that cannot be read or applied: a model's mistake, reported only to the model."""


class PatchLine(Struct, frozen=True, kw_only=True):
    """One line of a hunk without its line feed; `ended` is false if the text ends without one."""

    sign: Sign
    text: str
    ended: bool = True


class PatchHunk(Struct, frozen=True, kw_only=True):
    """Lines to find and their replacement.

    `near` is the index of the first old line that a header states, or None; `anchors` are lines above the hunk;
    `at_end` says that the old lines are the last ones of the file.
    """

    lines: tuple[PatchLine, ...]
    near: int | None = None
    anchors: tuple[str, ...] = ()
    at_end: bool = False

    @property
    def old(self) -> list[str]:
        """The lines that must exist."""
        return [line.text for line in self.lines if line.sign != "+"]


class FileChange(Struct, frozen=True, kw_only=True):
    """A change to one file, path relative to the workspace; `executable` None leaves the mode alone.

    An `add` has hunks that only add; a `delete` may have no hunks, otherwise they must remove everything.
    """

    action: PatchAction
    path: str
    move_to: str | None = None
    hunks: tuple[PatchHunk, ...] = ()
    executable: bool | None = None


def workspace_path(path: str, cwd: str) -> str:
    """Return a path from `cwd` relative to the workspace; raises `PatchProblem` if it is not inside it."""
    if "\0" in path or not path.strip():
        raise PatchProblem(f"{path!r} is not the path of a file")
    # Computed as text: the path is the model's, and must not be looked up on the host.
    relative = posixpath.relpath(posixpath.normpath(posixpath.join(cwd, path)), "/workspace")
    parts = relative.split("/")
    if parts[0] == ".." or relative == ".":
        raise PatchProblem(f"{path!r} is not a file inside /workspace: give a path relative to {cwd}")
    if in_git(relative):
        raise PatchProblem(f"{path!r} is inside .git, which patches and edits may not touch")
    return relative


def in_git(path: str) -> bool:
    """Return whether a path runs through a directory of git's own."""
    return any(part.lower() == ".git" for part in path.split("/"))


_HUNK = late_pattern(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_QUOTED = late_pattern(rb'\\([abtnvfr"\\]|[0-7]{3})')
_QUOTES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}
_SIGNS: dict[str, Sign] = {" ": " ", "-": "-", "+": "+"}
_NOWHERE = "/dev/null"


def parse_unified(lines: Sequence[str], cwd: str) -> tuple[FileChange, ...]:
    """Return the changes; text before the first header is skipped. Raises `PatchProblem`."""
    reader = _UnifiedReader(lines, cwd)
    found = []
    while reader.seek():
        found.append(reader.read_file())
    return tuple(found)


class _FileHeaders(Struct):
    """The content of the lines above the hunks of one file."""

    git: str | None = None
    old: str | None = None
    new: str | None = None
    rename_from: str | None = None
    rename_to: str | None = None
    created: bool = False
    deleted: bool = False
    executable: bool | None = None


class _UnifiedReader:
    """Reads file after file of a unified diff."""

    def __init__(self, lines: Sequence[str], cwd: str) -> None:
        self._lines = lines
        self._cwd = cwd
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

    def read_file(self) -> FileChange:
        """Read one file's headers and hunks."""
        headers = _FileHeaders()
        if self._lines[self._at].startswith("diff --git "):
            headers.git = self._lines[self._at].rstrip()[len("diff --git ") :]
            self._at += 1
            while self._take_extended_header(headers):
                self._at += 1
        if self._is_header(self._at):
            headers.old = _unquoted_path(self._lines[self._at][4:])
            headers.new = _unquoted_path(self._lines[self._at + 1][4:])
            self._at += 2
        hunks = []
        while self._at < len(self._lines) and self._lines[self._at].startswith("@@"):
            hunks.append(self._read_hunk())
        old, new = self._read_paths(headers)
        if headers.created or old == _NOWHERE:
            path = workspace_path(new, self._cwd)
            return FileChange(action="add", path=path, hunks=tuple(hunks), executable=headers.executable)
        if headers.deleted or new == _NOWHERE:
            return FileChange(action="delete", path=workspace_path(old, self._cwd), hunks=tuple(hunks))
        if not hunks and headers.executable is None and headers.rename_to is None:
            raise self._problem(f"the diff of {new!r} has no hunks ('@@ -1,3 +1,4 @@')", back=1)
        path, target = workspace_path(old, self._cwd), workspace_path(new, self._cwd)
        move_to = None if path == target else target
        return FileChange(
            action="update", path=path, move_to=move_to, hunks=tuple(hunks), executable=headers.executable
        )

    def _is_header(self, at: int) -> bool:
        pair = self._lines[at : at + 2]
        return len(pair) == 2 and pair[0].startswith("--- ") and pair[1].startswith("+++ ")

    def _take_extended_header(self, headers: _FileHeaders) -> bool:
        if self._at >= len(self._lines) or self._is_header(self._at):
            return False
        line = self._lines[self._at].rstrip()
        if line.startswith(("GIT binary patch", "Binary files ")):
            raise self._problem("binary patches cannot be applied: make the file with bash")
        if line.startswith(("copy from ", "copy to ")):
            raise self._problem("copies cannot be applied: add the new file with all its lines")
        if line.startswith("rename from "):
            headers.rename_from = _unquoted_path(line[len("rename from ") :])
        elif line.startswith("rename to "):
            headers.rename_to = _unquoted_path(line[len("rename to ") :])
        elif mode := re.fullmatch(r"(new file|deleted file|old|new) mode (\d{6})", line):
            which, bits = mode[1], mode[2]
            if not bits.startswith("100"):
                raise self._problem(f"mode {bits} (a link or submodule) cannot be applied: make it with bash")
            headers.created |= which == "new file"
            headers.deleted |= which == "deleted file"
            if which in ("new file", "new"):
                headers.executable = bits == "100755"
        return line.startswith(("rename ", "similarity ", "dissimilarity ", "index ", "new ", "deleted ", "old "))

    def _read_paths(self, headers: _FileHeaders) -> tuple[str, str]:
        if headers.rename_from and headers.rename_to:
            return headers.rename_from, headers.rename_to
        if headers.old is not None and headers.new is not None:
            return _strip_prefixes(headers.old, headers.new)
        # `diff --git a/path b/path` alone (an empty file, a mode): both halves are the same path
        words = headers.git or ""
        half = len(words) // 2
        old, new = _strip_prefixes(_unquoted_path(words[:half]), _unquoted_path(words[half + 1 :]))
        if old != new:
            raise self._problem("no '--- a/path' and '+++ b/path' lines name the path", back=1)
        return old, new

    def _read_hunk(self) -> PatchHunk:
        title = self._lines[self._at]
        near: int | None = None
        anchors: tuple[str, ...] = ()
        left = [0, 0]
        if head := _HUNK.match(title):
            # Trusted while they last, since a removed line "-- x" looks like a header; but models count wrongly.
            left = [int(head[2] or 1), int(head[4] or 1)]
            near = int(head[1]) - (1 if left[0] else 0)
        elif anchor := title.strip("@ .\r"):
            anchors = (anchor,)
        self._at += 1
        start = self._at
        lines: list[PatchLine] = []
        while self._at < len(self._lines) and self._take(lines, left):
            self._at += 1
        end = self._at
        while end > start and max(left) < 0 and not self._lines[end - 1]:
            lines.pop()  # blank lines below the last counted one are layout
            end -= 1
            left = [left[0] + 1, left[1] + 1]
        if all(line.sign == " " for line in lines):
            raise self._problem("this hunk changes nothing: mark lines with '-' to remove and '+' to add", back=1)
        return PatchHunk(lines=tuple(lines), near=near, anchors=anchors)

    def _take(self, lines: list[PatchLine], left: list[int]) -> bool:
        """Take one line into the hunk and return True, or False at its end; the header's counts come first."""
        line = self._lines[self._at]
        if line.startswith("\\"):
            if lines:
                last = lines[-1]
                lines[-1] = PatchLine(sign=last.sign, text=last.text, ended=False)
            return True
        if line and line[0] not in _SIGNS:
            return False
        if max(left) > 0:
            # Within the counted lines a removed '-- x' above an added '++ y' looks like a header; a hunk follows a
            # real one.
            third = self._lines[self._at + 2 : self._at + 3]
            counted_too_many = left != [1, 1] and bool(third) and third[0].startswith("@@")
            ends_here = not line and self._at == len(self._lines) - 1
            over = ends_here or (self._is_header(self._at) and counted_too_many)
        elif not line:
            over = not any(self._lines[self._at :])
        else:
            over = self._is_header(self._at) or line.rstrip() == "--"  # the signature that git puts below mails
        if over:
            return False
        sign: Sign = _SIGNS[line[0]] if line else " "
        left[0] -= sign != "+"
        left[1] -= sign != "-"
        lines.append(PatchLine(sign=sign, text=line[1:]))
        return True

    def _problem(self, text: str, *, back: int = 0) -> PatchProblem:
        return PatchProblem(f"line {self._at + 1 - back} of the patch: {text}")


def _unquoted_path(word: str) -> str:
    """Return a path without its time stamp and git's quotes."""
    word = word.split("\t")[0].rstrip()
    if len(word) < 2 or not (word.startswith('"') and word.endswith('"')):
        return word
    inner = word[1:-1].encode("utf-8", "surrogateescape")
    plain = _QUOTED.sub(lambda m: bytes([_QUOTES.get(m[1]) or int(m[1], 8) & 255]), inner)
    return plain.decode("utf-8", "surrogateescape")


def _strip_prefixes(old: str, new: str) -> tuple[str, str]:
    """Remove git's a/ and b/ if both sides have them."""
    sides = ((old, "a/"), (new, "b/"))
    if all(name == _NOWHERE or name.startswith(prefix) for name, prefix in sides):
        return old.removeprefix("a/"), new.removeprefix("b/")
    return old, new


BEGIN, END = "*** Begin Patch", "*** End Patch"
_ADD, _UPDATE, _DELETE, _MOVE = "*** Add File:", "*** Update File:", "*** Delete File:", "*** Move to:"
_END_OF_FILE = "*** End of File"
_NUMBERS = late_pattern(r"-(\d+)(?:,\d+)? \+\d+(?:,\d+)?(?: @@ ?| *$)")


def is_envelope(lines: Sequence[str]) -> bool:
    """Return whether a text is meant as an envelope, complete or not."""
    return any(line.startswith((BEGIN, END, _ADD, _UPDATE, _DELETE)) for line in lines)


def parse_envelope(lines: Sequence[str], cwd: str) -> tuple[FileChange, ...]:
    """Return the changes; raises `PatchProblem`."""
    bodies = [line.rstrip() for line in lines]
    if BEGIN not in bodies:
        raise PatchProblem(f"the patch must begin with a line {BEGIN!r}")
    start = bodies.index(BEGIN) + 1
    if END not in bodies[start:]:
        raise PatchProblem(f"the patch must end with a line {END!r}: without it, it may have been cut off")
    end = bodies.index(END, start)
    return _EnvelopeReader(lines[start:end], start + 1, cwd).changes()


class _EnvelopeReader:
    """Reads section after section; `first` is the number of the first line, for messages."""

    def __init__(self, lines: Sequence[str], first: int, cwd: str) -> None:
        self._lines = lines
        self._first = first
        self._cwd = cwd
        self._at = 0

    def changes(self) -> tuple[FileChange, ...]:
        """Return the changes of all sections."""
        found = []
        while self._at < len(self._lines):
            head = self._lines[self._at].rstrip()
            self._at += 1
            if head.startswith(_ADD):
                found.append(FileChange(action="add", path=self._path_after(head, _ADD), hunks=self._read_added()))
            elif head.startswith(_DELETE):
                found.append(FileChange(action="delete", path=self._path_after(head, _DELETE)))
            elif head.startswith(_UPDATE):
                found.append(self._read_update(self._path_after(head, _UPDATE)))
            elif head:
                raise self._problem(
                    f"expected {_ADD!r}, {_UPDATE!r} or {_DELETE!r} and a path, found {head[:80]!r}", back=1
                )
        return tuple(found)

    def _read_added(self) -> tuple[PatchHunk, ...]:
        lines: list[PatchLine] = []
        while (line := self._peek_line()) is not None:
            if line.startswith("+"):
                lines.append(PatchLine(sign="+", text=line[1:]))
            elif line.startswith("\\") and lines:
                lines[-1] = PatchLine(sign="+", text=lines[-1].text, ended=False)
            elif line.strip():
                raise self._problem(f"every line of a new file begins with '+', found {line[:80]!r}")
            self._at += 1
        return (PatchHunk(lines=tuple(lines)),) if lines else ()

    def _read_update(self, path: str) -> FileChange:
        move_to = None
        line = self._peek_line(own=_MOVE)
        if line is not None and line.startswith(_MOVE):
            move_to = self._path_after(line.rstrip(), _MOVE)
            self._at += 1
        hunks: list[PatchHunk] = []
        while (line := self._peek_line()) is not None:
            if line.strip() or hunks:
                hunk = self._read_hunk()
                if hunk.lines:
                    hunks.append(hunk)
            else:
                self._at += 1
        if not hunks and move_to is None:
            raise self._problem(f"the update of {path!r} has no lines that begin with '-' or '+'", back=1)
        return FileChange(action="update", path=path, move_to=move_to, hunks=tuple(hunks))

    def _read_hunk(self) -> PatchHunk:
        anchors: list[str] = []
        near = None
        while (line := self._peek_line()) is not None and line.startswith("@@"):
            rest = line[2:].strip()
            if numbers := _NUMBERS.match(rest):
                near = max(int(numbers[1]) - 1, 0)
                rest = ""  # git's text after the numbers is a guess at the function, often far above
            rest = rest.removesuffix("@@").strip()
            if rest:
                anchors.append(rest)
            self._at += 1
        lines: list[PatchLine] = []
        blank = 0
        at_end = False
        while (line := self._peek_line(own=_END_OF_FILE)) is not None and not line.startswith("@@"):
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
        return PatchHunk(lines=tuple(lines), near=near, anchors=tuple(anchors), at_end=at_end)

    def _take(self, lines: list[PatchLine], line: str) -> None:
        if line.startswith("\\") and lines:
            last = lines[-1]
            lines[-1] = PatchLine(sign=last.sign, text=last.text, ended=False)
            return
        if not line.strip("\r"):
            lines.append(PatchLine(sign=" ", text=line))
            return
        sign = _SIGNS.get(line[0])
        if sign is None:
            raise self._problem(
                f"a line of a hunk begins with ' ' (kept), '-' (removed) or '+' (added), found {line[:80]!r}",
                back=1,
            )
        lines.append(PatchLine(sign=sign, text=line[1:]))

    def _peek_line(self, *, own: str | None = None) -> str | None:
        """Return the current line, or None at the end or the head of another section."""
        if self._at >= len(self._lines):
            return None
        line = self._lines[self._at]
        if line.startswith("***") and not (own and line.startswith(own)):
            return None
        return line

    def _problem(self, text: str, *, back: int = 0) -> PatchProblem:
        return PatchProblem(f"line {self._first + self._at - back} of the patch: {text}")

    def _path_after(self, line: str, head: str) -> str:
        return workspace_path(line.removeprefix(head).strip(), self._cwd)
