"""Normalise test files, so that a rewrite that no test can notice leaves no difference."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter

from chargehand.checks.paths import Language
from chargehand.checks.suites.other import blank_comments
from chargehand.core.text import late_pattern, parse_python

_WORD = late_pattern(r"\w+")
# Runners and the interpreter call these by their names.
_CALLED_BY_NAME = late_pattern(r"(?:test|pytest_|setup|teardown|load_tests|__)", re.IGNORECASE)
# Decorators that only change the function below them.
_PASSIVE_DECORATORS = frozenset({"contextmanager", "asynccontextmanager", "wraps", "cache", "lru_cache"})
# Removed in Python 3.12; both names have the same meaning.
_RENAMED_ASSERTIONS = {
    "assertEquals": "assertEqual",
    "assertNotEquals": "assertNotEqual",
    "assertAlmostEquals": "assertAlmostEqual",
    "assertNotAlmostEquals": "assertNotAlmostEqual",
    "assertRegexpMatches": "assertRegex",
    "assertNotRegexpMatches": "assertNotRegex",
    "assertRaisesRegexp": "assertRaisesRegex",
    "assert_": "assertTrue",
}


# Languages in which the width of the space between two words has no meaning.
_ALIGNED = frozenset({"go", "rust", "jvm"})
# Raw strings and text blocks first: they may hold quotes of the other kinds.
_LITERAL = late_pattern(r'(\br#+"(?s:.*?)"#+|"""(?s:.*?)"""|`[^`]*`|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\')')
_BLANKS = late_pattern(r"[ \t]+")


def align_evenly(language: Language | None, text: str) -> str:
    """Return a test file without comments and alignment, as formatters change them; literals stay as they are."""
    if language not in _ALIGNED:
        return text
    parts = _LITERAL.split(blank_comments(language, text))
    return "".join(part if number % 2 else _BLANKS.sub(" ", part) for number, part in enumerate(parts))


def equivalent_forms(old: str, new: str) -> tuple[str, str]:
    """Return two versions of a Python test file without differences that no test can notice.

    These are layout, comments, docstrings of tests without examples, the style of imports, annotations of tests,
    `raise X()` for `raise X`, old names of assertions, and the removal of unused helpers and standard library
    imports. Text that cannot be parsed is returned unchanged.
    """
    try:
        before, after = parse_python(old), parse_python(new)
        if "__doc__" in old or "__doc__" in new:  # docstrings are data
            return old, new
        _drop_unused(before, frozenset(_WORD.findall(new)))
        forms = (ast.unparse(ast.fix_missing_locations(_Plain().visit(each))) for each in (before, after))
        return next(forms), next(forms)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return old, new


def _drop_unused(module: ast.Module, kept: frozenset[str]) -> None:
    """Remove helpers and standard library imports that the file does not use and `kept` does not contain.

    A use in another file would fail, because the new version has no such name.
    """
    words = Counter(_WORD.findall(ast.unparse(module)))
    module.body = [node for node in module.body if not _is_helper(node, words, kept)]
    rest = [node for node in module.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    used = kept.union(_WORD.findall(ast.unparse(ast.Module(body=rest, type_ignores=[]))))
    module.body = [node for node in module.body if not _is_unused_import(node, used)]


def _is_helper(node: ast.stmt, words: Counter[str], kept: frozenset[str]) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _CALLED_BY_NAME.match(node.name):
        return False
    called = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    names = {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in called}
    return names <= _PASSIVE_DECORATORS and words[node.name] == 1 and node.name not in kept


def _is_unused_import(node: ast.stmt, used: frozenset[str]) -> bool:
    if isinstance(node, ast.ImportFrom):
        modules = [node.module or ""] if not node.level else [""]
    elif isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    else:
        return False
    standard = all(module.partition(".")[0] in sys.stdlib_module_names for module in modules)
    bound = {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return standard and "*" not in bound and used.isdisjoint(bound)


class _Plain(ast.NodeTransformer):
    """Rewrites constructs with the same meaning to one form."""

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self.generic_visit(node)
        node.body = _without_docstring(node.body)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        node.body = _without_docstring(node.body)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        _simplify_function(node)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        self.generic_visit(node)
        _simplify_function(node)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> list[ast.ImportFrom]:
        return [ast.ImportFrom(module=node.module, names=[alias], level=node.level) for alias in node.names]

    def visit_Import(self, node: ast.Import) -> list[ast.Import]:
        return [ast.Import(names=[alias]) for alias in node.names]

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        self.generic_visit(node)
        if isinstance(node.exc, ast.Call) and not node.exc.args and not node.exc.keywords:
            # Only for a class, known by its capital: a function may return the exception or do something else.
            name = ast.unparse(node.exc.func).rpartition(".")[2]
            node.exc = node.exc.func if name[:1].isupper() else node.exc
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            node.attr = _RENAMED_ASSERTIONS.get(node.attr, node.attr)
        return node


def _simplify_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    if not node.name.startswith("test"):
        return
    node.body = _without_docstring(node.body)
    # A decorator may read annotations, for example to choose values.
    if not node.decorator_list:
        node.returns = None
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            argument.annotation = None


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return a body without its docstring, unless that has examples, which may run as tests."""
    match body:
        case [ast.Expr(value=ast.Constant(value=str() as text)), *rest] if ">>>" not in text:
            return rest or [ast.Pass()]
    return body
