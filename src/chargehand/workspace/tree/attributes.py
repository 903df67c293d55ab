"""Git's attribute files, as its `attr.c` reads them, as far as they control how files are converted.

Only files of the tree count: a clone does not get `info/attributes`, nor those of the user and the machine.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

from chargehand.core.records import Change, Finding
from chargehand.core.text import late_pattern, shown_path
from chargehand.workspace.tree.conversion import Conversion, ConversionError
from chargehand.workspace.tree.ignore import PathPattern, parse_path_pattern
from chargehand.workspace.tree.objects import EXECUTABLE, FILE, ObjectReader, TreeEntry

ATTRIBUTE_FILE = b".gitattributes"
_Value = bytes | bool | None
"""Set, unset, set to a value, or explicitly unspecified (`None`)."""
_States = tuple[tuple[bytes, _Value], ...]
_Macros = tuple[tuple[bytes, _States], ...]

_WANTED = frozenset((b"text", b"crlf", b"eol", b"ident", b"filter", b"working-tree-encoding"))
_BUILT_IN: _Macros = ((b"binary", ((b"diff", False), (b"merge", False), (b"text", False))),)
_MACRO = b"[attr]"
_BLANK = b" \t\r\n"
_NAME = late_pattern(rb"[A-Za-z0-9_.][A-Za-z0-9_.-]*")
_ESCAPE = late_pattern(rb'\\([abtnvfr"\\]|[0-3][0-7]{2})|([^"\\]+)')
_ESCAPED = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))
_MAX_LINE = 2048  # git ignores longer lines
_LARGEST_POINTER = 1024  # bytes, the limit of Git LFS


class _Line(Struct, frozen=True):
    pattern: PathPattern
    states: _States


class _AttributeFile(Struct, frozen=True):
    """The relevant lines of one file; `prefix` is the length of its directory within a path."""

    prefix: int
    lines: tuple[_Line, ...]


class AttributeChain(Struct, frozen=True):
    """The attribute files that apply to one directory, the nearest first; equal chains convert alike."""

    files: tuple[_AttributeFile, ...] = ()
    macros: _Macros = _BUILT_IN

    def enter(self, prefix: bytes, content: bytes | None) -> AttributeChain:
        """Return the chain inside the directory `prefix` (empty, or ending in '/'), given its attribute file."""
        if content is None:
            return self
        # Git accepts macros only in the top directory.
        macros = self.macros if prefix else _parse_macros(content)
        lines = _parse(content, macros)
        files = (_AttributeFile(len(prefix), lines), *self.files) if lines else self.files
        return AttributeChain(files, macros)

    def conversion(self, path: bytes) -> Conversion | None:
        """Return how a file of this directory is converted, `None` if blob and file are the same."""
        if not self.files:
            return None
        values: dict[bytes, _Value] = {}
        for file in self.files:
            below = path[file.prefix :]
            for line in reversed(file.lines):
                if line.pattern.matches(below):
                    _fill(values, line.states, self.macros)
        return _conversion(*(values.get(name) for name in _ORDER)) if values else None


class TreeAttributes:
    """The attributes of one tree's paths; reads each directory's file once."""

    def __init__(self, reader: ObjectReader, tree: bytes) -> None:
        self._reader = reader
        self._tree = tree
        self._chains: dict[bytes, AttributeChain] = {}

    def chain(self, directory: bytes) -> AttributeChain:
        """Return the chain inside `directory` (empty, or ending in '/')."""
        found = self._chains.get(directory)
        if found is None:
            above = AttributeChain()
            if directory:
                above = self.chain(directory[: directory.rfind(b"/", 0, -1) + 1])
            entry = self._reader.find(self._tree, directory + ATTRIBUTE_FILE)
            # Git follows no link to attributes.
            regular = entry is not None and entry.mode in (FILE, EXECUTABLE)
            content = self._reader.blob(entry.id) if entry is not None and regular else None
            found = self._chains[directory] = above.enter(directory, content)
        return found

    def conversion(self, path: bytes) -> Conversion | None:
        """Return how the file at `path` is converted, `None` if blob and file are the same."""
        chain = self.chain(path[: path.rfind(b"/") + 1])
        return chain.conversion(path) if chain.files else None

    def file(self, path: bytes, blob: bytes) -> bytes:
        """Return the content of the file at `path` for the blob with this raw id."""
        content = self._reader.blob(blob)
        conversion = self.conversion(path)
        return content if conversion is None else conversion.to_file(content, blob)


# --- findings


def find_lfs_pointers(reader: ObjectReader, tree: str) -> tuple[Finding, ...]:
    """Return a finding that names the files of a tree shown as Git LFS pointers; empty if it has no such files."""
    attributes = TreeAttributes(reader, bytes.fromhex(tree))
    found = []
    for path, entry in reader.walk(bytes.fromhex(tree)):
        conversion = attributes.conversion(path) if stat.S_ISREG(entry.mode) else None
        if conversion is None or conversion.filter != "lfs" or reader.size(entry.id) > _LARGEST_POINTER:
            continue
        if reader.blob(entry.id).startswith(b"version https://git-lfs"):
            found.append(os.fsdecode(path))
    if not found:
        return ()
    named = ", ".join(map(shown_path, found[:3])) + (", ..." if len(found) > 3 else "")
    message = f"checks see {len(found)} files as pointers of Git LFS, without their content: {named}"
    return (Finding(rule="lfs_pointers", severity="info", path=found[0], message=message),)


def find_stale(reader: ObjectReader, old: str, new: str, changes: Iterable[Change]) -> tuple[Finding, ...]:
    """Return a finding that names the files of `new` which git would add as other blobs by changed attributes.

    A fresh checkout shows them as modified although no one changed them. `changes` are relative to tree `old`.
    """
    changed = [each.path for each in changes if each.path.rpartition("/")[2] == ATTRIBUTE_FILE.decode()]
    if not changed:
        return ()
    before, after = TreeAttributes(reader, bytes.fromhex(old)), TreeAttributes(reader, bytes.fromhex(new))
    stale = [
        os.fsdecode(path)
        for path, entry in reader.walk(bytes.fromhex(new))
        if entry.mode in (FILE, EXECUTABLE) and _is_stale(reader, path, entry, before, after)
    ]
    if not stale:
        return ()
    message = (
        f"by the changed attributes {len(stale)} files, {shown_path(stale[0])} among them, show as modified in "
        "every fresh checkout; to fix that: 'git add --renormalize' them"
    )
    finding = Finding(
        rule="attributes_stale", severity="warning", path=changed[0], message=message, needs_person=True
    )
    return (finding,)


def _is_stale(
    reader: ObjectReader, path: bytes, entry: TreeEntry, before: TreeAttributes, after: TreeAttributes
) -> bool:
    conversion = after.conversion(path)
    if conversion is None or conversion == before.conversion(path):
        return False
    blob = reader.blob(entry.id)
    try:
        return conversion.to_blob(conversion.to_file(blob, entry.id), lambda: blob) != blob
    except ConversionError:
        return True


# --- parsing


@lru_cache(maxsize=1024)
def _parse(content: bytes, macros: _Macros) -> tuple[_Line, ...]:
    """Return the lines that affect conversions, directly or by a macro."""
    wanted = set(_WANTED)
    known = dict(macros)
    while more := {name for name, states in known.items() if name not in wanted and wanted & dict(states).keys()}:
        wanted |= more
    lines = []
    for name, states in _parse_lines(content):
        kept = tuple(state for state in states if state[0] in wanted)
        if not kept or name.startswith(_MACRO + b"\0"):
            continue
        pattern = parse_path_pattern(name)
        # A pattern for directories does not apply to their content.
        if not pattern.negative and not pattern.directory_only:
            lines.append(_Line(pattern, kept))
    return tuple(lines)


@lru_cache(maxsize=1024)
def _parse_macros(content: bytes) -> _Macros:
    found = dict(_BUILT_IN)
    for name, states in _parse_lines(content):
        if name.startswith(_MACRO + b"\0"):
            found[name.partition(b"\0")[2]] = states
    return tuple(sorted(found.items()))


def _parse_lines(content: bytes) -> Iterator[tuple[bytes, _States]]:
    """Yield each line's pattern, or `[attr]`, a NUL and a macro's name, with the attributes that it sets."""
    # Git treats the file as a C string.
    text = content.removeprefix(b"\xef\xbb\xbf").split(b"\0", 1)[0]
    for line in text.split(b"\n"):
        stripped = line.lstrip(_BLANK)
        if not stripped or stripped.startswith(b"#") or len(line) >= _MAX_LINE:
            continue
        name, rest = _split_name(stripped)
        if name.startswith(_MACRO) and len(name) > len(_MACRO):
            macro = name[len(_MACRO) :].lstrip(_BLANK)
            macro = re.split(rb"[ \t\r\n]", macro, maxsplit=1)[0]
            if not _NAME.fullmatch(macro):
                continue
            name = _MACRO + b"\0" + macro
        states: list[tuple[bytes, _Value]] = []
        for word in filter(None, rest.translate(bytes.maketrans(b"\t\r\n", b"   ")).split(b" ")):
            sign, equals = word[:1] if word[:1] in (b"-", b"!") else b"", word.find(b"=")
            attribute = word[len(sign) :] if equals < 0 else word[len(sign) : equals]
            if not _NAME.fullmatch(attribute):
                break  # git ignores the whole line
            value: _Value = True if equals < 0 else word[equals + 1 :]
            states.append((attribute, {b"-": False, b"!": None}.get(sign, value)))
        else:
            yield name, tuple(states)


def _split_name(line: bytes) -> tuple[bytes, bytes]:
    if line.startswith(b'"'):
        unquoted, at = bytearray(), 1
        while match := _ESCAPE.match(line, at):
            code, plain = match.groups()
            if plain is not None:
                unquoted += plain
            else:
                unquoted.append(_ESCAPED[code[0]] if len(code) == 1 else int(code, 8))
            at = match.end()
        if line[at : at + 1] == b'"':
            # A C string again: the text after a NUL is not seen.
            return bytes(unquoted).split(b"\0", 1)[0], line[at + 1 :]
    parts = re.split(rb"[ \t\r\n]", line, maxsplit=1)
    return parts[0], parts[1] if len(parts) > 1 else b""


# --- deciding


def _fill(values: dict[bytes, _Value], states: _States, macros: _Macros) -> None:
    """Add values not set yet: later lines were read first, and within a line the last attribute wins."""
    for name, value in reversed(states):
        if name in values:
            continue
        values[name] = value
        if value is True:
            _fill(values, dict(macros).get(name, ()), macros)


_ORDER = (b"text", b"crlf", b"eol", b"ident", b"filter", b"working-tree-encoding")


@lru_cache(maxsize=1024)
def _conversion(
    text: _Value, crlf: _Value, eol: _Value, ident: _Value, filter: _Value, encoding: _Value
) -> Conversion | None:
    # `crlf` is the former name of `text`.
    action = _TEXT.get(text) or _TEXT.get(crlf) or ""
    ends = eol if eol in (b"lf", b"crlf") and action != "binary" else None
    if ends and action != "auto":
        action = "text"
    name = encoding.decode("utf-8", "surrogateescape") if isinstance(encoding, bytes) else ""
    found = Conversion(
        text=action in ("text", "auto"),
        auto=action == "auto",
        crlf=ends == b"crlf",
        ident=ident is True,
        encoding=name if name and not re.fullmatch(r"(?i)utf-?8", name) else None,
        filter=filter.decode("utf-8", "replace") if isinstance(filter, bytes) else None,
    )
    return None if found == Conversion() else found


_TEXT: Mapping[_Value, str] = {True: "text", False: "binary", b"input": "text", b"auto": "auto"}
