"""The `search` tool: grep over the files of a directory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from chargehand.agents._tools_files import Entry, Files
from chargehand.agents._tools_model import Mistake, ToolResult
from chargehand.agents._tools_read import missing
from chargehand.core.text import printable, shown_path

MOST_MATCHES = 200
_LONGEST_LINE = 300
_MOST_BYTES = 400_000
_LEFT_OUT = (".git", ".venv", ".chargehand", "node_modules")
_LINE = re.compile(rb"([^\0\n]+)\0(\d+)([:-])(.*)", re.DOTALL)
# head ends grep early; its own exit code comes on the last line of stderr
_SCRIPT = """
most=$1; shift
{ { grep "$@" < /dev/null; echo "$?" >&3; } | head -c "$most"; } 3>&2
"""


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    number: int
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}{self.mark}{self.number}{self.mark}{self.text}"


async def search(
    files: Files, pattern: str, path: str = ".", glob: str | None = None, context: int = 0
) -> ToolResult:
    """Find the lines that match; raises `Mistake`, for a wrong expression with grep's own words."""
    if not pattern or "\0" in pattern:
        raise Mistake("`pattern` is an extended regular expression of at least one character")
    entry = await files.look(path)
    if not entry.exists or entry.kind == "dangling":
        raise Mistake(await missing(files, path, entry))
    result = await files.run(_SCRIPT, str(_MOST_BYTES), *_words(pattern, entry, glob, context))
    code, words = _outcome(result.stderr)
    lines = result.stdout.split(b"\n")
    cut = len(result.stdout) >= _MOST_BYTES
    blocks = list(_blocks(lines[:-1], _selector(glob)))
    if not blocks:
        return _nothing(pattern, code, words)
    return ToolResult(text=_shown(blocks, cut))


def _words(pattern: str, entry: Entry, glob: str | None, context: int) -> Iterator[str]:
    yield from ("-rnEIHZs", "--color=never", *(f"--exclude-dir={name}" for name in _LEFT_OUT))
    if context:
        yield f"-C{context}"
    if glob and (name := glob.rsplit("/", 1)[-1]) and name != "**":
        yield f"--include={name}"
    yield from ("-e", pattern, "--", entry.word)


def _outcome(stderr: bytes) -> tuple[int, str]:
    words = printable(stderr.decode("utf-8", "replace")).strip().splitlines()
    code = int(words.pop()) if words and words[-1].isdigit() else 2
    return code, "; ".join(words)[:500]


def _nothing(pattern: str, code: int, words: str) -> ToolResult:
    if code > 1 and words:
        raise Mistake(
            f"grep cannot search for {pattern!r}: {words}. Put a backslash before ( ) [ {{ + * ? . | to mean it"
        )
    return ToolResult(text=f"no line matches {pattern!r}")


def _selector(glob: str | None) -> re.Pattern[str] | None:
    """A glob with a slash is held against the whole path below the workspace; grep itself only sees names."""
    if not glob or "/" not in glob:
        return None
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob.removeprefix("/workspace/").removeprefix("./").lstrip("/"))
    plain = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(plain.get(part) or re.escape(part) for part in parts), re.DOTALL)


def _blocks(lines: Iterable[bytes], selector: re.Pattern[str] | None) -> Iterator[list[_Found]]:
    """Yield lines that belong together: with context, those that grep put between two `--`."""
    block: list[_Found] = []
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None:
            if block:
                yield block
            block = []
            continue
        path = shown_path(found[1].decode("utf-8", "surrogateescape")).removeprefix("./")
        if selector is None or selector.fullmatch(path):
            text = printable(found[4].decode("utf-8", "replace"))
            mark = found[3].decode()
            if block and block[-1].path != path:
                yield block
                block = []
            block.append(_Found(path, int(found[2]), mark, _cut(text)))
    if block:
        yield block


def _shown(blocks: list[list[_Found]], cut: bool) -> str:
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


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + "[...]"
