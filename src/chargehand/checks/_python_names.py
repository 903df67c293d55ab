"""Names in Python source resolved through the file's own imports, and what skips a test by them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_SKIP_CALLS = frozenset({"pytest.skip", "pytest.xfail", "pytest.importorskip", "pytest.exit"})
_SKIP_ERRORS = ("SkipTest", "pytest.skip.Exception", "Skipped")
_NO_CHILDREN = frozenset({"ctx", "op"})
_BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
_SETUP_NAMES = frozenset(
    {"setUp", "setUpClass", "setUpModule", "asyncSetUp"}
    | {f"{kind}_{place}" for kind in ("setup",) for place in ("method", "class", "module", "function")}
)


def walk(*roots: ast.AST) -> list[ast.AST]:
    """Return all nodes below the roots, parents first; some times faster than `ast.walk`."""
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


@dataclass(frozen=True, slots=True)
class Names:
    """What a file's names stand for: `imports` by local name, `aliases` for marks kept in variables."""

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
            found.append(_call_text(sub, names))
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


def _call_text(call: ast.Call, names: Names) -> str:
    """Return the mark with its conditions: another reason for the same skip is no new skip."""
    words = [names.dotted(call.func)]
    words += [ast.unparse(arg) for arg in call.args if not _is_text(arg)]
    words += [f"{k.arg}={ast.unparse(k.value)}" for k in call.keywords if k.arg not in {"reason", "msg"}]
    return " ".join(words)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def skips_among(nodes: Iterable[ast.AST], names: Names) -> tuple[str, ...]:
    """Return the calls and raises among the nodes that skip whatever runs them."""
    return tuple(text for node in nodes if (text := _skip(node, names)))


def _skip(node: ast.AST, names: Names) -> str:
    if isinstance(node, ast.Call):
        dotted = names.dotted(node.func)
        if dotted in _SKIP_CALLS or dotted.endswith(".skipTest"):
            return dotted
    if isinstance(node, ast.Raise) and node.exc is not None:
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if names.dotted(raised).endswith(_SKIP_ERRORS):
            return f"raise {names.dotted(raised)}"
    return ""


Function = ast.FunctionDef | ast.AsyncFunctionDef


def runs_before_tests(function: Function) -> bool:
    """Whether a function runs before every test around it: set-up methods and autouse fixtures."""
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
