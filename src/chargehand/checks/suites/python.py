"""The tests of a Python file: names, skips, assertions, tolerances and parameter sets, from its syntax tree."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from chargehand.checks.suites.facts import EMPTY_BODY, Case, Suite
from chargehand.core.text import late_pattern, parse_python

_SKIP_CALLS = frozenset({"pytest.skip", "pytest.xfail", "pytest.importorskip", "pytest.exit"})
_SKIP_ERRORS = ("SkipTest", "pytest.skip.Exception", "Skipped")
_NO_CHILDREN = frozenset({"ctx", "op"})
_BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
_SETUP_NAMES = frozenset(
    {"setUp", "setUpClass", "setUpModule", "asyncSetUp"}
    | {f"setup_{place}" for place in ("method", "class", "module", "function")}
)

# Keyword arguments with which numpy, math, pytest, unittest and similar libraries take a tolerance.
_LOOSER = frozenset({"rel", "abs", "rel_tol", "abs_tol", "rtol", "atol", "delta", "tol", "tolerance"})
_STRICTER = frozenset({"places", "decimal", "significant", "nulp"})
# Defaults of calls that name no tolerance: naming a larger one weakens the test.
_DEFAULTS: dict[str, tuple[str, float]] = {
    "approx": ("rel", 1e-6),
    "isclose": ("rtol", 1e-5),
    "math.isclose": ("rel_tol", 1e-9),
    "allclose": ("rtol", 1e-5),
    "assert_allclose": ("rtol", 1e-7),
    "assertAlmostEqual": ("places", 7),
    "assert_almost_equal": ("decimal", 7),
    "assert_array_almost_equal": ("decimal", 6),
    "assert_approx_equal": ("significant", 7),
}
_POSITIONS: dict[str, tuple[tuple[int, str], ...]] = {
    "approx": ((1, "rel"), (2, "abs")),
    "assertAlmostEqual": ((2, "places"),),
    **dict.fromkeys(("isclose", "allclose", "assert_allclose"), ((2, "rtol"), (3, "atol"))),
    **dict.fromkeys(("assert_almost_equal", "assert_array_almost_equal"), ((2, "decimal"),)),
    "assert_approx_equal": ((2, "significant"),),
}
_EXPECTING = ("assert", "expect", "verify", "check")
_MAX_EXPONENT = 300
# Patterns for source that does not parse.
_DEF = late_pattern(r"^([ \t]*)(?:async[ \t]+)?def[ \t]+(test\w*)", re.MULTILINE)
_SKIP = late_pattern(
    r"\b(?:mark\.(?:skip|skipif|xfail)|unittest\.skip\w*|pytest\.(?:skip|xfail)|skipTest|SkipTest)\b"
)
_ASSERT = late_pattern(r"\bassert\w*\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def walk(*roots: ast.AST) -> list[ast.AST]:
    """Return the roots and all nodes below; several times faster than `ast.walk`, as every test is walked."""
    nodes, waiting = list[ast.AST](), list(roots)
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                waiting += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and name not in _NO_CHILDREN:
                waiting.append(value)
    return nodes


def statements(module: ast.Module) -> list[ast.AST]:
    """Return all statements of a module at any depth, without looking into expressions."""
    found, waiting = list[ast.AST](), list[ast.AST](module.body)
    while waiting:
        node = waiting.pop()
        found.append(node)
        for name in _BLOCKS:
            waiting += getattr(node, name, ())
    return found


class Names(Struct, frozen=True):
    """The meaning of a file's names: `imports` by local name, `aliases` for skip marks stored in variables."""

    imports: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def dotted(self, node: ast.AST) -> str:
        """Return the full dotted name of a name or attribute, "" for any other expression."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ".".join(["", *reversed(parts)]) if parts else ""
        parts.append(self.imports.get(node.id, node.id))
        return ".".join(reversed(parts))


def names_of(module: ast.Module) -> Names:
    """Return the names of a module: its imports, and the variables that hold skip marks."""
    names = Names()
    for node in statements(module):
        if isinstance(node, ast.Import):
            names.imports.update({a.asname: a.name for a in node.names if a.asname})
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.imports.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            marks = marks_in(statement.value, names)
            if marks and statement.targets[0].id != "pytestmark":
                names.aliases[statement.targets[0].id] = marks
    return names


def marks_in(node: ast.AST, names: Names) -> tuple[str, ...]:
    """Return the skip and xfail marks inside a decorator or a `pytestmark`, without their reasons."""
    found: list[str] = []
    called: set[int] = set()
    for sub in walk(node):
        if isinstance(sub, ast.Call) and _is_mark(names.dotted(sub.func)):
            called.add(id(sub.func))
            # Keep conditions, drop the reason: another reason for the same skip is no new skip.
            conditions = [
                arg
                for arg in sub.args
                if not isinstance(arg, ast.JoinedStr)
                and not (isinstance(arg, ast.Constant) and isinstance(arg.value, str))
            ]
            words = [names.dotted(sub.func), *map(ast.unparse, conditions)]
            words += [f"{k.arg}={ast.unparse(k.value)}" for k in sub.keywords if k.arg not in {"reason", "msg"}]
            found.append(" ".join(words))
        elif isinstance(sub, ast.Name | ast.Attribute) and id(sub) not in called:
            dotted = names.dotted(sub)
            if dotted in names.aliases:
                found.extend(names.aliases[dotted])
            elif _is_mark(dotted):
                found.append(dotted)
    return tuple(found)


def _is_mark(dotted: str) -> bool:
    word = dotted.rpartition(".")[2].lower()
    return word.startswith(("skip", "xfail")) or word == "expectedfailure"


def skips_among(nodes: Iterable[ast.AST], names: Names) -> tuple[str, ...]:
    """Return the calls and raises among the nodes that skip the test or module that runs them."""
    found: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Call):
            dotted = names.dotted(node.func)
            if dotted in _SKIP_CALLS or dotted.endswith(".skipTest"):
                found.append(dotted)
        elif isinstance(node, ast.Raise) and node.exc is not None:
            dotted = names.dotted(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
            if dotted.endswith(_SKIP_ERRORS):
                found.append(f"raise {dotted}")
    return tuple(found)


def runs_before_tests(function: Function) -> bool:
    """Return whether a function runs before every test around it: a set-up method or autouse fixture."""
    if function.name in _SETUP_NAMES:
        return True
    keywords = [k for d in function.decorator_list if isinstance(d, ast.Call) for k in d.keywords]
    return any(k.arg == "autouse" for k in keywords)


def skipping_helpers(functions: Iterable[Function], names: Names) -> frozenset[str]:
    """Return the names of helpers and fixtures that skip their caller, directly or through each other."""
    inside = {f.name: (f, walk(f)) for f in functions if not f.name.startswith("test")}
    skipping = {name for name, (_, nodes) in inside.items() if skips_among(nodes, names)}
    if not skipping:
        return frozenset()
    uses = {name: frozenset(used_names(function, nodes)) for name, (function, nodes) in inside.items()}
    while more := {name for name, used in uses.items() if name not in skipping and used & skipping}:
        skipping |= more
    return frozenset(skipping)


def used_names(function: Function, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the plain names a function uses: its parameters (fixtures) and every name among its nodes."""
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield argument.arg
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id


