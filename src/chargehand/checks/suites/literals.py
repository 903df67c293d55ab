"""Changes of expected values: edits of a test file that cannot affect the tests of other files."""

from __future__ import annotations

import ast
import re
from collections import Counter

from chargehand.checks.paths import language_of
from chargehand.checks.suites.additions import REACHING_NAMES, leaves_tests_alone
from chargehand.checks.suites.other import blank_comments
from chargehand.core.text import late_pattern, parse_python

_ASSERTIONS = ("assert", "expect", "raises", "warns")
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
_LITERAL = late_pattern(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`[^`]*`|(?<![\w.])\d[\w.]*")


def stays_inside(path: str, old: str, new: str) -> bool:
    """Return whether, judged by its text, a test file changed only in expected values and by harmless additions.

    `leaves_tests_alone` judges additions. Other edits may only replace literals in assertions and in local
    variables of tests. Any other edit could disarm tests of other files, as they share a process.
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
    return line if _REACHES.search(_LITERAL.sub("0", line)) else _LITERAL.sub("0", line)


class _Blanked(ast.NodeTransformer):
    """Replaces the literals in assertions and assignments to local names inside test functions."""

    def __init__(self) -> None:
        self._in_test = False
        self._in_value = False

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
        return self._visit_values(node, comparing=all(isinstance(each, ast.Name) for each in node.targets))

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        comparable = self._in_value and isinstance(node.value, int | float | complex | str | bytes)
        # True and False stay: they can switch behaviour.
        return ast.Constant(0) if comparable and not isinstance(node.value, bool) else node

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

    def _visit_values(self, node: ast.AST, *, comparing: bool) -> ast.AST:
        before = self._in_value
        self._in_value = before or (self._in_test and comparing and not _reaches(node))
        try:
            return self.generic_visit(node)
        finally:
            self._in_value = before


def _is_assertion(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name.startswith(_ASSERTIONS)


def _reaches(node: ast.AST) -> bool:
    """Return whether a statement names a function that can change code outside of its test."""
    names = (getattr(each, "id", None) or getattr(each, "attr", None) for each in ast.walk(node))
    return not REACHING_NAMES.isdisjoint(name for name in names if name)
