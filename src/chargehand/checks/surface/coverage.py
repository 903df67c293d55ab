"""The scope of coverage by the settings of the base: measured files and excluded lines.

Code that a coverage gate does not measure needs no test. The settings themselves are check surface; this module
finds code that a change puts outside of their scope.
"""

from __future__ import annotations

import configparser
import posixpath
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import translate
from typing import Any, Protocol

from msgspec import Struct

from chargehand.checks.paths import is_test_path, language_of
from chargehand.checks.trees import TreeReader, new_text, old_text
from chargehand.core.records import Change, Finding
from chargehand.core.text import late_pattern

# In the order in which coverage looks for them; it reads the first that has settings.
_FILES = (".coveragerc", ".coveragerc.toml", "setup.cfg", "tox.ini", "pyproject.toml")
_SOURCES = late_pattern(r"(?:^|\s)--(?:cov|source|source-pkgs)[=\s]+[\"']?(?P<names>[\w./,-]+)")
_OMITTED = late_pattern(r"(?:^|\s)--omit[=\s]+[\"']?(?P<names>[^\s\"']+)")
_GATE = late_pattern(r"--(?:cov-)?fail-under\b")
_LONGEST_PATTERN, _LONGEST_LINE = 200, 300
_MATCH_SECONDS = 0.1  # an honest pattern takes microseconds
# A comment serves to exclude code. Other patterns match code that needs no test as long as it is short.
_FEW_LINES = 3
_NO_CODE = late_pattern(r"\s*(?:#.*|[()\[\]{},:]*|(?:from|import)\b.*|pass|\.\.\.)\s*")
_RUNS_OTHERS = late_pattern(r"(?<![\w.])exec\s*\(|\brunpy\.run_(?:path|module)\s*\(")
_DEFINED = late_pattern(r"^(?:async\s+)?(?:def|class)\s+(\w+)", re.MULTILINE)


class _LinePattern(Protocol):
    """A pattern of the `regex` library, which can stop a match that takes too long."""

    def search(self, line: str, *, timeout: float) -> Any:
        """Return the match, or `None`. Raises `TimeoutError`."""
        ...


class CoverageScope(Struct, frozen=True, kw_only=True):
    """The scope of coverage: files below `sources` (all if empty), without the `omitted`.

    With `gate`, too little coverage fails a check. Lines that match one of `excluded` are left out, with the block
    that they begin. Paths are relative to the `directory` in which the checks start.
    """

    directory: str = ""
    gate: bool = False
    sources: tuple[str, ...] = ()
    included: tuple[re.Pattern[str], ...] = ()
    omitted: tuple[re.Pattern[str], ...] = ()
    excluded: tuple[_LinePattern, ...] = ()

    def measures(self, path: str) -> bool:
        """Return whether a file is measured; outside of the directory this is unknown and counts as measured."""
        if self.directory and not path.startswith(f"{self.directory}/"):
            return True
        path = path.removeprefix(f"{self.directory}/")
        if self.sources and not any(_is_below(path, source) for source in self.sources):
            return False
        if self.included and not _matches(self.included, path):
            return False
        return not _matches(self.omitted, path)

    def find_excluded(self, old: str | None, new: str) -> str | None:
        """Return the first new line of a file that excludes code, if any.

        A line whose match takes too long counts too: the repository has the patterns, but the agent writes the
        lines.
        """
        known = {line.strip() for line in (old or "").splitlines()}
        lines = new.splitlines()
        for number, line in enumerate(lines):
            if line.strip() in known or not line.strip() or len(line) > _LONGEST_LINE:
                continue
            try:
                matches = (each.search(line, timeout=_MATCH_SECONDS) for each in self.excluded)
                found = next(filter(None, matches), None)
            except TimeoutError:
                return line.strip()
            if found is not None and ("#" in line[: found.end()] or _counts(lines, number) > _FEW_LINES):
                return line.strip()
        return None


def read_coverage_scope(
    texts: Iterable[str], read: Callable[[str], str | None], directory: str = ""
) -> CoverageScope:
    """Return the scope of coverage by `texts`, which start it, and by settings, which `read` returns by path."""
    said = "\n".join(texts)
    run, report = _read_settings(read, directory)
    named = [name for found in _SOURCES.finditer(said) for name in found["names"].split(",")]
    omitted = [name for found in _OMITTED.finditer(said) for name in found["names"].split(",")]
    limit = str(report.get("fail_under", 0)).strip()
    return CoverageScope(
        directory=directory,
        gate=_GATE.search(said) is not None or limit.rstrip("0.") != "",
        sources=tuple(name for name in (*named, *_list(run, "source", "source_pkgs", "source_dirs")) if name),
        included=_globs(_list(run, "include")),
        omitted=_globs([*omitted, *_list(run, "omit"), *_list(report, "omit")]),
        excluded=_expressions(_list(report, "exclude_lines", "exclude_also")),
    )


