"""The `read` tool: lines of a file with their numbers, the names in a directory, or a picture."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass

from chargehand.agents._tools_files import LARGEST_TEXT, Entry, Files, said
from chargehand.agents._tools_model import Mistake, ToolResult
from chargehand.core.text import shown_path

DEFAULT_LINES = 400
LONGEST_LINE = 2000
MOST_CHARACTERS = 30_000
"""Characters of one reply; further lines are asked for with `offset`."""
_MOST_NAMES = 500
_SNIFFED = 8192
_PART = 2_000_000
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]|[\udc80-\udcff]")
_MAGIC = {
    b"%PDF": "a PDF",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "gzip data",
    b"\x7fELF": "an ELF program",
    b"SQLite": "SQLite",
}
_PICTURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)
"""What every provider takes, by the first bytes of a file: its name says nothing."""
LARGEST_PICTURE = 2_000_000
"""Bytes of a picture that a model is shown."""
_SOME_LINES = 'wc -l < "$1"; tail -n "+$2" -- "$1" | head -n "$3"'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Lines from `first` (from 1) on, of `total` in the file; `ended` tells a last line feed."""

    lines: list[bytes]
    first: int
    total: int
    ended: bool


async def read(
    files: Files, path: str, offset: int = 1, limit: int = DEFAULT_LINES, *, keep: Callable[[bytes], str]
) -> ToolResult:
    """Show a part of a file or a directory, or `keep` a picture for the model to be shown; raises `Mistake`."""
    entry = await files.look(path)
    if not entry.exists or entry.kind == "dangling":
        raise Mistake(await missing(files, path, entry))
    if entry.kind == "directory":
        return ToolResult(text=_listing(path, await files.names(entry.word)))
    if entry.kind == "other":
        raise Mistake(f"{path} is no regular file (a device, socket or pipe)")
    begin = (await files.run('head -c "$2" -- "$1"', entry.word, str(_SNIFFED))).stdout
    picture = next((media for magic, media in _PICTURES if magic.match(begin)), None)
    if picture is not None and entry.size <= LARGEST_PICTURE:
        content = await files.content(path, entry)
        return ToolResult(
            text=f"[{path} is a picture: {_told(picture, entry)}]", artifact=keep(content), image=picture
        )
    if picture is not None:
        too_large = f"too large to be shown (at most {LARGEST_PICTURE} bytes): make it smaller with bash"
        return ToolResult(text=f"[{path} is a picture: {_told(picture, entry)}, {too_large}]")
    if b"\0" in begin:
        return ToolResult(text=_binary(path, entry.size, begin))
    return ToolResult(text=_shown(path, await _part(files, path, entry, offset, limit)))


def _told(media: str, entry: Entry) -> str:
    return f"{media}, {entry.size} bytes"


async def missing(files: Files, path: str, entry: Entry) -> str:
    """Return the complaint about a path that is not there, with the names that are nearest to it."""
    if entry.exists:
        return f"{path} is a link to nothing"
    if entry.kind != "directory":
        return f"{path} does not exist: what stands above it is no directory"
    wanted = entry.missing.split("/")[0]
    above = entry.word.removesuffix(entry.missing).rstrip("/") or "/"
    names = await files.names(above)
    plain = {name.rstrip("/").lower(): name for name in names}
    close = [plain[each] for each in difflib.get_close_matches(wanted.lower(), plain, n=5, cutoff=0.5)]
    where = above.removeprefix("./") if above != "." else "/workspace"
    if close:
        return f"{path} does not exist; nearest in {where}: {', '.join(close)}"
    few = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "") if names else "nothing"
    return f"{path} does not exist; in {where} there is: {few}"


async def _part(files: Files, path: str, entry: Entry, offset: int, limit: int) -> _Part:
    if entry.size <= LARGEST_TEXT:
        data = await files.content(path, entry)
        lines = data.split(b"\n")
        ended = not lines[-1]
        total = len(lines) - ended
        return _Part(lines=lines[:total][offset - 1 : offset - 1 + limit], first=offset, total=total, ended=ended)
    result = await files.run(_SOME_LINES, entry.word, str(offset), str(limit), limit=_PART)
    count, _, rest = result.stdout.partition(b"\n")
    if not count.strip().isdigit():
        raise Mistake(f"{path} cannot be read: {said(result)}")
    return _Part(lines=rest.removesuffix(b"\n").split(b"\n"), first=offset, total=int(count), ended=True)


def _shown(path: str, part: _Part) -> str:
    if part.total == 0:
        return f"[{path} is empty]"
    if part.first > part.total:
        raise Mistake(f"{path} has only {part.total} lines, so there is none at offset {part.first}")
    out: list[str] = []
    left = MOST_CHARACTERS
    for number, line in enumerate(part.lines, part.first):
        shown = f"{number:6}\t{_line(line)}"
        left -= len(shown) + 1
        if left < 0:
            break
        out.append(shown)
    last = part.first + len(out) - 1
    return "\n".join([*out, _note(part, last)])


def _note(part: _Part, last: int) -> str:
    returns = " Lines end in CRLF." if part.lines[0].endswith(b"\r") else ""
    if last < part.total:
        return f"[lines {part.first} to {last} of {part.total}; go on with offset={last + 1}.{returns}]"
    end = "" if part.ended else " without a line feed"
    return f"[end of the file, {part.total} lines{end}.{returns}]"


def _line(data: bytes) -> str:
    text = data.removesuffix(b"\r").decode("utf-8", "surrogateescape")
    cut = len(text) - LONGEST_LINE
    shown = _CONTROLS.sub(lambda found: shown_path(found[0]), text[:LONGEST_LINE])
    return f"{shown}[... {cut} more characters of this line]" if cut > 0 else shown


def _listing(path: str, names: list[str]) -> str:
    more = f"\n[... {len(names) - _MOST_NAMES} more: use search or bash]" if len(names) > _MOST_NAMES else ""
    return f"{path} is a directory with {len(names)} entries:\n" + "\n".join(names[:_MOST_NAMES]) + more


def _binary(path: str, size: int, begin: bytes) -> str:
    noun = next((noun for magic, noun in _MAGIC.items() if begin.startswith(magic)), "a binary file")
    return f"[{path} is {noun} of {size} bytes; it begins with the bytes {begin[:16].hex(' ')}]"
