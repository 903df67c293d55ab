"""Find changed examples in documentation that checks run as tests, since an edit can weaken them like any test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from chargehand.checks.paths import is_test_path, language_of
from chargehand.checks.trees import TreeReader, new_text, old_text, text_of
from chargehand.core.records import Change
from chargehand.core.text import late_pattern

_PROSE = (".md", ".rst", ".txt")
_ASKED = late_pattern(r"doctest|\bsybil\b")
_SETTINGS = frozenset({"pyproject.toml", "setup.cfg", "pytest.ini", "tox.ini", "Makefile", "noxfile.py"})
_MOST_FILES = 2_000
_DOC_LINE = late_pattern(r"^\s*//[/!] ?")
# Rust's documentation tests are named by their file: "src/lib.rs - add (line 3)".
_RUST_NAME = late_pattern(r"(?:.*::)?(?P<path>\S+\.rs) - ")


def changed_examples(
    changes: Iterable[Change], reader: TreeReader, base_tree: str, commands: Sequence[str], ran: Iterable[str]
) -> tuple[str, ...]:
    """Return the files with changed or removed examples that checks run; `ran` has the names of tests that ran.

    Added examples and examples that moved to another place do not count.
    """
    paths, gone = list[str](), Counter[str]()
    for change in changes:
        if (
            change.old_id is None
            or is_test_path(change.path)
            or not (language_of(change.path) in ("python", "rust") or change.path.endswith(_PROSE))
        ):
            continue
        old, new = (Counter(_lines(change.path, text(reader, change) or "")) for text in (old_text, new_text))
        gone.update(old)
        gone.subtract(new)
        paths += [change.path] if old - new else []
    if all(count <= 0 for count in gone.values()):
        return ()
    names = tuple(ran)
    asked = any(path for path in paths if language_of(path) != "rust") and (
        any(map(_ASKED.search, commands)) or _is_asked(reader, base_tree)
    )
    return tuple(path for path in paths if _is_run(path, names, asked=asked))


def _is_asked(reader: TreeReader, tree: str) -> bool:
    """Return whether tests or their settings run examples as tests; with too many files to read, assume so."""
    read = 0
    for path, mode, blob in reader.entries(tree):
        name = path.rpartition("/")[2]
        if not (name in _SETTINGS or (language_of(path) == "python" and is_test_path(path))):
            continue
        text = text_of(reader, mode, blob)
        if text is not None and _ASKED.search(text):
            return True
        read += 1
        if read == _MOST_FILES:
            return True
    return False


def _is_run(path: str, names: Sequence[str], *, asked: bool) -> bool:
    if language_of(path) == "rust":
        return any((found := _RUST_NAME.match(name)) and found["path"] == path for name in names)
    if asked or path.endswith(_PROSE):
        return asked or any(name.endswith(f"::{path.rpartition('/')[2]}") for name in names)
    # pytest names an example by its object, `calc.add`, in the module `calc`.
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for name in names:
        place, _, own = name.partition("::")
        if own and (module == place or module.endswith(f".{place}") or place.endswith(f".{module}")):
            parts = own.split(".")
            starts = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
            if any(module == start or module.endswith(f".{start}") for start in starts):
                return True
    return False


def _lines(path: str, text: str) -> Iterator[str]:
    """Yield the lines of the examples in a file: code and its expected output."""
    if language_of(path) == "rust":
        inside = False
        for line in text.splitlines():
            if not _DOC_LINE.match(line):
                inside = False
                continue
            plain = _DOC_LINE.sub("", line).strip()
            if plain.startswith("```"):
                inside = not inside
                # Words after the fence say how an example is run: `no_run`, `ignore`.
                yield plain
            elif inside and plain:
                yield plain
        return
    said = False
    for line in map(str.strip, text.splitlines()):
        said = line.startswith(">>>") or (said and bool(line) and not line.startswith(('"""', "'''", "```")))
        if said:
            yield line
