"""What one Python test really checks: assertions, tolerances, parameter sets."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from chargehand.checks._python_names import Function, Names

# Keyword names by which numpy, math, pytest, unittest and their kin take a tolerance.
_LOOSER = frozenset({"rel", "abs", "rel_tol", "abs_tol", "rtol", "atol", "delta", "tol", "tolerance"})
_STRICTER = frozenset({"places", "decimal", "significant", "nulp"})
# What holds where a call names no tolerance: to name a larger one weakens it.
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
_APPROXIMATE = frozenset(_DEFAULTS)
_POSITIONS: dict[str, tuple[tuple[int, str], ...]] = {
    "approx": ((1, "rel"), (2, "abs")),
    "assertAlmostEqual": ((2, "places"),),
    **dict.fromkeys(("isclose", "allclose", "assert_allclose"), ((2, "rtol"), (3, "atol"))),
    **dict.fromkeys(("assert_almost_equal", "assert_array_almost_equal"), ((2, "decimal"),)),
    "assert_approx_equal": ((2, "significant"),),
}
_EXPECTING = ("assert", "expect", "verify", "check")
_MAX_EXPONENT = 300


@dataclass(frozen=True, slots=True)
class Measures:
    """Counts and tolerances of one test function."""

    assertions: int
    approximations: int
    looser: dict[str, float]
    stricter: dict[str, float]


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
    """Whether statements do nothing: pass, constants, assertions that cannot fail."""
    return all(_does_nothing(statement) for statement in body)


def _does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assert):
        return _cannot_fail(statement.test)
    if isinstance(statement, ast.Return | ast.Expr):
        return statement.value is None or isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass)


def _cannot_fail(test: ast.expr) -> bool:
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return any(_cannot_fail(value) for value in test.values)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        left, right = test.left, test.comparators[0]
        return type(left) is type(right) and ast.dump(left) == ast.dump(right)
    return False


def measure(nodes: Sequence[ast.AST], names: Names) -> Measures:
    """Count what the nodes of a test's live body assert and collect the tolerances they grant."""
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    dotted = [names.dotted(call.func) for call in calls]
    words = [name.rpartition(".")[2] for name in dotted]
    plain = sum(isinstance(node, ast.Assert) and not _cannot_fail(node.test) for node in nodes)
    asserting = sum(word.startswith(_EXPECTING) or word in {"raises", "warns"} for word in words)
    given = [pair for call, name in zip(calls, dotted, strict=True) for pair in _tolerances(call, name)]
    return Measures(
        assertions=plain + asserting,
        approximations=sum(word in _APPROXIMATE for word in words),
        looser=_extremes(((k, v) for k, v in given if k in _LOOSER), largest=True),
        stricter=_extremes(((k, v) for k, v in given if k in _STRICTER), largest=False),
    )


def _tolerances(call: ast.Call, dotted: str) -> Iterator[tuple[str, float]]:
    """Yield the tolerances that a call names, or the one that holds where it names none."""
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
        return _as_float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, exponent = number(node.left), number(node.right)
        if base == 10 and exponent is not None and abs(exponent) <= _MAX_EXPONENT:
            return float(10**exponent)
    return None


def _as_float(value: float) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None


def variants(function: Function, names: Names) -> int | None:
    """Return how many literal parameter sets a test has, `None` where one is not a literal list."""
    total = 0
    for decorator in function.decorator_list:
        if not isinstance(decorator, ast.Call) or not names.dotted(decorator.func).endswith("parametrize"):
            continue
        sets = decorator.args[1] if len(decorator.args) > 1 else None
        if not isinstance(sets, ast.List | ast.Tuple | ast.Set):
            return None
        total += len(sets.elts)
    return total
