"""The packages that a Python project declares for its tests: extras, groups, environments of tox, nox, and hatch.

`setup.py` and `noxfile.py` are programs. They are parsed, never run, and only their literals count.
"""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from chargehand.checks.stacks import Stack, table
from chargehand.core.text import late_pattern, parse_python

TEST_NAMES = ("test", "tests", "testing", "dev")
"""Common names of an extra or group with packages for tests, the narrowest first."""
_ENVIRONMENTS = ("hatch-test", "test", "tests", "testing", "default")
_SESSION = late_pattern(r"(?:unit_?)?(?:py)?tests?(?:_\w+)?")
_REGISTRY_KEYS = frozenset({"version", "extras", "python", "markers"})
_REQUIREMENT = late_pattern(r"[A-Za-z0-9][\w.-]*\s*(?:\[[\w\s.,-]*\])?\s*(?:[<>=!~][^;{}@]*)?(?:;[^{}]*)?")
_OWN_EXTRAS = late_pattern(r"\.\[([\w.,\s-]+)\]")
_FACTOR = late_pattern(r"[!\w.,{}-]+:\s+")
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError, TypeError)


class Wanted(Struct, frozen=True, kw_only=True):
    """Packages for tests: extras of the project, requirements files, and requirements."""

    extras: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.extras or self.files or self.packages)


def find_extras(stack: Stack) -> frozenset[str]:
    """Return the names of the extras that a project declares, for any build backend."""
    pyproject, cfg = stack.toml("pyproject.toml"), _parse_ini(stack.text("setup.cfg"))
    declared = (
        table(pyproject, "project", "optional-dependencies"),
        table(pyproject, "tool", "poetry", "extras"),
        table(pyproject, "tool", "flit", "metadata", "requires-extra"),
        table(pyproject, "tool", "setuptools", "dynamic", "optional-dependencies"),
        cfg.get("options.extras_require", {}),
        cfg.get("extras", {}),  # of pbr
        table(_read_setup_call(stack.text("setup.py")), "extras_require"),
    )
    return frozenset(name.partition(":")[0].strip() for each in declared for name in each) - {""}


def find_test_packages(stack: Stack) -> tuple[str, ...]:
    """Return the requirements for tests in tables of tools that pip has no option for."""
    pyproject = stack.toml("pyproject.toml")
    tools = table(pyproject, "tool")
    poetry, pdm = table(tools, "poetry"), table(tools, "pdm", "dev-dependencies")
    groups = [
        table(poetry, "dev-dependencies"),
        *(table(poetry, "group", name, "dependencies") for name in TEST_NAMES),
    ]
    # Poetry's own groups: the names of packages from a registry only.
    found = [
        name
        for each in groups
        for name, wanted in each.items()
        if name != "python" and (isinstance(wanted, str) or _REGISTRY_KEYS.issuperset(wanted))
    ]
    environments = [table(tools, "hatch", "envs", name) for name in _ENVIRONMENTS]
    lists = (
        *(pdm.get(name) for name in TEST_NAMES),
        table(tools, "uv").get("dev-dependencies"),
        *(each.get(key) for each in environments for key in ("dependencies", "extra-dependencies")),
        _parse_ini(stack.text("setup.cfg")).get("options", {}).get("tests_require", "").splitlines(),
        _read_setup_call(stack.text("setup.py")).get("tests_require"),
    )
    return tuple(dict.fromkeys((*found, *_select_requirements(lists))))


def find_test_environment(stack: Stack) -> Wanted:
    """Return the packages of the first tox or nox test environment that installs any."""
    return next(filter(None, (*_read_tox(stack), _read_nox(stack.text("noxfile.py")))), Wanted())


def _select_requirements(lists: Iterable[object]) -> Iterator[str]:
    for each in lists:
        for item in each if isinstance(each, list | tuple) else ():
            if isinstance(item, str) and _REQUIREMENT.fullmatch(item.strip()):
                yield item.strip()


# --- tox


def _read_tox(stack: Stack) -> Iterator[Wanted]:
    pyproject = stack.toml("pyproject.toml")
    legacy = table(pyproject, "tool", "tox").get("legacy_tox_ini")
    for text in (stack.text("tox.ini"), stack.text("setup.cfg"), legacy if isinstance(legacy, str) else ""):
        base = _parse_ini(text).get("testenv", {})
        extras = re.split(r"[\s,]+", base.get("extras", ""))
        yield _sort_requirements(base.get("deps", "").splitlines(), stack, extras=extras)
    for document in (stack.toml("tox.toml"), table(pyproject, "tool", "tox")):
        base = table(document, "env_run_base")
        deps, listed = base.get("deps"), base.get("extras")
        yield _sort_requirements(deps if isinstance(deps, list) else (), stack, extras=listed or ())


