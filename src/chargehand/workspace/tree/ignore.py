"""Git's ignore rules, as its `dir.c` and `wildmatch.c` read them, on raw bytes.

Each pattern of a rule file becomes a regular expression. All of them together form one joined expression that
shows quickly that no pattern matches. Rejected: `pathspec`, whose patterns also match everything below a
directory, so that `*` followed by `!dir/` includes paths that git ignores.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct

from chargehand.core.text import late_pattern

_SPECIAL = late_pattern(rb"[*?\[\\]")
_NEVER = rb"(?!)"
# The wildcards; `_join_pieces` makes them lazy or greedy.
_STAR, _DIRECTORIES, _REST = rb"[^/]*", rb"(?:[^/]*/)*", rb".*"
# By git's own table, not C's: ASCII only, and neither vertical tab nor form feed is a space.
_MEMBERS: dict[bytes, Callable[[str], bool]] = {
    b"alnum": lambda char: char.isalnum(),
    b"alpha": lambda char: char.isalpha(),
    b"blank": lambda char: char in " \t",
    b"cntrl": lambda char: ord(char) < 32 or ord(char) == 127,
    b"digit": lambda char: char.isdigit(),
    b"graph": lambda char: 32 < ord(char) < 127,
    b"lower": lambda char: char.islower(),
    b"print": lambda char: 32 <= ord(char) < 127,
    b"punct": lambda char: 32 < ord(char) < 127 and not char.isalnum(),
    b"space": lambda char: char in " \t\n\r",
    b"upper": lambda char: char.isupper(),
    b"xdigit": lambda char: char in "0123456789abcdefABCDEF",
}
_CLASSES = {name: frozenset(code for code in range(128) if test(chr(code))) for name, test in _MEMBERS.items()}


class _MalformedError(ValueError):
    """A pattern that never matches in git."""


class PathPattern(Struct, frozen=True):
    """One pattern of a rule file; its paths are relative to that file's directory."""

    negative: bool
    directory_only: bool
    by_name: bool
    regex: re.Pattern[bytes]
    lead: bytes  # the literal beginning of a pattern that is matched by path

    def matches(self, path: bytes) -> bool:
        """Return whether the pattern, without its `!` and its last '/', matches a path."""
        return self.regex.fullmatch(path[path.rfind(b"/") + 1 :] if self.by_name else path) is not None

    def may_match_below(self, path: bytes) -> bool:
        """Return whether the pattern may match paths below the directory `path`."""
        if self.negative:
            return False
        return self.by_name or self.lead.startswith(path + b"/") or (path + b"/").startswith(self.lead)


class IgnoreFile:
    """The patterns of one `.gitignore`; paths are relative to its directory."""

    def __init__(self, content: bytes) -> None:
        # As git reads it: without a byte order mark at the start, without a carriage return before a newline.
        lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        # Git treats a line as a C string.
        texts = [line.removesuffix(b"\r").split(b"\0", 1)[0] for line in lines]
        self._patterns = [
            parse_path_pattern(_strip_spaces(text)) for text in texts if text and not text.startswith(b"#")
        ]
        self._names = _join_patterns([pattern for pattern in self._patterns if pattern.by_name])
        self._paths = _join_patterns([pattern for pattern in self._patterns if not pattern.by_name])

    def decides(self, path: bytes, *, directory: bool) -> bool | None:
        """Return whether `path` itself is ignored, included again (`False`), or not matched (`None`)."""
        name = path[path.rfind(b"/") + 1 :]
        if not (self._names and self._names.fullmatch(name)) and not (self._paths and self._paths.fullmatch(path)):
            return None
        for pattern in reversed(self._patterns):
            if pattern.directory_only and not directory:
                continue
            if pattern.matches(path):
                return not pattern.negative
        return None

    def includes(self, path: bytes, *, directory: bool) -> bool:
        """Return whether `path` or a directory above it is matched: for lists of included paths."""
        parts = path.split(b"/")
        return any(
            self.decides(b"/".join(parts[:depth]), directory=directory or depth < len(parts))
            for depth in range(1, len(parts) + 1)
        )

    def may_match_below(self, path: bytes) -> bool:
        """Return whether a path below the directory `path` may be matched."""
        return any(pattern.may_match_below(path) for pattern in self._patterns)


