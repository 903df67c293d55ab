"""The tools that only look: `read` shows lines, a directory or a picture; `search` is grep over a directory."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from chargehand.agents.tool_specs import Mistake, ToolResult
from chargehand.agents.tools.files import LARGEST_TEXT, PathStatus, SandboxFiles, last_words
from chargehand.core.text import printable, shown_path

DEFAULT_LINES = 400
LONGEST_LINE = 2000
# Characters of one reply of `read`; further lines are requested with `offset`.
MOST_CHARACTERS = 30_000
# Bytes of a picture that a model is shown.
LARGEST_PICTURE = 2_000_000
_MOST_NAMES = 500
_SNIFFED_BYTES = 8192
_SLICE_BYTES = 2_000_000
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]|[\udc80-\udcff]")
_MAGIC = {
    b"%PDF": "a PDF",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "gzip data",
    b"\x7fELF": "an ELF program",
    b"SQLite": "SQLite",
}
# The formats that every provider accepts, by the first bytes of a file: its name is not reliable.
_PICTURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)
_SOME_LINES = 'wc -l < "$1"; tail -n "+$2" -- "$1" | head -n "$3"'


class _FileSlice(Struct, frozen=True, kw_only=True):
    """Lines from `first` (from 1) on, of `total` in the file; `ended`: the last line has a line feed."""

    lines: list[bytes]
    first: int
    total: int
    ended: bool


async def read(
    files: SandboxFiles, path: str, offset: int = 1, limit: int = DEFAULT_LINES, *, keep: Callable[[bytes], str]
) -> ToolResult:
    """Show a part of a file or a directory, or `keep` a picture to show to the model; raises `Mistake`."""
    status = await files.look(path)
    if not status.exists or status.kind == "dangling":
        raise Mistake(await missing(files, path, status))
    if status.kind == "directory":
        names = await files.names(status.word)
        more = f"\n[... {len(names) - _MOST_NAMES} more: use search or bash]" if len(names) > _MOST_NAMES else ""
        listing = "\n".join(names[:_MOST_NAMES])
        return ToolResult(text=f"{path} is a directory with {len(names)} entries:\n{listing}{more}")
    if status.kind == "other":
        raise Mistake(f"{path} is not a regular file (a device, socket or pipe)")
    begin = (await files.run('head -c "$2" -- "$1"', status.word, str(_SNIFFED_BYTES))).stdout
    picture = next((media for magic, media in _PICTURES if magic.match(begin)), None)
    if picture is not None:
        text = f"{path} is a picture: {picture}, {status.size} bytes"
        if status.size > LARGEST_PICTURE:
            limits = f"too large to be shown (at most {LARGEST_PICTURE} bytes): make it smaller with bash"
            return ToolResult(text=f"[{text}, {limits}]")
        content = await files.content(path, status)
        return ToolResult(text=f"[{text}]", artifact=keep(content), image=picture)
    if b"\0" in begin:
        noun = next((noun for magic, noun in _MAGIC.items() if begin.startswith(magic)), "a binary file")
        size, start = status.size, begin[:16].hex(" ")
        return ToolResult(text=f"[{path} is {noun} of {size} bytes; it begins with the bytes {start}]")
    if status.size <= LARGEST_TEXT:
        lines = (await files.content(path, status)).split(b"\n")
        ended = not lines[-1]
        total = len(lines) - ended
        lines = lines[:total][offset - 1 : offset - 1 + limit]
        return ToolResult(
            text=_number_lines(path, _FileSlice(lines=lines, first=offset, total=total, ended=ended))
        )
    # A larger file is cut inside the sandbox: otherwise all of it would pass through the exec server.
    result = await files.run(_SOME_LINES, status.word, str(offset), str(limit), limit=_SLICE_BYTES)
    count, _, rest = result.stdout.partition(b"\n")
    if not count.strip().isdigit():
        raise Mistake(f"{path} cannot be read: {last_words(result)}")
    lines = rest.removesuffix(b"\n").split(b"\n")
    return ToolResult(
        text=_number_lines(path, _FileSlice(lines=lines, first=offset, total=int(count), ended=True))
    )


async def missing(files: SandboxFiles, path: str, status: PathStatus) -> str:
    """Return the complaint about a missing path, with the most similar names."""
    if status.exists:
        return f"{path} is a dangling link"
    if status.kind != "directory":
        return f"{path} does not exist: its parent is not a directory"
    wanted = status.missing.split("/")[0]
    above = status.word.removesuffix(status.missing).rstrip("/") or "/"
    names = await files.names(above)
    plain = {name.rstrip("/").lower(): name for name in names}
    close = [plain[each] for each in difflib.get_close_matches(wanted.lower(), plain, n=5, cutoff=0.5)]
    where = files.shown(above)
    if close:
        return f"{path} does not exist; nearest in {where}: {', '.join(close)}"
    few = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "") if names else "nothing"
    return f"{path} does not exist; in {where} there is: {few}"


def _number_lines(path: str, part: _FileSlice) -> str:
    """Return lines with their numbers, as many as fit, and a note on the rest."""
    if part.total == 0:
        return f"[{path} is empty]"
    if part.first > part.total:
        raise Mistake(f"{path} has only {part.total} lines, so there is none at offset {part.first}")
    out: list[str] = []
    # By characters as well as lines: minified files have lines of megabytes.
    left = MOST_CHARACTERS
    for number, line in enumerate(part.lines, part.first):
        text = line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
        shown = _CONTROLS.sub(lambda found: shown_path(found[0]), text[:LONGEST_LINE])
        if len(text) > LONGEST_LINE:
            shown += f"[... {len(text) - LONGEST_LINE} more characters of this line]"
        left -= len(shown) + 8  # the number, a tab and the line feed
        if left < 0:
            break
        out.append(f"{number:6}\t{shown}")
    last = part.first + len(out) - 1
    returns = " Lines end in CRLF." if part.lines[0].endswith(b"\r") else ""
    if last < part.total:
        note = f"[lines {part.first} to {last} of {part.total}; go on with offset={last + 1}.{returns}]"
    else:
        end = "" if part.ended else " without a line feed"
        note = f"[end of the file, {part.total} lines{end}.{returns}]"
    return "\n".join([*out, note])


MOST_MATCHES = 200
_LONGEST_MATCH = 300
_MOST_BYTES = 400_000
_LEFT_OUT = (".git", ".venv", ".chargehand", "node_modules")
_LINE = re.compile(rb"([^\0\n]+)\0(\d+)([:-])(.*)", re.DOTALL)
# head ends grep early; grep's own exit code comes on the last line of stderr
_GREP = """
most=$1; shift
{ { grep "$@" < /dev/null; echo "$?" >&3; } | head -c "$most"; } 3>&2
"""


class _FoundLine(Struct, frozen=True):
    """A line of grep's output; `mark` is `:` for a match, `-` for context."""

    path: str
    number: int
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}{self.mark}{self.number}{self.mark}{self.text}"