def find_unmeasured(changes: Iterable[Change], reader: TreeReader, scope: CoverageScope) -> Iterator[Finding]:
    """Yield a finding for each file that hides new code from the coverage gate, if there is a gate.

    It is not measured and gained code that measured files lost or use; or it is measured and runs code from text.
    """
    sources = [each for each in changes if language_of(each.path) == "python" and not is_test_path(each.path)]
    hidden = [each for each in sources if each.new_id is not None and not scope.measures(each.path)]
    if not scope.gate:
        return
    gained, lost = list[str](), set[str]()
    for change in (each for each in sources if scope.measures(each.path)):
        old, new = old_text(reader, change) or "", new_text(reader, change) or ""
        gained += (added := _added_lines(old, new))
        if any(_RUNS_OTHERS.search(line) for line in added):
            yield _describe(change.path, "it runs code by its text, which the gate of coverage does not measure")
        lost.update(line.strip() for line in _added_lines(new, old) if _is_code(line))
    defined = {"main", *_DEFINED.findall("\n".join(gained))}
    for change in hidden:
        lines = _added_lines(old_text(reader, change) or "", new_text(reader, change) or "")
        code = [line for line in lines if _is_code(line)]
        names = set(_DEFINED.findall("\n".join(lines))) - defined
        if not names and len(code) <= _FEW_LINES:
            continue
        folder, name = posixpath.split(change.path)
        module = posixpath.basename(folder) if name == "__init__.py" else name.removesuffix(".py")
        used = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted({module, *names})))})\b")
        moved = sum(line.strip() in lost for line in code) > _FEW_LINES
        if moved or any(used.search(line) for line in gained):
            how = "moved there" if moved else "uses its additions"
            yield _describe(change.path, f"the gate of coverage does not measure it, and measured code {how}")


def _describe(path: str, message: str) -> Finding:
    return Finding(rule="unmeasured_code", severity="warning", path=path, message=message, needs_person=True)


def _added_lines(old: str, new: str) -> list[str]:
    known = {line.strip() for line in old.splitlines()}
    return [line for line in new.splitlines() if line.strip() not in known]


def _is_code(line: str) -> bool:
    return _NO_CODE.fullmatch(line) is None


def _read_settings(read: Callable[[str], str | None], directory: str) -> tuple[dict[str, Any], dict[str, Any]]:
    for name in _FILES:
        text = read(posixpath.join(directory, name))
        if text is None:
            continue
        try:
            if name.endswith(".toml"):
                tables = tomllib.loads(text)
                tables = tables if name != "pyproject.toml" else tables.get("tool", {}).get("coverage", {})
            else:
                parser = configparser.RawConfigParser(strict=False)
                parser.read_string(text)
                prefix = "" if name == ".coveragerc" else "coverage:"
                tables = {
                    each: dict(parser[prefix + each]) for each in ("run", "report") if prefix + each in parser
                }
            found = tables.get("run", {}), tables.get("report", {})
        except (ValueError, configparser.Error, AttributeError, KeyError):
            continue
        if any(found) and all(isinstance(each, dict) for each in found):
            return found
    return {}, {}


def _list(table: dict[str, Any], *keys: str) -> list[str]:
    found: list[str] = []
    for key in keys:
        value = table.get(key)
        if isinstance(value, str):
            found += [each.strip() for each in re.split(r"[,\n]" if "exclude" not in key else r"\n", value)]
        elif isinstance(value, list):
            found += [each.strip() for each in value if isinstance(each, str)]
    return [each for each in found if each]


def _globs(words: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    """Return patterns of paths: relative ones begin at the top, `*/` matches any directory."""
    return tuple(re.compile(translate(word.removeprefix("./").lstrip("/"))) for word in words)


def _expressions(words: Sequence[str]) -> tuple[_LinePattern, ...]:
    if not words:
        return ()
    import regex  # takes longer to import than most commands run

    found = list[_LinePattern]()
    for word in words:
        try:
            found += [regex.compile(word)] if len(word) <= _LONGEST_PATTERN else []
        except regex.error:
            continue
    return tuple(found)


def _is_below(path: str, source: str) -> bool:
    """Return whether a file belongs to a source: a directory, or a package by its dotted name."""
    if source in (".", "./"):
        return True
    place = source.removeprefix("./").strip("/")
    if "/" not in place:
        place = place.replace(".", "/")
    return f"/{path}".startswith(f"/{place}/") or f"/{place}/" in f"/{path}" or path.endswith(f"{place}.py")


def _matches(patterns: Iterable[re.Pattern[str]], path: str) -> bool:
    return any(each.fullmatch(path) or each.fullmatch(f"x/{path}") for each in patterns)


def _counts(lines: Sequence[str], number: int) -> int:
    """Return the number of effective lines, without imports, of the block that a line begins."""
    head = lines[number]
    indent = len(head) - len(head.lstrip())
    block = list(_block(lines[number + 1 :], indent)) if head.rstrip().endswith(":") else [head]
    return sum(map(_is_code, block))


def _block(lines: Sequence[str], indent: int) -> Iterator[str]:
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            return
        yield line