class IgnoreChain(Struct, frozen=True):
    """The rule files that apply to one directory, the nearest first, each with the length of its prefix."""

    files: tuple[tuple[int, IgnoreFile], ...] = ()

    def enter(self, prefix: bytes, file: IgnoreFile | None) -> IgnoreChain:
        """Return the chain inside the directory `prefix` (empty, or ending in '/')."""
        return self if file is None else IgnoreChain(((len(prefix), file), *self.files))

    def ignores(self, path: bytes, *, directory: bool) -> bool:
        """Return whether `path` is ignored, given that no directory above it is ignored."""
        for length, file in self.files:
            decided = file.decides(path[length:], directory=directory)
            if decided is not None:
                return decided
        return False


def _join_patterns(patterns: list[PathPattern]) -> re.Pattern[bytes] | None:
    if not patterns:
        return None
    return re.compile(b"|".join(b"(?:%s)" % pattern.regex.pattern for pattern in patterns), re.DOTALL)


def parse_path_pattern(text: bytes) -> PathPattern:
    """Parse a pattern, by the rules common to ignore files and attribute files."""
    negative = text.startswith(b"!")
    text = text[1:] if negative else text
    directory_only = text.endswith(b"/")
    text = text[:-1] if directory_only else text
    if b"/" not in text:  # by name, at any depth; here a star matches any character of a name
        simple = text.startswith(b"*") and _SPECIAL.search(text, 1) is None
        regex = b".*" + re.escape(text[1:]) if simple else _glob(text)
        return PathPattern(negative, directory_only, True, re.compile(regex, re.DOTALL), b"")
    # Git compares the literal beginning first and matches only the rest: `a**/b` is `a` and then `**/b`.
    path = text.removeprefix(b"/")
    special = _SPECIAL.search(path)
    literal = len(path) if special is None else special.start()
    regex = re.escape(path[:literal]) + _glob(path[literal:])
    return PathPattern(negative, directory_only, False, re.compile(regex, re.DOTALL), path[:literal])


def _strip_spaces(line: bytes) -> bytes:
    """Return a line without trailing spaces, except after a backslash, as `trim_trailing_spaces` does."""
    end = len(line)
    position = 0
    kept = len(line)
    in_spaces = False
    while position < end:
        if line[position] == 0x20:
            kept = kept if in_spaces else position
            in_spaces = True
        else:
            in_spaces, kept = False, end
            if line[position] == 0x5C:
                position += 1
                if position >= end:
                    return line
        position += 1
    return line[:kept] if in_spaces else line


@lru_cache(maxsize=4096)
def _glob(text: bytes) -> bytes:
    """Return the regular expression of a pattern; for a malformed pattern, an expression that never matches."""
    out: list[bytes] = []
    position = 0
    while position < len(text):
        char = text[position : position + 1]
        if char == b"*":
            end = len(text) - len(text[position:].lstrip(b"*"))
            bounded = position == 0 or text[position - 1 : position] == b"/"
            rest = text[end:]
            # Two stars have a meaning only as a whole component; elsewhere they count as one.
            if end - position < 2 or not bounded or not (rest == b"" or rest.startswith((b"/", b"\\/"))):
                piece, position = _STAR, end
            elif rest.startswith(b"/"):
                piece, position = _DIRECTORIES, end + 1
            else:
                piece, position = _REST, end
        elif char == b"[":
            try:
                piece, position = _bracket(text, position + 1)
            except _MalformedError:
                return _NEVER
        elif char == b"\\":
            if position + 1 >= len(text):
                return _NEVER
            piece, position = re.escape(text[position + 1 : position + 2]), position + 2
        else:
            piece, position = (b"[^/]" if char == b"?" else re.escape(char)), position + 1
        out.append(piece)
    return _join_pieces(out)


