"""Files that are check surface only in part: readers that remove each file's inert parts.

If a format is open-ended, the inert parts are listed and everything else counts: an unknown key is surface.
Readers raise `ValueError` for unreadable files.
"""

from __future__ import annotations

import ast
import configparser
import json
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from xml.etree import ElementTree

from chargehand.checks.surface.makefile import MAKEFILES, used_part
from chargehand.core.text import late_pattern, parse_python

# Maps a file's text and the check commands to the relevant part of it.
Parts = Callable[[str, Sequence[str]], object]

_PYPROJECT_TOOLS = frozenset({
    "tox", "coverage", "nox", "hatch", "pdm", "poe", "taskipy", "invoke", "ruff", "mypy", "pyright", "uv",
    "rye", "pixi", "black", "isort", "flake8", "pylint", "bandit", "basedpyright", "ty", "unittest",
    "nose2", "mutmut", "setuptools", "flit", "scikit-build", "maturin", "meson-python", "cibuildwheel",
    "pre-commit", "doit", "hypothesis", "pyrefly", "pip", "distutils", "behave", "stestr", "django",
    "mypyc", "cython", "pants", "just", "makim", "versioningit",
})  # fmt: skip
_PYPROJECT_PROJECT = ("scripts", "gui-scripts", "entry-points", "dynamic")
_POETRY = ("scripts", "plugins", "build", "packages")
_UV_INERT = ("dev-dependencies", "constraint-dependencies", "override-dependencies")
_SETUP_CFG_INERT = frozenset(
    {"metadata", "options.extras_require", "bdist_wheel", "sdist", "egg_info", "bumpversion"}
)
_SETUP_CFG_OPTIONS = (
    "install_requires",
    "python_requires",
    "zip_safe",
    "include_package_data",
    "packages",
    "tests_require",
)
_SETUP_PY = frozenset({
    "install_requires", "extras_require", "python_requires", "version", "description", "long_description",
    "url", "author", "author_email", "maintainer", "maintainer_email", "license", "license_files",
    "classifiers", "keywords", "project_urls", "long_description_content_type", "zip_safe",
    "include_package_data", "download_url", "platforms", "tests_require",
})  # fmt: skip
_PACKAGE_JSON = frozenset({
    "name", "version", "description", "keywords", "homepage", "bugs", "license", "licenses", "author",
    "contributors", "maintainers", "funding", "files", "main", "module", "types", "typings",
    "typesVersions", "bin", "man", "directories", "repository", "dependencies", "devDependencies",
    "peerDependencies", "peerDependenciesMeta", "optionalDependencies", "os", "cpu", "private",
    "publishConfig", "sideEffects", "unpkg", "jsdelivr", "exports", "support", "browserslist", "icon",
    "displayName", "publisher", "categories", "contributes", "activationEvents", "size-limit", "release",
})  # fmt: skip
_PACKAGE_DEPENDENCIES = ("dependencies", "devDependencies", "peerDependencies", "optionalDependencies")
_RENAMED = late_pattern(r"(?:npm|file|link|portal|patch|workspace|exec):|[./~]")
_COMPOSER = frozenset({
    "name", "description", "version", "keywords", "homepage", "readme", "time", "license", "authors",
    "support", "funding", "require", "require-dev", "suggest", "conflict", "provide", "abandoned",
    "archive",
})  # fmt: skip
_CARGO = frozenset({"dependencies", "dev-dependencies", "build-dependencies", "badges"})
_CARGO_PACKAGE = frozenset({
    "version", "authors", "description", "documentation", "readme", "homepage", "repository", "license",
    "license-file", "keywords", "categories", "exclude", "include", "publish", "rust-version", "metadata",
    "name",
})  # fmt: skip
_POM = frozenset({
    "modelVersion", "name", "description", "url", "inceptionYear", "licenses", "developers", "contributors",
    "scm", "organization", "issueManagement", "ciManagement", "mailingLists", "distributionManagement",
    "version", "dependencies", "dependencyManagement",
})  # fmt: skip
_GO_INERT = late_pattern(r"\s*(?://.*|module\s+\S+\s*|require\s+\S+\s+v\S+(?:\s*//.*)?|)")
_GO_BLOCK = late_pattern(r"require\s*\(")
_GO_REQUIRED = late_pattern(r"(?:\S+\s+v\S+)?")
# Lines of a Gemfile or gemspec that only name a package, its version or descriptive text, without other code.
_TEXT = r"""(?:"[^"#`]*"|'[^']*'|%q\{[^}]*\})(?:\.freeze)?"""
_RUBY_INERT = late_pattern(
    rf"\s*(?:|gem\(?\s*{_TEXT}(?:\s*,\s*{_TEXT})*\s*\)?"
    rf"|\w+\.add_(?:\w+_)?dependency\(?\s*{_TEXT}(?:\s*,\s*{_TEXT})*\s*\)?"
    rf"|\w+\.(?:version|summary|description|homepage|license|email|author|required_ruby_version)\s*=\s*{_TEXT})\s*(?:#.*)?"
)
_MAGIC_COMMENT = late_pattern(r"#.*coding\s*[:=]")
# Git runs a program that is configured under such a name, or omits a file from its output.
_ATTRIBUTE = late_pattern(r"(?:^|\s)(?:(?:filter|diff|merge|working-tree-encoding)=\S+|\[attr\]\S+|export-\w+)")
LIFECYCLE = frozenset({
    "preinstall", "install", "postinstall", "prepublish", "preprepare", "prepare", "postprepare",
    "dependencies", "prepack", "postpack", "prepublishOnly", "preuninstall", "uninstall", "postuninstall",
})  # fmt: skip
"""Scripts of package.json that clients run automatically."""
_HOOK_KEYS = (
    "husky",
    "lint-staged",
    "simple-git-hooks",
    "pre-commit",
    "pre-push",
    "gitHooks",
    "git-hooks",
    "ghooks",
)


