"""The `edit` tool: one exact replacement in one file."""

from __future__ import annotations

from collections.abc import Iterator

from chargehand.agents._patch_show import change_shown, nearest_region, whitespace_hint
from chargehand.agents._tools_files import Change, Files, writable
from chargehand.agents._tools_model import Mistake, ToolResult
from chargehand.agents._tools_read import missing
from chargehand.agents._tools_syntax import syntax_line

_SHOWN_MATCHES = 10


async def edit(files: Files, path: str, old: str, new: str, all: bool = False) -> ToolResult:
    """Replace `old` by `new` in a file of the workspace; raises `Mistake`."""
    entry = await files.look(path)
    target = writable(path, entry)
    if not entry.exists and old:
        raise Mistake(await missing(files, path, entry))
    before = decoded(await files.content(path, entry)) if entry.exists else ""
    after = _made(path, before, new) if not old else replaced(before, old, new, path=path, every=all)
    if after == before and entry.exists:
        raise Mistake(f"{path} would stay as it is: `old` and `new` are the same")
    data = encoded(after)
    await files.write([Change(path=target, data=data, mode_of=entry.word if entry.exists else "")])
    return ToolResult(text=report(path, before, after, data, made=not entry.exists))


def decoded(data: bytes) -> str:
    """Return a file's text; bytes that are not UTF-8 come out again as they were."""
    return data.decode("utf-8", "surrogateescape")


def encoded(text: str) -> bytes:
    """Return the bytes of a text that `decoded` gave."""
    return text.encode("utf-8", "surrogateescape")


def report(path: str, before: str, after: str, data: bytes, *, made: bool = False) -> str:
    """Return what the model is told of a change: the diff, and whether the file still parses."""
    lines = after.count("\n") + bool(after and not after.endswith("\n"))
    said = (
        f"{path}: new file, {lines} line{'' if lines == 1 else 's'}" if made else change_shown(before, after, path)
    )
    syntax = syntax_line(path, data)
    shown = said.encode("utf-8", "replace").decode()
    return f"{shown}\n{syntax}" if syntax else shown


def replaced(text: str, old: str, new: str, *, path: str, every: bool = False) -> str:
    """Return `text` with `old` replaced; raises `Mistake` unless it stands there once (or `every`).

    In a file whose lines end in CRLF, `old` and `new` may be written with plain line feeds.
    """
    if "\r\n" in text and "\r" not in old + new and (old not in text or text.count("\n") == text.count("\r\n")):
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    places = list(_occurrences(text, old))
    if not places:
        raise Mistake(_not_found(text, old, path))
    if len(places) > 1 and not every:
        numbers = [str(text.count("\n", 0, at) + 1) for at in places[:_SHOWN_MATCHES]]
        more = ", ..." if len(places) > _SHOWN_MATCHES else ""
        raise Mistake(
            f"`old` stands in {path} {len(places)} times (from lines {', '.join(numbers)}{more}): "
            "add lines around it until it is the only one, or set all=true"
        )
    return text.replace(old, new)


def _made(path: str, before: str, new: str) -> str:
    if before:
        raise Mistake(f"{path} exists and is not empty: give the text to replace as `old`")
    return new


def _occurrences(text: str, old: str) -> Iterator[int]:
    """Find overlapping places too: which of them is meant would be a guess."""
    at = text.find(old)
    while at >= 0:
        yield at
        at = text.find(old, at + 1)


def _not_found(text: str, old: str, path: str) -> str:
    if not text:
        return f"{path} is empty: write it with an empty `old`"
    wanted = old.removesuffix("\n").splitlines()
    region = nearest_region(text.splitlines(), wanted)
    if region is None:
        return f"`old` is not in {path}, nor anything like it: read the file again"
    shown = str(region).encode("utf-8", "replace").decode()
    return (
        f"`old` is not in {path} as written.{whitespace_hint(region.lines, wanted)} The nearest place is:\n{shown}"
    )