def _join_pieces(pieces: list[bytes]) -> bytes:
    """Return the expression of a pattern: only the last wildcard of its kind is matched more than once.

    An agent writes both the patterns and the names. If each wildcard could give back what it took, matching
    `*a*a*a*a*b` with a long name would block the process for hours. It need not: the text after a `*` has a fixed
    length and the text after a `**/` a fixed number of directories, so the first match of each leaves most for
    the rest. Only the last wildcard has to reach the end.
    """
    head, parts = _split_at(pieces, (_DIRECTORIES, _REST))
    out = [_join_within_directories(head, last=not parts)]
    for number, (wildcard, rest) in enumerate(parts, start=1):
        last = number == len(parts)
        inside = _join_within_directories(rest, last=last)
        out.append((b"%s?%s" if last else b"(?>%s?%s)") % (wildcard, inside))
    return b"".join(out)


def _join_within_directories(pieces: list[bytes], *, last: bool) -> bytes:
    head, parts = _split_at(pieces, (_STAR,))
    for number, (wildcard, rest) in enumerate(parts, start=1):
        reaches_end = last and number == len(parts)
        head.append((b"%s%s" if reaches_end else b"(?>%s?%s)") % (wildcard, b"".join(rest)))
    return b"".join(head)


def _split_at(
    pieces: list[bytes], wildcards: tuple[bytes, ...]
) -> tuple[list[bytes], list[tuple[bytes, list[bytes]]]]:
    """Return the pieces before the first of the wildcards, and each wildcard with the pieces up to the next."""
    head: list[bytes] = []
    parts: list[tuple[bytes, list[bytes]]] = []
    for piece in pieces:
        if piece in wildcards:
            parts.append((piece, []))
        else:
            (parts[-1][1] if parts else head).append(piece)
    return head, parts


def _bracket(text: bytes, position: int) -> tuple[bytes, int]:
    negative = text[position : position + 1] in (b"!", b"^")
    position += negative
    members: set[int] = set()
    previous = 0
    first = True
    while first or text[position : position + 1] != b"]":
        first = False
        position, previous = _member(text, position, previous, members)
    # No class matches a slash, whatever its members (`WM_PATHNAME`).
    allowed = (set(range(256)) - members if negative else members) - {0x2F}
    if not allowed:
        return _NEVER, position + 1
    return b"[" + b"".join(b"\\x%02x" % code for code in sorted(allowed)) + b"]", position + 1


def _member(text: bytes, position: int, previous: int, members: set[int]) -> tuple[int, int]:
    """Read one member of a bracket at `position`; return (position after it, possible start of a range)."""
    code = _code(text, position)
    if code == 0x5C:
        code = _code(text, position + 1)
        members.add(code)
        return position + 2, code
    if code == 0x2D and previous and text[position + 1 : position + 2] not in (b"", b"]"):
        position += 1
        end = _code(text, position)
        if end == 0x5C:
            position += 1
            end = _code(text, position)
        members.update(range(previous, end + 1))
        return position + 1, 0
    if text[position : position + 2] == b"[:":
        end = text.find(b"]", position + 2)
        if end < 0:
            raise _MalformedError
        if end == position + 2 or text[end - 1 : end] != b":":
            members.add(0x5B)
            return position + 1, 0x5B
        name = text[position + 2 : end - 1]
        if name not in _CLASSES:
            raise _MalformedError
        members.update(_CLASSES[name])
        return end + 1, 0
    members.add(code)
    return position + 1, code


def _code(text: bytes, position: int) -> int:
    if position >= len(text):
        raise _MalformedError
    return text[position]