def parts_of(name: str) -> Parts | None:
    """Return the reader for a file of this base name, `None` if no part of it is check surface."""
    if name in MAKEFILES:
        return used_part
    return _READERS.get(name) or (_read_ruby if name.endswith(".gemspec") else None)


def parts_without(name: str, tables: Collection[str]) -> Parts | None:
    """Return the reader of the file without `tables`, which no check uses; `None` if it has no such tables."""
    read = _READERS_OF_TABLES.get(name)
    return None if read is None or not tables else partial(read, idle=tables)


def later_parts_of(name: str) -> Parts | None:
    """Return the reader of the file's part that runs later on people's machines, or `None`."""
    return _LATER_READERS.get(name)


def parse_object(text: str) -> dict[str, Any]:
    """Return a JSON object; raises `ValueError` for anything else."""
    document = json.loads(text or "{}")
    if not isinstance(document, dict):
        raise ValueError(f"expected an object, found {type(document).__name__}")
    return document


def _read_pyproject(text: str, commands: Sequence[str], *, idle: Collection[str] = ()) -> object:
    document = tomllib.loads(text)
    project, tools = document.get("project", {}), document.get("tool", {})
    # Runners' plugins have separate tables: `pytest_env` sets variables, `pytest-watcher` commands.
    counted = {name for name in tools if name in _PYPROJECT_TOOLS or name.startswith("pytest")}
    found = _pick(tools, counted)
    found = _leave_out(found, idle)
    if "uv" in found:
        found["uv"] = _leave_out(found["uv"], _UV_INERT)
    dynamic = _pick(project, _PYPROJECT_PROJECT)
    return document.get("build-system"), dynamic, found, _pick(tools.get("poetry", {}), _POETRY)


def _read_setup_cfg(text: str, commands: Sequence[str], *, idle: Collection[str] = ()) -> object:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ValueError(str(error)) from error
    names = [name for name in parser.sections() if name not in _SETUP_CFG_INERT]
    # `[mypy-package.*]` and `[tool:isort]` belong to the program in their names.
    sections = {
        name: dict(parser.items(name))
        for name in names
        if re.split(r"[:.-]", name.removeprefix("tool:"))[0] not in idle
    }
    found = {
        name: _leave_out(values, _SETUP_CFG_OPTIONS if name == "options" else ())
        for name, values in sections.items()
    }
    return {name: values for name, values in found.items() if values}


def _read_setup_py(text: str, commands: Sequence[str]) -> object:
    """Return the program without literal arguments of `setup()` that only describe the package."""
    try:
        tree = parse_python(text)
    except SyntaxError as error:
        raise ValueError(str(error)) from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"setup", "setuptools.setup"}:
            kept = []
            for key in node.keywords:
                if key.arg in _SETUP_PY:
                    with suppress(ValueError, TypeError, SyntaxError):
                        ast.literal_eval(key.value)
                        continue
                kept.append(key)
            node.keywords = kept
    return ast.dump(tree)


def _read_package_json(text: str, commands: Sequence[str], *, idle: Collection[str] = ()) -> object:
    document = _leave_out(parse_object(text), idle)
    tables = [_as_table(document.get(key) or {}) for key in _PACKAGE_DEPENDENCIES]
    # Another package, or a directory, under the name of a package that tests import.
    renamed = [sorted((name, each) for name, each in table.items() if _RENAMED.match(each)) for table in tables]
    return _leave_out(document, _PACKAGE_JSON), renamed


