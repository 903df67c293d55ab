"""Generate small faults (mutants) of a source file, for mutation testing.

Python is read with its parser, other languages by tokens. A fault changes one place of one line. Equivalent
mutants are not filtered out: a fault that neither version of the tests notices shows nothing about either.
"""

from __future__ import annotations

import ast
import io
import itertools
import keyword
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from msgspec import Struct

from chargehand.checks.paths import language_of
from chargehand.core.text import late_pattern, parse_python

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", ">="),
    ast.LtE: ("<=", ">"),
    ast.Gt: (">", "<="),
    ast.GtE: (">=", "<"),
    ast.Is: ("is", "is not"),
    ast.In: ("in", "not in"),
}
_OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
}
_WORD = late_pattern(r"[A-Za-z_]\w*")
# Only operators between blanks: others may be part of a type, a pointer or a path.
_SWAPPED = {
    "===": "!==",
    "!==": "===",
    "==": "!=",
    "!=": "==",
    "<=": ">",
    ">=": "<",
    "<": ">=",
    ">": "<=",
    "&&": "||",
    "||": "&&",
    "+": "-",
    "-": "+",
    "*": "+",
    "/": "*",
    "%": "*",
    "+=": "-=",
    "-=": "+=",
}
_TOKENS = (
    *((late_pattern(rf"(?<=\s){re.escape(old)}(?=\s)"), new) for old, new in _SWAPPED.items()),
    (late_pattern(r"\btrue\b"), "false"),
    (late_pattern(r"\bfalse\b"), "true"),
    (late_pattern(r"(?<![\w.#\"'])\d{1,9}(?![\w.\"'])"), ""),
)
_NO_CODE = late_pattern(r"\s*(?://|/\*|\*|#(?!\[)|--|import\b|from\b|package\b|use\b|using\b|#include|@|\}|\{)")
_STRING = late_pattern(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`|//.*|/\*.*?\*/")
_EVERYWHERE = frozenset(keyword.kwlist) | frozenset(
    _WORD.findall("""
    func var let const fn mut pub function new this self switch case range void int string bool true false null nil
    undefined err error test it t describe expect assert assert_eq assertEqual assertTrue toBe equal ok unwrap use
    """)
)
# A line that begins a function, method or type; the lines indented below belong to it.
_BEGINS = late_pattern(
    r"^(?P<indent>\s*)(?:(?:export|default|async|pub(?:\([^)]*\))?|public|private|protected|internal|static|final|const"
    r"|abstract|unsafe|extern|override|open|inline|virtual)\s+)*"
    r"(?:(?:func|fn|fun|function\*?|def|class|impl(?:<[^>]*>)?|trait|interface|struct|enum|module|sub|proc)\s+"
    r"(?:\([^)]*\)\s*)?(?P<name>\w+)|(?P<held>\w+)\s*(?::[^=]+)?=\s*(?:async\s*)?(?:function\b|\([^()]*\)[^=]*=>)"
    r"|(?!(?:if|for|while|switch|catch|return|else|do|match|loop|with|new)\b)"
    r"(?:[\w<>\[\],.*&:]+\s+)*[*&]?(?P<method>[#\w]+)\s*\([^;{}]*\)[^;={}]*\{?\s*$)"
)
_LONGEST = 200_000
_LONGEST_HEAD = 300
_PER_LINE = 2
_UNNAMED = 3  # the closeness of a fault in code that changed tests do not name


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A source file with one fault.

    `before` and `after` are the changed `line` (from 1) without indentation; `content` is the whole file with the
    fault, `original` without it. `within` names the functions and classes around the fault, innermost last, if
    known. `new` replaces the bytes of the original from `start` to `end`. `is_named` is false if the changed tests
    do not name the code around the fault.
    """

    path: str
    line: int
    before: str
    after: str
    start: int
    end: int
    new: str
    original: str = field(repr=False)
    within: tuple[str, ...] = ()
    is_named: bool = True

    @property
    def content(self) -> str:
        """The whole file with the fault; built on each access, as a long file has thousands of faults."""
        source = self.original.encode()
        return (source[: self.start] + self.new.encode() + source[self.end :]).decode()

    @property
    def can_be_read(self) -> bool:
        """Whether the file with the fault parses; always true for languages other than Python."""
        return language_of(self.path) != "python" or _parse(self.content) is not None


def find_faults(path: str, source: str) -> list[Mutant]:
    """Return the faults of a source file in the order of its lines; empty if it is too long or does not parse.

    Some faults keep the file from parsing. They are included, as each check (`can_be_read`) parses the whole file.
    """
    if len(source) > _LONGEST:
        return []
    if language_of(path) == "python":
        return list(_python_faults(path, source))
    return list(_token_faults(path, source))


def choose_faults(
    faults: Iterable[Mutant],
    *,
    words: Collection[str],
    near: Collection[str],
    around: Collection[str] = (),
    limit: int,
) -> list[Mutant]:
    """Return at most `limit` faults with which the file parses, those closest to the changed tests first.

    Closest is code named in the lines that tests lost (`near`), then in the lines `around` these, then anywhere in
    the tests (`words`). Equally close faults are spread: one of each function before a second of any.
    """
    ranked: dict[tuple[int, int], list[Mutant]] = {}
    seen: dict[tuple[str, tuple[str, ...]], int] = {}
    for fault in faults:
        names = set(fault.within)
        # Outside of functions, use the words of the line itself.
        names = names or set(_WORD.findall(fault.before))
        known = (at for at, each in enumerate((near, around, words)) if not names.isdisjoint(each))
        closeness = next(known, _UNNAMED)
        place = (fault.path, fault.within)
        turn = seen[place] = seen.get(place, 0) + 1
        ranked.setdefault((closeness, turn), []).append(replace(fault, is_named=closeness < _UNNAMED))
    best = (fault for key in sorted(ranked) for fault in ranked[key])
    return list(itertools.islice((fault for fault in best if fault.can_be_read), limit))


def does_something(line: str) -> bool:
    """Return whether a line is more than blank, a bracket, a comment, an import or an annotation."""
    return bool(line.strip()) and not _NO_CODE.match(line)


def words_of(text: str) -> frozenset[str]:
    """Return the names in a text."""
    return frozenset(_WORD.findall(text))


def subjects_of(text: str) -> frozenset[str]:
    """Return the names that a test can be about, without words that every program has."""
    return words_of(text) - _EVERYWHERE


# --- Python


class _Edit(Struct, frozen=True):
    """A replacement of the source between two positions (line from 1, column in bytes) by `new`."""

    start: tuple[int, int]
    end: tuple[int, int]
    new: str


def _python_faults(path: str, source: str) -> Iterator[Mutant]:
    module = _parse(source)
    if module is None:
        return
    lines = source.encode().splitlines(keepends=True)
    begins = [0, *itertools.accumulate(map(len, lines))]
    found: list[tuple[_Edit, tuple[str, ...]]] = []
    pending: list[tuple[ast.AST, tuple[str, ...]]] = [(module, ())]
    while pending:
        node, within = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            within = (*within, node.name)
        if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr):
            continue
        found += [(edit, within) for edit in _edits(node, lines)]
        # Annotations and docstrings do not run.
        annotations = (getattr(node, "annotation", None), getattr(node, "returns", None))
        pending += [
            (child, within)
            for child in ast.iter_child_nodes(node)
            if child not in annotations
            and not (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            )
        ]
    for edit, within in sorted(found, key=lambda each: each[0].start):
        row, column = edit.start
        # Only edits within one line: longer ones are seldom small faults.
        if edit.end[0] != row:
            continue
        line = lines[row - 1]
        changed = line[:column] + edit.new.encode() + line[edit.end[1] :]
        if changed != line:
            yield Mutant(
                path=path,
                line=row,
                before=line.decode().strip(),
                after=changed.decode().strip(),
                start=begins[row - 1] + column,
                end=begins[row - 1] + edit.end[1],
                new=edit.new,
                original=source,
                within=within,
            )


def _parse(source: str) -> ast.Module | None:
    try:
        return parse_python(source)
    except SyntaxError:
        return None


def _edits(node: ast.AST, lines: list[bytes]) -> Iterator[_Edit]:  # noqa: C901 -- a case for each kind of node
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            yield from _between(lines, left, right, *_COMPARISONS[type(op)])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            yield from _between(lines, left, right, *_OPERATORS[type(op)])
        case ast.BoolOp(op=op, values=[left, right, *_]):
            yield from _between(lines, left, right, *(("and", "or") if isinstance(op, ast.And) else ("or", "and")))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield _Edit(_start(node), _start(operand), "")
        case ast.Constant(value=bool() as value):
            yield _Edit(_start(node), _end(node), str(not value))
        case ast.Constant(value=int() | float() as value):
            yield _Edit(_start(node), _end(node), repr(value + 1))
        case ast.Constant(value=str() as value) if value and "\n" not in value:
            yield _Edit(_start(node), _end(node), repr(value + "x"))
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield _Edit(_start(value), _end(value), "None")
        case ast.If(test=ast.Name() | ast.Call() | ast.Attribute() as test):
            yield _Edit(_start(test), _start(test), "not ")
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            yield _Edit(_start(node), _end(node), "pass")


def _start(node: ast.AST) -> tuple[int, int]:
    assert isinstance(node, ast.stmt | ast.expr)
    return node.lineno, node.col_offset


def _end(node: ast.AST) -> tuple[int, int]:
    assert isinstance(node, ast.stmt | ast.expr)
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _between(lines: list[bytes], left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[_Edit]:
    """Yield the edit that replaces an operator between two operands on one line."""
    (row, start), (last, end) = _end(left), _start(right)
    gap = lines[row - 1][start:end] if row == last else b""
    # Parentheses around an operand belong to no node.
    if gap.strip(b" ()") == old.encode():
        at = start + gap.index(old.encode())
        yield _Edit((row, at), (row, at + len(old)), new)


# --- other languages


def _token_faults(path: str, source: str) -> Iterator[Mutant]:
    begin = end = 0
    around: list[tuple[int, str]] = []
    # Split only at line feeds, as compilers count lines: many sources contain form feeds.
    for number, line in enumerate(io.StringIO(source, newline="\n"), 1):
        begin, end = end, end + len(line.encode())
        if line.strip():
            indent = len(line) - len(line.lstrip())
            # The end of a block is indented like its beginning.
            while around and indent <= around[-1][0] and line[indent] not in ")}]{":
                around.pop()
            if begun := _BEGINS.match(line[:_LONGEST_HEAD]):
                around.append((indent, begun["name"] or begun["held"] or begun["method"]))
        if _NO_CODE.match(line):
            continue
        # Blank strings and comments, so that they hold no tokens; columns stay the same.
        plain = _STRING.sub(lambda found: "\0" * len(found[0]), line)
        made = 0
        for pattern, new in _TOKENS:
            token = pattern.search(plain)
            if token is None or made == _PER_LINE:
                continue
            made += 1
            text = new or str(int(token[0]) + 1)
            head, tail = line[: token.start()], line[token.end() :]
            yield Mutant(
                path=path,
                line=number,
                before=line.strip(),
                after=f"{head}{text}{tail}".strip(),
                start=begin + len(head.encode()),
                end=end - len(tail.encode()),
                new=text,
                original=source,
                within=tuple(name for _, name in around),
            )