async def search(
    files: SandboxFiles, pattern: str, path: str = ".", glob: str | None = None, context: int = 0
) -> ToolResult:
    """Find the matching lines; raises `Mistake`, for a wrong expression with grep's own words."""
    if not pattern or "\0" in pattern:
        raise Mistake("`pattern` is an extended regular expression of at least one character")
    status = await files.look(path)
    if not status.exists or status.kind == "dangling":
        raise Mistake(await missing(files, path, status))
    words = ["-rnEIHZs", "--color=never", *(f"--exclude-dir={name}" for name in _LEFT_OUT)]
    if context:
        words.append(f"-C{context}")
    if glob and (name := glob.rsplit("/", 1)[-1]) and name != "**":
        words.append(f"--include={name}")
    words += ["-e", pattern, "--", status.word]
    result = await files.run(_GREP, str(_MOST_BYTES), *words)
    complaint = printable(result.stderr.decode("utf-8", "replace")).strip().splitlines()
    code = int(complaint.pop()) if complaint and complaint[-1].isdigit() else 2
    path_pattern = None
    if glob and "/" in glob:  # grep's --include matches only names
        within = glob.removeprefix(f"{files.cwd}/").removeprefix("./").lstrip("/")
        parts = re.split(r"(\*\*/|\*\*|\*|\?)", within)
        plain = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        path_pattern = re.compile("".join(plain.get(part) or re.escape(part) for part in parts), re.DOTALL)
    blocks = list(_group_matches(result.stdout.split(b"\n")[:-1], path_pattern, files.shown))
    if blocks:
        return ToolResult(text=_render_matches(blocks, cut=len(result.stdout) >= _MOST_BYTES))
    if code > 1 and complaint:
        why = "; ".join(complaint)[:500]
        raise Mistake(
            f"grep cannot search for {pattern!r}: {why}. Put a backslash before ( ) [ {{ + * ? . | to mean it"
        )
    return ToolResult(text=f"no line matches {pattern!r}")


def _group_matches(
    lines: Iterable[bytes], pattern: re.Pattern[str] | None, shown: Callable[[str], str]
) -> Iterator[list[_FoundLine]]:
    """Yield groups of lines: with context, those that grep put between two `--`."""
    block: list[_FoundLine] = []
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None:
            if block:
                yield block
            block = []
            continue
        path = shown_path(shown(found[1].decode("utf-8", "surrogateescape")))
        if pattern is not None and not pattern.fullmatch(path):
            continue
        text = printable(found[4].decode("utf-8", "replace"))
        if len(text) > _LONGEST_MATCH:
            text = text[:_LONGEST_MATCH] + "[...]"
        if block and block[-1].path != path:
            yield block
            block = []
        block.append(_FoundLine(path, int(found[2]), found[3].decode(), text))
    if block:
        yield block


def _render_matches(blocks: list[list[_FoundLine]], *, cut: bool) -> str:
    # grep walks a directory in its own order; sorted, the same search returns the same text each time.
    blocks.sort(key=lambda block: (block[0].path, block[0].number))
    out: list[str] = []
    matches = total = 0
    for block in blocks:
        total += sum(found.mark == ":" for found in block)
        if out and len(blocks) > 1 and any(found.mark == "-" for found in block) and matches < MOST_MATCHES:
            out.append("--")
        for found in block:
            if matches < MOST_MATCHES:
                matches += found.mark == ":"
                out.append(str(found))
    if cut or total > MOST_MATCHES:
        of = f"more than {total}" if cut else str(total)
        out.append(f"[the first {matches} of {of} matches: narrow the pattern, `path` or `glob`]")
    return "\n".join(out)