def _read_cargo(text: str, commands: Sequence[str]) -> object:
    document = tomllib.loads(text)
    found = _leave_out(document, {*_CARGO, "features"})
    # Tests may be disabled by a feature; new features that are not enabled change nothing.
    found["features"] = _pick(document.get("features", {}), {"default"})
    found["package"] = _leave_out(document.get("package", {}), _CARGO_PACKAGE)
    workspace = _leave_out(document.get("workspace", {}), {"dependencies", "package", "metadata"})
    targets = {name: _leave_out(each, _CARGO) for name, each in document.get("target", {}).items()}
    binaries = [_leave_out(item, {"name", "path", "required-features"}) for item in document.get("bin", [])]
    found |= {
        "workspace": workspace,
        "target": {name: each for name, each in targets.items() if each},
        "bin": [item for item in binaries if item],
    }
    return {name: value for name, value in found.items() if value}


def _read_catalog(text: str, commands: Sequence[str]) -> object:
    """Return the plugins of a gradle version catalogue, with the versions that they refer to."""
    document = tomllib.loads(text)
    plugins = _as_table(document.get("plugins", {}))
    return plugins, _pick(
        document.get("versions", {}),
        [each for each in document.get("versions", {}) if f"'{each}'" in str(plugins)],
    )


def _read_go_mod(text: str, commands: Sequence[str]) -> object:
    found, in_block = list[str](), False
    for line in text.splitlines():
        text = line.partition("//")[0].strip()
        if in_block and text == ")":
            in_block = False
        elif in_block and _GO_REQUIRED.fullmatch(text):
            continue
        elif _GO_BLOCK.fullmatch(text):
            in_block = True
        elif not _GO_INERT.fullmatch(line):
            found.append(text)
    return found


def _read_pom(text: str, commands: Sequence[str]) -> object:
    """Return a project's elements, without descriptive ones and versions that only dependencies use."""
    root = parse_project(text)
    if root is None:
        return []
    counted = [each for each in root if local_name(each) not in {*_POM, "properties"}]
    kept = [canonical_element(each) for each in counted]
    # A dependency may explicitly come from the tree itself.
    kept += [canonical_element(each) for each in root.iter() if local_name(each) == "systemPath"]
    used = "".join(ElementTree.tostring(each, encoding="unicode") for each in counted)
    for properties in (each for each in root if local_name(each) == "properties"):
        for each in properties:
            name = local_name(each)
            if not name.lower().endswith("version") or f"${{{name}}}" in used:
                kept.append(canonical_element(each))
    return kept


def parse_project(text: str) -> ElementTree.Element | None:
    """Return the root of a Maven project file, `None` for an empty one; raises `ValueError` for invalid XML."""
    # An entity may expand to any text, and to a huge one: no project file needs entities.
    if "<!" in re.sub(r"<!--.*?-->|<!\[CDATA\[.*?\]\]>", "", text, flags=re.DOTALL):
        raise ValueError("it has a document type")
    if not text:
        return None
    try:
        # Without a document type there are no entities to expand.
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(str(error)) from error


def local_name(element: ElementTree.Element) -> str:
    """Return the name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2]


def canonical_element(element: ElementTree.Element) -> object:
    """Return an element by value: without comments, and with white space folded."""
    text = " ".join((element.text or "").split())
    return local_name(element), text, sorted(element.attrib.items()), [canonical_element(each) for each in element]


def _read_ruby(text: str, commands: Sequence[str]) -> object:
    return [
        line.strip()
        for line in text.splitlines()
        if not _RUBY_INERT.fullmatch(line) or _MAGIC_COMMENT.search(line)
    ]


def _read_lifecycle(text: str, commands: Sequence[str]) -> object:
    document = parse_object(text)
    return _pick(document.get("scripts", {}), LIFECYCLE), _pick(document, _HOOK_KEYS)


_READERS: Mapping[str, Parts] = {
    "pyproject.toml": _read_pyproject,
    "setup.cfg": _read_setup_cfg,
    "setup.py": _read_setup_py,
    "Pipfile": lambda text, _: _leave_out(tomllib.loads(text), {"packages", "dev-packages"}),
    "package.json": _read_package_json,
    "Cargo.toml": _read_cargo,
    "go.mod": _read_go_mod,
    "libs.versions.toml": _read_catalog,
    "pom.xml": _read_pom,
    "Gemfile": _read_ruby,
    "composer.json": lambda text, _: _leave_out(parse_object(text), _COMPOSER),
}
_READERS_OF_TABLES = {
    "pyproject.toml": _read_pyproject,
    "setup.cfg": _read_setup_cfg,
    "package.json": _read_package_json,
}
_LATER_READERS: Mapping[str, Parts] = {
    "package.json": _read_lifecycle,
    ".gitattributes": lambda text, _: [
        line for line in map(str.strip, text.splitlines()) if not line.startswith("#") and _ATTRIBUTE.search(line)
    ],
}


def _pick(table: Any, names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in _as_table(table).items() if name in names}


def _leave_out(table: Any, names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in _as_table(table).items() if name not in names}


def _as_table(table: Any) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        raise ValueError(f"expected a table, found {type(table).__name__}")
    return table
