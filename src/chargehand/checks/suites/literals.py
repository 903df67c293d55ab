"""Changes of expected values: edits of a test file that cannot affect the tests of other files."""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TypeGuard

from chargehand.checks.paths import language_of
from chargehand.checks.suites.additions import REACHING_NAMES, leaves_tests_alone
from chargehand.checks.suites.other import blank_comments
from chargehand.core.text import late_pattern, parse_python

_ASSERTIONS = ("assert", "expect", "raises", "warns")
# Methods of unittest's TestCase that only compare their arguments; others call or open them.
_COMPARING = frozenset({
    f"assert{what}" for what in (
        "Equal", "NotEqual", "True", "False", "Is", "IsNot", "IsNone", "IsNotNone", "In", "NotIn", "Greater",
        "GreaterEqual", "Less", "LessEqual", "AlmostEqual", "NotAlmostEqual", "CountEqual", "ListEqual",
        "TupleEqual", "SetEqual", "DictEqual", "SequenceEqual", "MultiLineEqual",
    )
})  # fmt: skip
# From a test's first line, which is not indented, to the bracket that ends it.
_TEST = {
    "go": late_pattern(r"^func Test\w*\(.*?^}", re.MULTILINE | re.DOTALL),
    "javascript": late_pattern(r"^(?:describe|context|suite|it|test)\(.*?^}", re.MULTILINE | re.DOTALL),
}
# Lines whose strings or numbers may be more than expected values.
_REACHES = late_pattern(
    r"\b(?:require|import|from|mock\w*|stub\w*|spy\w*|patch|eval|exec|process|global\w*|Reflect|prototype|exit|Exit|Setenv"
    r"|os|syscall|unsafe)\b|[\w\])]\s*(?<![=!<>:])=(?![=>])"
)
# Lines that compare, whose calls are those of assertions, and lines with values to compare with.
_COMPARES = late_pattern(r"[!=]=|\b(?:assert|expect)\w*\b|\bt\.[A-Za-z]+\(")
_ASSERTING_CALL = late_pattern(
    r"(?:assert|expect|to[A-Z]|Error|Fatal|Log|equal|deepEqual|strictEqual|is|ok|throws)\w*"
)
_CALLED = late_pattern(r"(\w+)\s*\(")
_HAS_VALUES = late_pattern(r":=|^\s*[{\[]")
_LITERAL = late_pattern(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`[^`]*`|(?<![\w.])\d[\w.]*")


def stays_inside(path: str, old: str, new: str) -> bool:
    """Return whether, judged by its text, a test file changed only in comparisons and additions.

    `leaves_tests_alone` judges additions. Other edits may only replace numbers in assertions and local variables
    of tests, and strings that assertions compare with; in Python also operators, and an assertion of `TestCase`
    by another one. A string that other code is called with may be the path of a file or the name of a module:
    such an edit, and any other, could disarm tests of other files.
    """
    before, after = _blank_values(path, old), _blank_values(path, new)
    lost = Counter(before.split("\n")) - Counter(after.split("\n"))
    return not (lost and language_of(path) != "python") and leaves_tests_alone(path, before, after)


def _blank_values(path: str, text: str) -> str:
    """Return a test file without the literals that its tests compare with."""
    language = language_of(path)
    if language == "python":
        try:
            return ast.unparse(_Blanked().visit(parse_python(text)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return text
    if language in _TEST:
        plain = blank_comments(language, text)
        return _TEST[language].sub(lambda test: "\n".join(map(_blank_line, test[0].split("\n"))), plain)
    return text


def _blank_line(line: str) -> str:
    plain = _LITERAL.sub("0", line)
    if _REACHES.search(plain):
        return line
    compares = _COMPARES.search(plain) is not None
    if compares and all(map(_ASSERTING_CALL.fullmatch, _CALLED.findall(plain))):
        return plain
    if compares or _HAS_VALUES.search(plain):
        return _LITERAL.sub(lambda found: "0" if found[0][0].isdigit() else found[0], line)
    return line


class _Blanked(ast.NodeTransformer):
    """Blanks what test functions compare: operators, strings, and numbers, these in local variables too."""

    def __init__(self) -> None:
        self._in_test = False
        self._in_value = False
        self._is_compared = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._visit_function(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return self._visit_values(node, comparing=True)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return self._visit_values(node, comparing=_is_assertion(node.value))

    def visit_withitem(self, node: ast.withitem) -> ast.AST:
        return self._visit_values(node, comparing=_is_assertion(node.context_expr))

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        local = all(isinstance(each, ast.Name) for each in node.targets)
        return self._visit_values(node, comparing=local, strings=False)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        # True and False stay: they can switch behaviour.
        number = isinstance(node.value, int | float | complex) and not isinstance(node.value, bool)
        compared = self._is_compared and isinstance(node.value, str | bytes)
        return ast.Constant(0) if self._in_value and (number or compared) else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        before = self._is_compared
        self._is_compared = before and _is_assertion(node)
        try:
            if self._is_compared and _compares(node.func):
                node.func.attr = "assertEqual"
            return self.generic_visit(node)
        finally:
            self._is_compared = before

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if self._is_compared:
            node.ops = [ast.Eq() for _ in node.ops]
        return self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node  # its parts must stay strings

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        before = self._in_test
        shares = any(isinstance(each, ast.Global | ast.Nonlocal) for each in ast.walk(node))
        self._in_test = (before or node.name.startswith("test")) and not shares
        try:
            return self.generic_visit(node)
        finally:
            self._in_test = before

    def _visit_values(self, node: ast.AST, *, comparing: bool, strings: bool = True) -> ast.AST:
        before = self._in_value, self._is_compared
        self._in_value = self._in_test and comparing and not _reaches(node)
        self._is_compared = self._in_value and strings
        try:
            return self.generic_visit(node)
        finally:
            self._in_value, self._is_compared = before


def _compares(function: ast.expr) -> TypeGuard[ast.Attribute]:
    """Return whether this is a method of the test case itself: a method of that name elsewhere may do anything."""
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return False
    return function.value.id == "self" and function.attr in _COMPARING


def _is_assertion(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name.startswith(_ASSERTIONS)


def _reaches(node: ast.AST) -> bool:
    """Return whether a statement names a function that can change code outside of its test."""
    names = (getattr(each, "id", None) or getattr(each, "attr", None) for each in ast.walk(node))
    return not REACHING_NAMES.isdisjoint(name for name in names if name)
