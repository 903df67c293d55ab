"""Finds a project's checks and setup from what its tree says; nothing is run."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from chargehand.checks._makefile import MAKEFILES, targets
from chargehand.checks.paths import is_test_file, language_of
from chargehand.checks.trees import TreeReader, text_of

_MAX_READ = 200
"""Source files that are opened at most to find out what they use."""
_REQUIREMENTS = re.compile(
    r"(?:requirements[\w.-]*|(?:dev|test|tests)[\w-]*requirements)\.(?:txt|in)|[\w-]*requirements\.txt"
)
_PYTEST_REQUIREMENT = re.compile(r"^\s*pytest\b", re.MULTILINE)


class Stack:
    """A tree's files, read on demand."""

    def __init__(self, reader: TreeReader, tree: str) -> None:
        self._reader = reader
        self._files = {path: (mode, blob) for path, mode, blob in reader.entries(tree)}

    def has(self, path: str) -> bool:
        """Whether the tree has a file at `path`."""
        return path in self._files

    def text(self, path: str) -> str:
        """Return a file's text, "" where there is none that can be read."""
        mode, blob = self._files.get(path, (None, None))
        return text_of(self._reader, mode, blob) or ""

    def under(self, *prefixes: str) -> list[str]:
        """Return the paths that start with one of `prefixes`, which end with a slash."""
        return [path for path in self._files if path.startswith(prefixes)]

    def tests(self, language: str) -> list[str]:
        """Return the test files of a language, hidden and vendored directories aside."""
        return [p for p in sorted(self._files) if language_of(p) == language and is_test_file(p) and _own(p)]

    def sources(self, language: str) -> Iterator[str]:
        """Yield the texts of the first source files of a language."""
        paths = [path for path in sorted(self._files) if language_of(path) == language and _own(path)]
        return (self.text(path) for path in paths[:_MAX_READ])

    def toml(self, path: str) -> dict[str, Any]:
        """Return a TOML document, empty where it is absent or broken."""
        try:
            return tomllib.loads(self.text(path))
        except (ValueError, RecursionError):
            return {}

    def json(self, path: str) -> dict[str, Any]:
        """Return a JSON object, empty where it is absent or broken."""
        try:
            document = json.loads(self.text(path) or "{}")
        except (ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    def has_section(self, path: str, section: str) -> bool:
        """Whether an INI file has a section."""
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(self.text(path))
        except configparser.Error:
            return False
        return parser.has_section(section)

    def requirements(self) -> list[str]:
        """Return the requirements files at the root and in `requirements/`."""
        names = ((path, path.removeprefix("requirements/")) for path in sorted(self._files))
        return [p for p, name in names if _REQUIREMENTS.fullmatch(name) or (name != p and name.endswith(".txt"))]

    def pytest_required(self) -> str | None:
        """Return the file that names pytest as a dependency."""
        pyproject = self.toml("pyproject.toml")
        if any(_is_pytest(word) for word in _dependencies(pyproject)):
            return "pyproject.toml"
        for path in (*self.requirements(), "setup.cfg", "tox.ini", "Pipfile"):
            if _PYTEST_REQUIREMENT.search(self.text(path)):
                return path
        return None


def _own(path: str) -> bool:
    folders = path.split("/")[:-1]
    return not any(f.startswith(".") or f in {"node_modules", "vendor", "third_party", "venv"} for f in folders)


def _is_pytest(requirement: str) -> bool:
    return re.match(r"pytest\b", requirement.strip().lower()) is not None


def table(document: Any, *names: str) -> dict[str, Any]:
    """Return a nested table, empty where any step of the way is missing or no table."""
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def _dependencies(pyproject: dict[str, Any]) -> Iterator[str]:
    """Yield every requirement that any of the usual tables names."""
    yield from _texts(table(pyproject, "project").get("dependencies"))
    groups = [table(pyproject, "project", "optional-dependencies"), table(pyproject, "dependency-groups")]
    groups.append(table(pyproject, "tool", "pdm", "dev-dependencies"))
    for group in groups:
        for requirements in group.values():
            yield from _texts(requirements)
    yield from _texts(table(pyproject, "tool", "uv").get("dev-dependencies"))
    poetry = table(pyproject, "tool", "poetry")
    for requirements in (poetry, *table(poetry, "group").values()):
        yield from table(requirements, "dependencies")
        yield from table(requirements, "dev-dependencies")


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


_PYTEST = "python -m pytest -q"
_PLACEHOLDER = "no test specified"
_RUST_TEST = re.compile(r"#\[\s*(?:\w+::)*(?:test|rstest)\b")
_IMPORTS_PYTEST = re.compile(r"^\s*(?:import|from)\s+pytest\b", re.MULTILINE)
_USES_UNITTEST = re.compile(r"^\s*(?:import|from)\s+unittest\b|\bTestCase\b", re.MULTILINE)
_PLAIN_TEST = re.compile(r"^(?:async\s+)?def\s+test", re.MULTILINE)
_EXTRAS = ("test", "tests", "testing", "dev")


@dataclass(frozen=True, slots=True)
class Detected:
    """Commands found, and for each of them in `why` what in the tree speaks for it."""

    commands: tuple[str, ...] = ()
    why: tuple[str, ...] = ()


_Found = tuple[str, str] | None


def detect_checks(reader: TreeReader, tree: str) -> Detected:
    """Return the test commands of a tree: one for each ecosystem, tox or make only where none was found."""
    stack = Stack(reader, tree)
    found = [hit for detect in (_python, _node, _cargo, _go) if (hit := detect(stack)) is not None]
    found = found or [hit for detect in (_tox, _make) if (hit := detect(stack)) is not None][:1]
    return Detected(tuple(command for command, _ in found), tuple(why for _, why in found))


def _python(stack: Stack) -> _Found:
    configured = _pytest_config(stack)
    if configured:
        return _PYTEST, f"{configured} configures pytest"
    texts = {path: stack.text(path) for path in stack.tests("python")}
    if not texts:
        return None
    importing = next((path for path, text in texts.items() if _IMPORTS_PYTEST.search(text)), None)
    if importing:
        return _PYTEST, f"{importing} imports pytest"
    required = stack.pytest_required()
    if required:
        return _PYTEST, f"{required} names pytest"
    plain = next((path for path, text in texts.items() if _PLAIN_TEST.search(text)), None)
    if plain:
        return _PYTEST, f"{plain} has plain test functions"
    return _unittest(stack, texts)


def _pytest_config(stack: Stack) -> str | None:
    for path in ("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"):
        if stack.has(path):
            return path
    if "pytest" in table(stack.toml("pyproject.toml"), "tool"):
        return "pyproject.toml"
    sections = (("tox.ini", "pytest"), ("setup.cfg", "tool:pytest"))
    return next((path for path, section in sections if stack.has_section(path, section)), None)


def _unittest(stack: Stack, texts: dict[str, str]) -> _Found:
    using = [path for path, text in texts.items() if _USES_UNITTEST.search(text)]
    if not using:
        return None
    folder = using[0].rpartition("/")[0]
    # Without __init__.py discovery does not descend from the root, so it has to start where the tests are.
    importable = all(stack.has(f"{part}/__init__.py") for part in _parents(folder))
    command = "python -m unittest discover" + ("" if importable else f" -s {folder}")
    return command, f"{using[0]} uses unittest"


def _parents(folder: str) -> list[str]:
    parts = folder.split("/") if folder else []
    return ["/".join(parts[: length + 1]) for length in range(len(parts))]


def _node(stack: Stack) -> _Found:
    script = table(stack.json("package.json"), "scripts").get("test")
    if not isinstance(script, str) or not script.strip() or _PLACEHOLDER in script:
        return None
    return "npm test", "package.json has a test script"


def _cargo(stack: Stack) -> _Found:
    if stack.has("Cargo.toml") and any(_RUST_TEST.search(text) for text in stack.sources("rust")):
        return "cargo test", "Cargo.toml, and sources with #[test]"
    return None


def _go(stack: Stack) -> _Found:
    tests = stack.tests("go")
    return ("go test ./...", f"go.mod and {tests[0]}") if tests and stack.has("go.mod") else None


def _tox(stack: Stack) -> _Found:
    named = [path for path in ("tox.ini", "tox.toml") if stack.has(path)]
    if "tox" in table(stack.toml("pyproject.toml"), "tool"):
        named.append("pyproject.toml")
    return ("tox", f"{named[0]} configures tox") if named else None


def _make(stack: Stack) -> _Found:
    for path in sorted(MAKEFILES):
        for target in ("test", "check"):
            if target in targets(stack.text(path)):
                return f"make {target}", f"{path} has the target {target}"
    return None


def detect_setup(reader: TreeReader, tree: str) -> str | None:
    """Return the command that would install what a tree needs to be tested: a suggestion, never run unasked."""
    stack = Stack(reader, tree)
    steps = [step for suggest in (_pip, _npm, _fetch) for step in suggest(stack)]
    return " && ".join(steps) or None


def _pip(stack: Stack) -> Iterator[str]:
    words = [word for path in stack.requirements() for word in ("-r", path)]
    pyproject = stack.toml("pyproject.toml")
    installable = {"project", "build-system"} & set(pyproject) or table(pyproject, "tool", "poetry")
    if installable or stack.has("setup.py"):
        extras = table(pyproject, "project", "optional-dependencies")
        extra = next((name for name in _EXTRAS if name in extras), None)
        words += ["-e", f".[{extra}]" if extra else "."]
        groups = table(pyproject, "dependency-groups")
        words += [word for name in _EXTRAS if name in groups for word in ("--group", name)]
    found = _python(stack)
    if found and found[0] == _PYTEST and stack.pytest_required() is None:
        words.append("pytest")
    if words:
        yield "pip install " + " ".join(words)


def _npm(stack: Stack) -> Iterator[str]:
    if stack.has("package-lock.json") or stack.has("npm-shrinkwrap.json"):
        yield "npm ci"
    elif stack.has("pnpm-lock.yaml"):
        yield "pnpm install --frozen-lockfile"
    elif stack.has("yarn.lock"):
        yield "yarn install --frozen-lockfile"
    elif {"dependencies", "devDependencies"} & set(stack.json("package.json")):
        yield "npm install"


_FETCHES: tuple[tuple[str, str], ...] = (("Cargo.toml", "cargo fetch"), ("go.sum", "go mod download"))


def _fetch(stack: Stack) -> Iterator[str]:
    return (command for path, command in _FETCHES if stack.has(path))