def _sort_requirements(lines: Iterable[object], stack: Stack, *, extras: object) -> Wanted:
    """Sort tox's dependencies; those of one factor (`py39: …`) or with a substitution do not count."""
    files, packages = list[str](), list[str]()
    for line in lines:
        text = re.sub(r"(?:^|\s)#.*", "", str(line)).replace("{toxinidir}/", "").replace("{tox_root}/", "").strip()
        if text.startswith("-r"):
            path = text.removeprefix("-r").strip().removeprefix("./")
            files += [path] if stack.has(path) else []
        elif not _FACTOR.match(text) and _REQUIREMENT.fullmatch(text):
            packages.append(text)
    names = [each for each in extras if isinstance(each, str)] if isinstance(extras, list | tuple) else []
    return Wanted(
        extras=tuple(name for name in names if re.fullmatch(r"[\w.-]+", name)),
        files=tuple(files),
        packages=tuple(packages),
    )


# --- nox


def _read_nox(text: str) -> Wanted:
    """Return the packages that nox's first test session installs by literals."""
    try:
        tree = parse_python(text)
    except _UNREADABLE:
        return Wanted()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list and _SESSION.fullmatch(node.name):
            words = [
                word.value
                for call in ast.walk(node)
                if isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "install"
                for word in call.args
                if isinstance(word, ast.Constant) and isinstance(word.value, str)
            ]
            if wanted := _sort_words(words):
                return wanted
    return Wanted()


def _sort_words(words: Iterable[str]) -> Wanted:
    extras, files, packages = list[str](), list[str](), list[str]()
    before = ""
    for word in words:
        if before in ("-r", "--requirement"):
            files.append(word)
        elif own := _OWN_EXTRAS.fullmatch(word):
            extras += [name.strip() for name in own[1].split(",")]
        elif not before.startswith("-") and _REQUIREMENT.fullmatch(word):
            packages.append(word)
        before = "" if word == "-e" else word
    return Wanted(extras=tuple(extras), files=tuple(files), packages=tuple(packages))


# --- setup.cfg, setup.py


def _parse_ini(text: str) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    return {name: dict(parser.items(name)) for name in parser.sections()}


def _read_setup_call(text: str) -> Mapping[str, Any]:
    """Return the arguments of `setup(…)` that are literals, or names of literals."""
    try:
        tree = parse_python(text)
        names = _Literals().collect(tree.body)
    except _UNREADABLE:
        return {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setup", "setuptools.setup", "core.setup"):
            found = dict[str, Any]()
            for keyword in node.keywords:
                value = names.evaluate(keyword.value)
                # A keyword without a name is `**arguments`.
                found |= {keyword.arg: value} if keyword.arg else value if isinstance(value, dict) else {}
            return found
    return {}


class _Literals:
    """Values of a program's names. A non-literal value is `None`, and omitted from a list."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def collect(self, body: Iterable[ast.stmt]) -> _Literals:
        """Note the values that the statements of a module assign."""
        for statement in body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._values[name] = self.evaluate(value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._values[name] = self.evaluate(value)
                case ast.AugAssign(target=ast.Name(id=name), value=value, op=ast.Add()):
                    self._values[name] = _join(self._values.get(name), self.evaluate(value))
                case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=key)], value=value):
                    kept, index = self._values.get(name), self.evaluate(key)
                    if isinstance(kept, dict) and isinstance(index, str):
                        kept[index] = self.evaluate(value)
                case ast.If() | ast.Try() | ast.With():
                    self.collect(statement.body)
        return self

    def evaluate(self, node: ast.expr) -> Any:
        """Return the value of an expression."""
        match node:
            case ast.Constant(value=str() as text):
                return text
            case ast.Name(id=name):
                return self._values.get(name)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return self._evaluate_items(items)
            case ast.Dict(keys=keys, values=values):
                found = dict[str, Any]()
                for key, value in zip(keys, values, strict=True):
                    word, item = self.evaluate(key) if key else None, self.evaluate(value)
                    found |= {word: item} if isinstance(word, str) else item if isinstance(item, dict) else {}
                return found
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
                return {each.arg: self.evaluate(each.value) for each in keywords if each.arg}
            case ast.BinOp(left=left, right=right, op=ast.Add()):
                return _join(self.evaluate(left), self.evaluate(right))
            case ast.Subscript(value=value, slice=key):
                kept, index = self.evaluate(value), self.evaluate(key)
                return kept.get(index) if isinstance(kept, dict) and isinstance(index, str) else None
        return None

    def _evaluate_items(self, items: Iterable[ast.expr]) -> list[Any]:
        found = list[Any]()
        for item in items:
            if isinstance(item, ast.Starred):
                inner = self.evaluate(item.value)
                found += inner if isinstance(inner, list) else []
            elif (value := self.evaluate(item)) is not None:
                found.append(value)
        return found


def _join(left: Any, right: Any) -> Any:
    if isinstance(left, list) or isinstance(right, list):
        return [*(left if isinstance(left, list) else []), *(right if isinstance(right, list) else [])]
    return left + right if isinstance(left, str) and isinstance(right, str) else None
