"""The tests of a Python file: read from its syntax tree, by pattern where the source cannot be parsed."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterable

from chargehand.checks._python_checks import is_empty, live_body, measure, variants
from chargehand.checks._python_names import (
    Function,
    Names,
    marks_in,
    names_of,
    runs_before_tests,
    skipping_helpers,
    skips_among,
    statements,
    used_names,
    walk,
)
from chargehand.checks._suite import EMPTY_BODY, Case, Suite

_DEF = re.compile(r"^([ \t]*)(?:async[ \t]+)?def[ \t]+(test\w*)", re.MULTILINE)
_SKIP = re.compile(
    r"\b(?:mark\.(?:skip|skipif|xfail)|unittest\.skip\w*|pytest\.(?:skip|xfail)|skipTest|SkipTest)\b"
)
_ASSERT = re.compile(r"\bassert\w*\b")


def python_suite(source: str) -> Suite:
    """Return the tests of a Python source text."""
    try:
        return parsed_suite(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return guessed_suite(source)


def parsed_suite(source: str) -> Suite:
    """Return the tests by syntax; raises what `ast.parse` raises for broken or hostile source."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = ast.parse(source)
    return _Collector(module).suite()


def guessed_suite(source: str) -> Suite:
    """Return the tests by patterns: each reaches from its `def` to the next one."""
    starts = list(_DEF.finditer(source))
    borders = [*(start.start() for start in starts), len(source)]
    cases = []
    for start, end in zip(starts, borders[1:], strict=True):
        body = source[start.start() : end]
        line = source.count("\n", 0, start.start()) + 1
        marks = tuple(_SKIP.findall(body))
        cases.append(Case(name=start[2], line=line, marks=marks, assertions=len(_ASSERT.findall(body))))
    head = source[: starts[0].start()] if starts else source
    return Suite(cases=tuple(cases), marks=tuple(_SKIP.findall(head)))


class _Collector:
    """Walks module and class bodies the way a test runner imports them."""

    def __init__(self, module: ast.Module) -> None:
        self._module = module
        self._names: Names = names_of(module)
        functions = [
            node for node in statements(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        self._skipping = skipping_helpers(functions, self._names)
        self._cases: dict[tuple[str, str], Case] = {}
        self._file_marks: list[str] = []

    def suite(self) -> Suite:
        self._file_marks += self._body_marks(self._module.body)
        self._body(self._module.body, "", ())
        return Suite(cases=tuple(self._cases.values()), marks=tuple(self._file_marks))

    def _body(self, body: Iterable[ast.stmt], scope: str, marks: tuple[str, ...]) -> None:
        for statement in body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self._function(statement, scope, marks)
            elif isinstance(statement, ast.ClassDef):
                self._class(statement, scope, marks)
            else:
                self._block(statement, scope, marks)

    def _block(self, statement: ast.stmt, scope: str, marks: tuple[str, ...]) -> None:
        if isinstance(statement, ast.If):
            self._branch(statement, scope, marks)
        elif isinstance(statement, ast.Try):
            handled = [line for handler in statement.handlers for line in handler.body]
            self._body([*statement.body, *handled, *statement.orelse, *statement.finalbody], scope, marks)
        elif isinstance(statement, ast.With):
            self._body(statement.body, scope, marks)

    def _branch(self, statement: ast.If, scope: str, marks: tuple[str, ...]) -> None:
        if isinstance(statement.test, ast.Constant):
            self._body(statement.body if statement.test.value else statement.orelse, scope, marks)
            return
        condition = f"if {ast.unparse(statement.test)}"
        self._body(statement.body, scope, (*marks, condition))
        self._body(statement.orelse, scope, (*marks, f"not {condition}"))

    def _class(self, node: ast.ClassDef, scope: str, marks: tuple[str, ...]) -> None:
        if not _is_collected(node):
            return
        own = tuple(mark for d in node.decorator_list for mark in marks_in(d, self._names))
        self._body(node.body, f"{scope}{node.name}.", (*marks, *own, *self._body_marks(node.body)))

    def _function(self, node: Function, scope: str, marks: tuple[str, ...]) -> None:
        if not node.name.startswith("test"):
            return
        decorated = tuple(mark for d in node.decorator_list for mark in marks_in(d, self._names))
        body = live_body(node)
        nodes = walk(*body)
        empty = (EMPTY_BODY,) if is_empty(body) else ()
        helpers = sorted(self._skipping.intersection(used_names(node, nodes)))
        measures = measure(nodes, self._names)
        self._cases[scope, node.name] = Case(
            name=node.name,
            scope=scope,
            line=node.lineno,
            marks=(
                *marks,
                *decorated,
                *skips_among(nodes, self._names),
                *map("through {}".format, helpers),
                *empty,
            ),
            assertions=measures.assertions,
            approximations=measures.approximations,
            variants=variants(node, self._names),
            looser=measures.looser,
            stricter=measures.stricter,
        )

    def _body_marks(self, body: Iterable[ast.stmt]) -> tuple[str, ...]:
        """Return what skips every test of a module or class."""
        return tuple(mark for statement in body for mark in self._statement_marks(statement))

    def _statement_marks(self, statement: ast.stmt) -> tuple[str, ...]:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            return skips_among(walk(statement), self._names) if runs_before_tests(statement) else ()
        if isinstance(statement, ast.ClassDef):
            return ()
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for name in (t.id for t in targets if isinstance(t, ast.Name)):
                if name == "pytestmark":
                    return marks_in(statement.value, self._names)
                if name == "__test__" and isinstance(statement.value, ast.Constant) and not statement.value.value:
                    return ("__test__ = False",)
        return self._loose_skips(statement)

    def _loose_skips(self, statement: ast.stmt) -> tuple[str, ...]:
        """Return skips that run on import, tests inside the statement left to themselves."""
        nodes = walk(statement)
        inside = Counter(m for f in nodes if isinstance(f, Function) for m in skips_among(walk(f), self._names))
        return tuple((Counter(skips_among(nodes, self._names)) - inside).elements())


def _is_collected(node: ast.ClassDef) -> bool:
    """Whether a runner takes a class: by name (and then without `__init__`), or by a base it may inherit from."""
    if node.bases:
        return True
    methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    return node.name.startswith("Test") and "__init__" not in methods
