"""Check whether additions to a test file leave its existing tests unaffected.

An added line can end an existing test early, skip it by a condition, or redefine a name that it uses. An
allow-list has the additions that cannot: tests, helpers and data with new names, assertions, imports. Any other
addition counts as harmful, including tricks that no rule foresees.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import takewhile

from chargehand.checks.paths import is_source, language_of
from chargehand.checks.suites.faults import does_something, words_of
from chargehand.checks.suites.other import blank_comments
from chargehand.core.text import late_pattern, parse_python

# Beyond this many lines that differ, an alignment takes too long.
_MOST_LINES = 4_000
_BLOCKS = frozenset({"body", "orelse", "finalbody", "handlers", "cases"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_EXPECTING = ("assert", "expect", "verify", "check")
_HOLDING = frozenset({"raises", "warns", "subTest", "deprecated_call"})
# Names with which runners find or change tests, in addition to those that a test case inherits.
_KNOWN_TO_RUNNERS = frozenset({"load_tests", "pytestmark", "pytest_plugins", "collect_ignore", "__test__"}) | {
    f"{when}_{place}" for when in ("setup", "teardown") for place in ("module", "class", "method", "function")
}
# Names through which a line can change objects that it does not name.
REACHING_NAMES = frozenset({
    "setattr", "delattr", "exec", "eval", "globals", "locals", "vars", "patch", "monkeypatch", "sys", "os", "gc",
    "builtins", "importlib", "__import__", "skip", "skipTest", "exit", "quit", "_exit", "atexit", "autouse",
    "__dict__", "__class__", "__code__", "__defaults__", "inspect", "ctypes", "signal", "threading",
})  # fmt: skip
# The reaching names whose effect remains after a new test has ended.
_LASTING = frozenset({
    "setattr", "delattr", "exec", "eval", "builtins", "_exit", "atexit", "autouse", "__dict__", "__code__",
    "__defaults__", "ctypes", "globals", "vars",
})  # fmt: skip


def leaves_tests_alone(path: str, old: str, new: str) -> bool:
    """Return whether the existing tests of a file keep their meaning, provided that `new` only adds to `old`.

    Return `False` if this cannot be determined. Data files always pass: more data is more to compare with.
    """
    if old == new or not is_source(path):
        return True
    language = language_of(path)
    if language != "python":
        lines, now = ([line.strip() for line in blank_comments(language, text).split("\n")] for text in (old, new))
        added = _align(lines, now)
        if added is None:
            return False
        gone = Counter(line for line in lines if _IMPORT.search(line))
        gone.subtract(now)
        known = {_without_strings(line): _strings(line) for line, count in gone.items() if count > 0}
        words = words_of("\n".join(line for line in lines if not _IMPORT.search(line)))
        return all(_is_harmless_group(group, words, known) for group in added)
    try:
        before, after = parse_python(old), parse_python(new)
        return _Python(before, words_of(old)).extends(before.body, after.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def outlasts_its_tests(path: str, text: str) -> bool:
    """Return whether a test file does something that can weaken other tests that run after it."""
    if language_of(path) == "python":
        try:
            return _python_outlasts(path, parse_python(text))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return True
    if not is_source(path):
        return False
    plain = _TEXTS.sub(lambda found: found[0] if "${" in found[0] else '""' + "\n" * found[0].count("\n"), text)
    lines = [line.strip() for line in blank_comments(language_of(path), plain).split("\n")]
    imported = words_of("\n".join(_without_strings(line) for line in lines if _IMPORT.search(line)))
    language = language_of(path)
    for line in map(_without_strings, lines):
        if language == "go":
            found = _DEFINITION.match(line)
            if found is not None and found["name"] in ("init", "TestMain") and not found["receiver"]:
                return True
        elif language == "javascript":
            roots = (each["root"] for each in _MEMBER.finditer(line))
            if _ENDS.search(line) or any(root in imported or root in _EVERYWHERE for root in roots):
                return True
        elif language == "ruby" and _REOPENED.match(line):
            return True
    return False


def _python_outlasts(path: str, module: ast.Module) -> bool:
    imported = {bound for bound, _ in _bindings(ast.walk(module))} - {"os"}
    for node in ast.walk(module):
        stored = isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
        if stored and _root(node) in imported:
            return True
        if isinstance(node, ast.Call):
            word = _last_word(node.func)
            if word in _LASTING and not (isinstance(node.func, ast.Attribute) and word.endswith("attr")):
                return True
            # `patch(...).start()` lasts until `stop()` is called.
            started = node.func.value if isinstance(node.func, ast.Attribute) and word == "start" else None
            if isinstance(started, ast.Call) and _names(started.func) & {"patch"}:
                return True
        if isinstance(node, ast.Attribute) and node.attr in _LASTING and node.attr.startswith("__"):
            return True
    # In a package, `load_tests` selects the tests of everything below it.
    return path.endswith("/__init__.py") and any(getattr(each, "name", "") == "load_tests" for each in module.body)


@cache
def _names_of_test_cases() -> frozenset[str]:
    # Imported here: with argparse, which it brings, it takes longer to load than all of this package.
    import unittest

    return frozenset(dir(unittest.TestCase)) | {"asyncSetUp", "asyncTearDown"}


class _Python:
    """Checks that a newer version of a module extends it without affecting its tests."""

    def __init__(self, module: ast.Module, words: frozenset[str]) -> None:
        self._words = words
        bound = list(dict.fromkeys(_bindings(ast.walk(module))))
        self._imports = dict(bound)
        self._used = _bare_names(module) | self._imports.keys()
        # Names that are imported from several places, for example depending on the version of Python.
        self._ambiguous = {name for name, count in Counter(name for name, _ in bound).items() if count > 1}

    def extends(self, old: Sequence[ast.stmt], new: Sequence[ast.stmt], *, owner: ast.AST | None = None) -> bool:
        """Return whether `new` contains the `old` statements in order, and the added ones do not affect them.

        The rules for additions to a function or another block (`owner`) differ from those for a module or class.
        """
        wanted, at = [each for each in old if not _is_passive(each)], 0
        passive = _Ordered(each for each in old if _is_passive(each))
        inside = owner is not None and not isinstance(owner, ast.ClassDef)
        ends = isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef)
        # A new test may have the name of a test elsewhere, but not of an inherited one.
        bases = owner.bases if isinstance(owner, ast.ClassDef) else []
        inherits = any(not _last_word(base).endswith("TestCase") for base in bases)
        tests = self._words if inherits else {each.name for each in old if isinstance(each, _DEFINITIONS)}
        for statement in new:
            if _is_passive(statement):
                if passive.pass_over(statement):
                    continue
                # A name that the file already uses must keep its meaning.
                imported = _bindings([statement])
                if any(to == "*" or to in self._ambiguous or self._differs(to, of) for to, of in imported):
                    return False
            elif at < len(wanted) and self._same(wanted[at], statement):
                at += 1
            elif isinstance(statement, _DEFINITIONS) and statement.name.startswith("test"):
                if statement.name in tests or not self._lasts_not(statement):
                    return False
            elif not self._is_harmless(statement, inside=inside, last=ends and at == len(wanted)):
                return False
        gone = {to for to, _ in _bindings(passive.left)}
        return at == len(wanted) and self._ambiguous.isdisjoint(gone)

    def _differs(self, name: str, place: str) -> bool:
        return name in self._used and self._imports.get(name) != place

    def _same(self, old: ast.AST, new: ast.AST) -> bool:
        """Return whether a node is unchanged, apart from additions to blocks of statements and lists of data."""
        if type(old) is not type(new):
            return False
        if ast.dump(old) == ast.dump(new):
            return True
        # Additions can weaken an assertion: `x in (1, 2)` accepts more than `x in (1,)`.
        if isinstance(old, ast.Assert) or _is_assertion(old):
            return False
        return all(
            self._same_part(old, name, getattr(old, name, None), getattr(new, name, None)) for name in old._fields
        )

    def _same_part(self, owner: ast.AST, name: str, old: object, new: object) -> bool:
        if isinstance(old, list) and isinstance(new, list):
            if name in _BLOCKS and all(isinstance(each, ast.stmt) for each in (*old, *new)):
                return self.extends(old, new, owner=owner)
            data = isinstance(owner, ast.List | ast.Tuple | ast.Set)
            at = 0
            for each in new:
                wanted = old[at] if at < len(old) else None
                if isinstance(each, ast.AST) and isinstance(wanted, ast.AST):
                    same = self._same(wanted, each)
                else:
                    same = at < len(old) and each == wanted
                if same:
                    at += 1
                elif not data or not isinstance(each, ast.AST) or not REACHING_NAMES.isdisjoint(_names(each)):
                    return False
                else:
                    # Added data may call functions that the file already names, such as `pytest.param`.
                    calls = (call.func for call in ast.walk(each) if isinstance(call, ast.Call))
                    if not all(_last_word(call) in self._words for call in calls):
                        return False
            return at == len(old)
        if isinstance(old, ast.AST) and isinstance(new, ast.AST):
            return self._same(old, new)
        return type(old) is type(new) and old == new

    def _is_harmless(self, node: ast.stmt, *, inside: bool, last: bool) -> bool:
        if inside:
            return REACHING_NAMES.isdisjoint(_names(node)) and self._is_harmless_inside(node, last=last)
        if not self._lasts_not(node):
            return False
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names = [node.name]
            case ast.Assign() | ast.AnnAssign():
                targets = _targets(node)
                if not all(isinstance(target, ast.Name) for target in targets):
                    return False
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case _:
                return False
        taken = self._words | _names_of_test_cases() | _KNOWN_TO_RUNNERS
        return all(name not in taken and not name.startswith(("pytest_", "__")) for name in names)

    def _lasts_not(self, node: ast.stmt) -> bool:
        """Return whether a new definition changes nothing that other tests use."""
        roots = (
            _root(each)
            for each in ast.walk(node)
            if isinstance(each, ast.Attribute | ast.Subscript) and isinstance(each.ctx, ast.Store | ast.Del)
        )
        taken = self._words - {"self", "cls"}
        return _LASTING.isdisjoint(_names(node)) and all(root not in taken for root in roots)

    def _is_harmless_inside(self, node: ast.stmt, *, last: bool) -> bool:
        match node:
            case ast.Assert():
                return True
            case ast.Expr(value=ast.Call() as call):
                return last or _is_assertion(call)
            case ast.Assign() | ast.AnnAssign():
                return all(
                    isinstance(target, ast.Name) and (last or target.id not in self._words)
                    for target in _targets(node)
                )
            case ast.With() | ast.AsyncWith() | ast.For() | ast.AsyncFor():
                held = node.items if isinstance(node, ast.With | ast.AsyncWith) else ()
                known = all(_is_assertion(each.context_expr) for each in held)
                return known and all(self._is_harmless_inside(each, last=True) for each in node.body)
        return False


class _Ordered:
    """Matches statements in order; those without a match stay in `left`."""

    def __init__(self, statements: Iterable[ast.stmt]) -> None:
        self._statements = list(statements)
        self._at = 0
        self.left: list[ast.stmt] = list(self._statements)

    def pass_over(self, statement: ast.stmt) -> bool:
        """Return whether an equal statement follows, and move behind it."""
        text = ast.dump(statement)
        for at in range(self._at, len(self._statements)):
            if ast.dump(self._statements[at]) == text:
                self._at = at + 1
                self.left.remove(self._statements[at])
                return True
        return False


def _is_passive(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Pass):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _bindings(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield the names that imports bind, each with the full name of the imported object."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            place = "" if isinstance(node, ast.Import) else f"{'.' * node.level}{node.module or ''}:"
            for alias in node.names:
                # `import a.b` binds `a`, which is the same object for every submodule.
                bound = alias.asname or alias.name.partition(".")[0]
                yield bound, f"{place}{alias.name if alias.asname or place else bound}"


def _bare_names(module: ast.Module) -> frozenset[str]:
    """Return the names that another import could redefine, without attributes and module paths."""
    found = set[str]()
    for node in ast.walk(module):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Constant(value=str() as text):  # a fixture may be named in a string
                found |= words_of(text)
    return frozenset(found)


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _names(node: ast.AST) -> frozenset[str]:
    found = set[str]()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            found.add(each.id)
        elif isinstance(each, ast.Attribute):
            found.add(each.attr)
        elif isinstance(each, ast.arg | ast.keyword):
            found.add(each.arg or "")
    return frozenset(found)


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _last_word(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_assertion(node: ast.AST) -> bool:
    word = _last_word(node.func) if isinstance(node, ast.Call) else ""
    return word.startswith(_EXPECTING) or word in _HOLDING


# --- other languages, by lines

# First lines of tests and definitions. A whole block under a new name is not part of existing tests.
_TEST = late_pattern(
    r"^(?:\w+\.)?(?:describe|context|suite|it|test|specify|Run)(?:\.each\b.*)?\s*\(\s*(?:\"\"|\[)"
)
_DEFINITION = late_pattern(
    r"^(?:(?:export|default|async|pub|public|private|protected|static|final|const|abstract|unsafe|internal|data)\s+)*"
    r"(?:func|fn|function|fun|void|class|struct|enum|mod|interface|trait|type)\s+"
    r"(?:\((?:\w+\s+)?\*?(?P<receiver>\w+)[^()]*\)\s*)?(?P<name>\w+)"
)
_MARK = late_pattern(r"#\[(?!\s*cfg)|@\w")
_RUN_ALWAYS = late_pattern(
    r"\b(?:init|main|TestMain|\w*(?:[bB]efore|[aA]fter|[sS]et_?[uU]p|[tT]ear_?[dD]own)\w*)\b"
)
# Effects of a new test that outlast it: module mocks, exit of the process, changed members of shared objects.
_OUTLASTS = late_pattern(
    r"\b(?:vi|jest|vitest|mock)\s*\.\s*(?:mock|doMock|setMock|stubGlobal|module)\b|\b(?:exit|Exit|_exit|abort|halt)\s*\("
    r"|\bprototype\b|\bglobal(?:This)?\b|\bReflect\b"
)
_ENDS = late_pattern(r"\bprocess\s*\.\s*(?:exit|abort|kill|reallyExit)\b|\bdefineProperty\b|\bReflect\b")
_EVERYWHERE = frozenset({
    "global", "globalThis", "Object", "Array", "Function", "String", "Number", "Promise", "Error", "Math", "JSON",
})  # fmt: skip
_REOPENED = late_pattern(r"(?:class|module)\s+(?:Minitest|MiniTest|RSpec|Test|Kernel|Object|BasicObject|Module)\b")
_MEMBER = late_pattern(r"(?<![\w.])(?P<root>\w+)(?:\.\w+|\[[^\]]*\])+\s*[-+*/%&|^]?=(?![=>])")
_FUNCTION = late_pattern(r"\b(?:func|fn|function)\b.*")
_ARROW = late_pattern(r"(\([^()]*\)|\w+)\s*=>")
_SNAPSHOT = late_pattern(r"exports\[(?:\"\"|``)\] = ")
# Multi-line strings are data, apart from expressions interpolated into them.
_TEXTS = late_pattern(r"\"\"\".*?\"\"\"|`(?:[^`\\]|\\.)*`|\br(?P<marks>#+)\".*?\"(?P=marks)", re.DOTALL)
_ASSERTION = late_pattern(
    r"\bassert|\bexpect\b|\bshould\b|\brequire\.[A-Z]|\bt\.(?:Error|Fatal|Fail|equal|same|is|ok|match|throws)\w*\b"
)
# Words that may end, skip or replace something, or run unknown code.
_ACTS = late_pattern(
    r"\b(?:return|break|continue|goto|throw|raise|yield|await|if|else|elif|unless|for|while|loop|do|switch|case|match"
    r"|select|try|catch|except|finally|rescue|ensure|defer|recover|panic|skip\w*|Skip\w*|todo|only|ignore|exit\w*|Exit\w*"
    r"|process|os|System|Runtime|abort|mock\w*|stub\w*|spy\w*|eval|Reflect|prototype|global\w*|define\w*|cfg\w*|macro_rules"
    r"|init|TestMain|\w*(?:[bB]efore|[aA]fter|[sS]et_?[uU]p|[tT]ear_?[dD]own)\w*)\b|[@#]\s*\[|#!|^\s*@|^\s*#"
)
_DECLARED = late_pattern(
    r"\b(?:const|let|var|val|auto|final|static|type|struct|enum|class|interface|trait|func|function|fun|fn|def|mod|module"
    r"|void|int|bool|String|long|double|float|char)\s+(?:\([^()]*\)\s*)?(?:mut\s+)?(?P<name>\w+)"
    r"|^\s*(?P<short>\w+(?:\s*,\s*\w+)*)\s*:="
)
_ASSIGNS = late_pattern(r"(?<![=!<>:+*/%&|^-])=(?![=>])|[-+*/%&|^]=|\+\+|--|<<=|>>=")
_IMPORT = late_pattern(
    r"^\s*(?:pub\s+)?(?:import|from|use|using|package|require)\b|^\s*#include|=\s*require\s*\(|^\s*\"[\w./-]+\"$"
)
_STRING = late_pattern(r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`")
_CALL = late_pattern(r"(?P<name>[\w.]+!?)\s*\(")


def _align(before: list[str], after: list[str]) -> list[list[str]] | None:
    """Return the groups of added lines, `None` if too many lines differ."""
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    if len(old) + len(new) > _MOST_LINES:
        return None
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    found = []
    for kind, _, _, first, last in matcher.get_opcodes():
        if kind in ("insert", "replace"):
            lines = new[first:last]
            # Of two equal closing lines a diff may report either as new: shift, so that a block ends with its own.
            while last < len(after) - start and lines[0] == after[start + last] and _depth(lines[:1]) < 0:
                lines, last = [*lines[1:], lines[0]], last + 1
            found.append(lines)
    return found


def _depth(lines: Iterable[str]) -> int:
    plain = [_without_strings(line) for line in lines]
    return sum(sum(map(line.count, "({[")) - sum(map(line.count, ")}]")) for line in plain)


def _is_harmless_group(lines: Sequence[str], words: frozenset[str], imports: dict[str, frozenset[str]]) -> bool:
    """Return whether all added lines are new tests and helpers, data, assertions or imports."""
    at = 0
    while at < len(lines):
        if _MARK.match(lines[at]):
            marks = list(takewhile(_MARK.match, lines[at:]))
            below = "".join(lines[at + len(marks) :][:1])
            # Marks above a new definition are part of it, except those that run it with other tests.
            if _begins_own(below, words) and not any(map(_RUN_ALWAYS.search, marks)):
                at += len(marks)
        if not _begins_own(lines[at], words):
            if not _is_harmless_line(lines[at], words, imports):
                return False
            at += 1
            continue
        # A definition ends at its last bracket.
        start, depth, opened, whole = at, 0, False, False
        while at < len(lines) and not whole and depth >= 0:
            plain = _without_strings(lines[at])
            opened = opened or "{" in plain
            depth += _depth([lines[at]])
            whole = not depth and (opened or plain.rstrip().endswith((";", ")")))
            at += 1
        # If the group ends first, the definition encloses existing lines.
        if not whole or not _is_own_block(lines[start:at], words):
            return False
    return True


def _begins_own(line: str, words: frozenset[str]) -> bool:
    plain = _without_strings(line)
    if _TEST.match(plain):
        return True
    found = _DEFINITION.match(plain)
    if found is None or _RUN_ALWAYS.fullmatch(found["name"]):
        return False
    # A method of a new type may have an existing name.
    return (found["receiver"] or found["name"]) not in words


def _is_own_block(lines: Sequence[str], words: frozenset[str]) -> bool:
    plain = [_without_strings(line) for line in lines]
    declared = {"self", "this"}
    for line in plain:
        for found in _DECLARED.finditer(line):
            declared |= words_of(found["name"] or found["short"])
        # Parameters are local too.
        declared |= words_of(" ".join((*_FUNCTION.findall(line), *_ARROW.findall(line))))
    foreign = words - declared
    members = (found["root"] for line in plain for found in _MEMBER.finditer(line))
    return foreign.isdisjoint(members) and not any(map(_OUTLASTS.search, plain))


def _is_harmless_line(line: str, words: frozenset[str], imports: dict[str, frozenset[str]]) -> bool:
    plain = _without_strings(line)
    if _SNAPSHOT.match(plain):  # keyed by the name of its test
        return True
    if _IMPORT.search(line):
        source = imports.get(plain)
        bound = words_of(re.split(r"::|\.", plain.rstrip(";"))[-1]) if "{" not in plain else words_of(plain)
        if source is None:
            return True if line.startswith('"') else words.isdisjoint(bound - words_of("import from as use"))
        return source == _strings(line)
    attribute = plain.startswith(("#[test]", "@Test", "@ParameterizedTest"))
    if not does_something(line) and not attribute and not re.match(r"\}.*\w|\{.*\w", plain):
        return not plain.startswith(("@", "#"))
    if attribute:
        return True
    if _ACTS.search(plain):
        return False
    declared = _DECLARED.search(plain)
    if declared is not None:
        names = words_of(declared["name"] or declared["short"])
        return words.isdisjoint(names)
    if _ASSERTION.search(plain):
        return not _ASSIGNS.search(plain)
    calls = [found["name"].rpartition(".")[2] for found in _CALL.finditer(plain)]
    return not _ASSIGNS.search(plain) and "=>" not in plain and all(name in words for name in calls)


def _without_strings(line: str) -> str:
    return _STRING.sub('""', line)


def _strings(line: str) -> frozenset[str]:
    return frozenset(_STRING.findall(line))