def live_body(function: Function) -> list[ast.stmt]:
    """Return the statements that can run: no docstring, nothing after an unconditional return."""
    body = function.body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    for index, statement in enumerate(body):
        if isinstance(statement, ast.Return):
            return body[: index + 1] if statement.value is not None else body[:index]
    return body


def is_empty(body: Iterable[ast.stmt]) -> bool:
    """Return whether statements do nothing: pass, constants, assertions that cannot fail."""
    for statement in body:
        match statement:
            case ast.Pass() | ast.Return(value=None) | ast.Return(value=ast.Constant()):
                continue
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Assert(test=test) if _cannot_fail(test):
                continue
        return False
    return True


def _cannot_fail(test: ast.expr) -> bool:
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return any(_cannot_fail(value) for value in test.values)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        left, right = test.left, test.comparators[0]
        return type(left) is type(right) and ast.dump(left) == ast.dump(right)
    return False


def _tolerances(call: ast.Call, dotted: str) -> Iterator[tuple[str, float]]:
    """Yield the tolerances that a call names, or else its default."""
    word = dotted.rpartition(".")[2]
    named = [(keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg in _LOOSER | _STRICTER]
    placed = [(name, call.args[at]) for at, name in _POSITIONS.get(word, ()) if at < len(call.args)]
    for name, node in (*named, *placed):
        value = number(node)
        if name is not None and value is not None:
            yield name, value
    default = _DEFAULTS.get(dotted) or _DEFAULTS.get(word)
    if default is not None and not named and not placed:
        yield default


def _extremes(pairs: Iterable[tuple[str, float]], *, largest: bool) -> dict[str, float]:
    out: dict[str, float] = {}
    for name, value in pairs:
        kept = out.get(name, value)
        out[name] = max(kept, value) if largest else min(kept, value)
    return out


def number(node: ast.expr) -> float | None:
    """Return a number written as a literal, a negative literal or a power such as `10**-3`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        try:
            return float(node.value)
        except OverflowError:  # an integer of more than 308 digits
            return None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, exponent = number(node.left), number(node.right)
        if base == 10 and exponent is not None and abs(exponent) <= _MAX_EXPONENT:
            return float(10**exponent)
    return None


def variants(function: Function, names: Names) -> int | None:
    """Return the number of literal parameter sets of a test, `None` if any of them is not a literal list."""
    total = 0
    for decorator in function.decorator_list:
        if not isinstance(decorator, ast.Call) or not names.dotted(decorator.func).endswith("parametrize"):
            continue
        sets = decorator.args[1] if len(decorator.args) > 1 else None
        if not isinstance(sets, ast.List | ast.Tuple | ast.Set):
            return None
        total += len(sets.elts)
    return total


def python_suite(source: str) -> Suite:
    """Return the tests of a Python source, by its syntax tree, or by patterns if it does not parse."""
    try:
        return _Collector(parse_python(source)).suite()
    # Python's parser raises all of these for broken or hostile source; an agent may write either.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # By patterns: each test reaches from its `def` to the next one.
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
    """Collects tests from module and class bodies as a test runner does."""

    def __init__(self, module: ast.Module) -> None:
        self._module = module
        self._names = names_of(module)
        functions = [node for node in statements(module) if isinstance(node, Function)]
        self._skipping = skipping_helpers(functions, self._names)
        self._cases: dict[tuple[str, str], Case] = {}

    def suite(self) -> Suite:
        self._collect(self._module.body, "", ())
        return Suite(cases=tuple(self._cases.values()), marks=self._marks_of_all(self._module.body))

    def _collect(self, body: Iterable[ast.stmt], scope: str, marks: tuple[str, ...]) -> None:
        for statement in body:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef() if statement.name.startswith("test"):
                    # A later test of the same name replaces the earlier one, as it does for the runner.
                    self._cases[scope, statement.name] = self._read_case(statement, scope, marks)
                case ast.ClassDef() if _is_collected(statement):
                    own = tuple(mark for d in statement.decorator_list for mark in marks_in(d, self._names))
                    inner = (*marks, *own, *self._marks_of_all(statement.body))
                    self._collect(statement.body, f"{scope}{statement.name}.", inner)
                case ast.If(test=ast.Constant(value=value)):
                    self._collect(statement.body if value else statement.orelse, scope, marks)
                case ast.If():
                    # The condition's value is unknown; what counts is whether the condition is new.
                    condition = f"if {ast.unparse(statement.test)}"
                    self._collect(statement.body, scope, (*marks, condition))
                    self._collect(statement.orelse, scope, (*marks, f"not {condition}"))
                case ast.Try():
                    handled = [line for handler in statement.handlers for line in handler.body]
                    lines = [*statement.body, *handled, *statement.orelse, *statement.finalbody]
                    self._collect(lines, scope, marks)
                case ast.With():
                    self._collect(statement.body, scope, marks)

    def _read_case(self, node: Function, scope: str, marks: tuple[str, ...]) -> Case:
        """Return a test with its assertions, its tolerances and the marks that keep it from running."""
        body = live_body(node)
        nodes = walk(*body)
        calls = [(each, self._names.dotted(each.func)) for each in nodes if isinstance(each, ast.Call)]
        words = [dotted.rpartition(".")[2] for _, dotted in calls]
        plain = sum(isinstance(each, ast.Assert) and not _cannot_fail(each.test) for each in nodes)
        asserting = sum(word.startswith(_EXPECTING) or word in {"raises", "warns"} for word in words)
        given = [pair for call, dotted in calls for pair in _tolerances(call, dotted)]
        decorated = [mark for d in node.decorator_list for mark in marks_in(d, self._names)]
        helpers = sorted(self._skipping.intersection(used_names(node, nodes)))
        through = [f"through {helper}" for helper in helpers]
        empty = [EMPTY_BODY] if is_empty(body) else []
        return Case(
            name=node.name,
            scope=scope,
            line=node.lineno,
            marks=(*marks, *decorated, *skips_among(nodes, self._names), *through, *empty),
            assertions=plain + asserting,
            approximations=sum(word in _DEFAULTS for word in words),
            variants=variants(node, self._names),
            looser=_extremes(((k, v) for k, v in given if k in _LOOSER), largest=True),
            stricter=_extremes(((k, v) for k, v in given if k in _STRICTER), largest=False),
        )

    def _marks_of_all(self, body: Iterable[ast.stmt]) -> tuple[str, ...]:
        """Return the marks that skip every test of a module or class."""
        return tuple(mark for statement in body for mark in self._marks_of_statement(statement))

    def _marks_of_statement(self, statement: ast.stmt) -> tuple[str, ...]:
        if isinstance(statement, Function):
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
        # A skip at import time skips the whole module; a skip inside a function does not.
        nodes = walk(statement)
        inside = Counter(m for f in nodes if isinstance(f, Function) for m in skips_among(walk(f), self._names))
        return tuple((Counter(skips_among(nodes, self._names)) - inside).elements())


def _is_collected(node: ast.ClassDef) -> bool:
    """Return whether a runner may collect a class: it has bases, or a test name and no `__init__`."""
    if node.bases:
        return True
    methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    return node.name.startswith("Test") and "__init__" not in methods
