"""Examples in documentation that checks run as tests: what they say can be changed as that of any test can."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from chargehand.checks.paths import is_test_path, language_of
from chargehand.checks.trees import TreeReader, new_text, old_text
from chargehand.core.records import Change

_PROSE = (".md", ".rst", ".txt")
_ASKED = re.compile(r"\bdoctest|--doctest|\bxdoctest\b|\bsybil\b")
_DOC_LINE = re.compile(r"^\s*//[/!] ?")
# Rust's documentation tests are named by their file: "src/lib.rs - add (line 3)".
_RUST_NAME = re.compile(r"(?:.*::)?(?P<path>\S+\.rs) - ")


def changed_examples(
    changes: Iterable[Change], reader: TreeReader, commands: Iterable[str], ran: Iterable[str]
) -> tuple[str, ...]:
    """Return the files whose examples are not what they were, of those that checks run: `ran` has their tests.

    Further examples take nothing away, nor do those that moved to another place.
    """
    names = tuple(ran)
    in_rust = {found["path"] for name in names if (found := _RUST_NAME.match(name))}
    asked = any(map(_ASKED.search, commands))
    paths, gone = list[str](), Counter[str]()
    for change in changes:
        if change.old_id is None or is_test_path(change.path) or not _is_run(change.path, names, in_rust, asked):
            continue
        old, new = (Counter(_lines(change.path, text(reader, change) or "")) for text in (old_text, new_text))
        gone.update(old)
        gone.subtract(new)
        paths += [change.path] if old - new else []
    return tuple(paths) if any(count > 0 for count in gone.values()) else ()


def _is_run(path: str, names: Sequence[str], in_rust: set[str], asked: bool) -> bool:
    if language_of(path) == "rust":
        return path in in_rust
    if path.endswith(_PROSE):
        return asked or any(name.endswith(f"::{path.rpartition('/')[2]}") for name in names)
    if language_of(path) != "python":
        return False
    if asked:
        return True
    # pytest names an example by its object, `calc.add`, in the module `calc`.
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return any(_is_of_module(*name.partition("::")[::2], module) for name in names)


def _is_of_module(place: str, own: str, module: str) -> bool:
    if not own or not (module == place or module.endswith(f".{place}") or place.endswith(f".{module}")):
        return False
    parts = own.split(".")
    starts = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return any(module == start or module.endswith(f".{start}") for start in starts)


def _lines(path: str, text: str) -> Iterator[str]:
    """Yield the lines of the examples in a file: what is run, and what it is to say."""
    if language_of(path) == "rust":
        inside = False
        for line in text.splitlines():
            if not _DOC_LINE.match(line):
                inside = False
                continue
            plain = _DOC_LINE.sub("", line).strip()
            if plain.startswith("```"):
                inside = not inside
                # How an example is run stands behind its fence: `no_run`, `ignore`.
                yield plain
            elif inside and plain:
                yield plain
        return
    said = False
    for line in map(str.strip, text.splitlines()):
        said = line.startswith(">>>") or (said and bool(line) and not line.startswith(('"""', "'''", "```")))
        if said:
            yield line
