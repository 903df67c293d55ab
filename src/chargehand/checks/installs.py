"""The part of a manifest or lock that decides which packages a setup installs.

A setup has to run again if that part changed. Descriptions, settings of linters, comments and formatting install
nothing. If a format is open-ended, the parts that install nothing are listed and all others count; a file that
cannot be read counts as a whole.
"""

from __future__ import annotations

import ast
import configparser
import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct

from chargehand.checks.surface.parts import LIFECYCLE, canonical_element, local_name, parse_object, parse_project
from chargehand.checks.trees import TreeReader, is_regular
from chargehand.core.text import late_pattern, parse_python

_MAX_BYTES = 8_000_000
_WORD = late_pattern(r"[a-z0-9][a-z0-9-]*")
# Directories of files that tests read: no setup installs from them unless its command names them.
_FIXTURES = frozenset({"fixtures", "__fixtures__", "testdata", "__snapshots__", "goldens"})
_UNREADABLE = (ValueError, SyntaxError, RecursionError, TypeError, AttributeError, KeyError, MemoryError)

_ABOUT_PROJECT = frozenset({
    "description", "readme", "license", "license-files", "authors", "maintainers", "keywords", "classifiers",
    "urls",
})  # fmt: skip
_ABOUT_POETRY = _ABOUT_PROJECT | {"homepage", "repository", "documentation"}
_ABOUT_SETUP = frozenset({
    "description", "summary", "long_description", "long_description_content_type", "description_file", "url",
    "home_page", "project_urls", "download_url", "author", "author_email", "maintainer", "maintainer_email",
    "license",
    "license_file", "license_files", "classifier", "classifiers", "keywords", "platform", "platforms",
})  # fmt: skip
# Tables of `tool` for programs that build and install packages; others count if the build or setup names them.
_PYTHON_INSTALLERS = frozenset({
    "poetry", "uv", "pdm", "pixi", "hatch", "flit", "rye", "setuptools", "setuptools-scm", "distutils", "maturin",
    "scikit-build", "meson-python", "cython", "mypyc", "pbr", "versioneer", "versioningit", "pip", "pip-tools",
    "pipenv", "conda", "conda-lock",
})  # fmt: skip
# Tasks that such a tool starts on demand, each with the word in a setup command that starts them.
_TASKS = (
    ("pdm", "scripts", "pdm"),
    ("hatch", "envs", "hatch"),
    ("rye", "scripts", "rye"),
    ("pixi", "tasks", "pixi"),
)
_SETUP_CFG = late_pattern(
    r"metadata|options(?:\..*)?|build(?!_sphinx)(?:_.*)?|develop|install.*|egg_info|easy_install|editable_wheel"
    r"|dist_info|bdist_wheel|global|files|entry_points|backwards_compat|pbr|versioneer|extension=.*|config"
)
_SPACES = late_pattern(r"\s*([<>=!~,;()\[\]]+)\s*")

# Many tools read package.json; node's package clients install by these keys.
_NODE = frozenset({
    "name", "dependencies", "devDependencies", "peerDependencies", "peerDependenciesMeta", "optionalDependencies",
    "bundleDependencies", "bundledDependencies", "dependenciesMeta", "overrides", "resolutions", "workspaces",
    "catalog", "catalogs", "packageManager", "engines", "devEngines", "os", "cpu", "libc", "bin", "directories",
    "config", "pnpm", "installConfig", "trustedDependencies", "patchedDependencies", "gypfile", "binary", "flat",
})  # fmt: skip
_ABOUT_NODE_LOCK = ("license", "funding", "description", "deprecated")
_ABOUT_COMPOSER = frozenset({
    "description", "keywords", "homepage", "readme", "time", "license", "authors", "support", "funding", "suggest",
    "abandoned", "archive", "scripts-descriptions", "scripts-aliases", "scripts",
})  # fmt: skip
_ABOUT_CRATE = frozenset({
    "authors", "description", "documentation", "readme", "homepage", "repository", "license", "license-file",
    "keywords", "categories", "exclude", "include", "publish", "metadata", "default-run", "lints",
})  # fmt: skip
# Each check compiles by itself: an environment contains only the fetched crates.
_CARGO_BUILD = frozenset({"badges", "lints", "profile", "lib", "bin", "test", "bench", "example"})
_ABOUT_POM = frozenset({
    "name", "description", "url", "inceptionYear", "licenses", "developers", "contributors", "scm", "organization",
    "issueManagement", "ciManagement", "mailingLists", "distributionManagement",
})  # fmt: skip
_GRADLE_ABOUT = late_pattern(r"\s*(?:version|description)\s*(?:=\s*)?(['\"])[^'\"$]*\1\s*;?\s*")


class Setup(Struct, frozen=True, kw_only=True):
    """A setup command, and whether the project's own version counts among its inputs."""

    command: str
    versions: bool = True

    def names(self, word: str) -> bool:
        """Return whether the command has this word."""
        return word.lower() in _words(self.command)

    def about(self, names: Collection[str]) -> frozenset[str]:
        """Return keys that only describe a package: `names`, and its version unless versions count."""
        return frozenset(names) | (frozenset() if self.versions else {"version"})


class InstallReader:
    """Describes each input of a `setup` by a digest of its installing part: equal digests install the same.

    Files of more than `most_bytes` are not parsed: they are described by their whole content.
    """

    def __init__(self, reader: TreeReader, setup: Setup, *, most_bytes: int = _MAX_BYTES) -> None:
        self._reader = reader
        self._setup = setup
        self._most = most_bytes

    def __call__(self, path: str, mode: int | None, id: str | None) -> str:
        """Return the digest for a file of this mode and id, "" if it installs nothing or is absent."""
        if id is None:
            return ""
        *directories, name = path.split("/")
        if any(each in _FIXTURES and each not in self._setup.command for each in directories):
            return ""
        read = _reader_of(name)
        try:
            if read is None or not is_regular(mode) or self._reader.blob_size(id) > self._most:
                return f"{mode} {id}"
            found = read(self._reader.read_blob(id, limit=self._most).decode(), self._setup)
            text = json.dumps(found, sort_keys=True, default=str)
        except _UNREADABLE:
            return f"{mode} {id}"
        return hashlib.sha256(text.encode()).hexdigest() if found else ""


_Read = Callable[[str, Setup], object]


def _reader_of(name: str) -> _Read | None:
    if name in _READERS:
        return _READERS[name]
    return next((read for pattern, read in _PATTERNS if fnmatchcase(name, pattern)), None)


# --- Python


def _read_pyproject(text: str, setup: Setup) -> object:
    document = tomllib.loads(text)
    project, build = dict(document.get("project", {})), document.get("build-system", {})
    tools = {
        name: _leave_out(table, setup.about(_ABOUT_POETRY)) if name == "poetry" else table
        for name, table in document.get("tool", {}).items()
        if _counts(name, build, setup)
    }
    for tool, key, program in _TASKS:
        if tool in tools and not setup.names(program):
            tools[tool] = _leave_out(tools[tool], {key})
    if "optional-dependencies" in project:
        extras = project["optional-dependencies"].items()
        project["optional-dependencies"] = {name: _requirements(each) for name, each in extras}
    if "dependencies" in project:
        project["dependencies"] = _requirements(project["dependencies"])
    groups = {name: sorted(map(_group_item, each)) for name, each in document.get("dependency-groups", {}).items()}
    others = _leave_out(document, {"project", "build-system", "tool", "dependency-groups"})
    return _drop_empty({
        "project": _drop_empty(_leave_out(project, setup.about(_ABOUT_PROJECT))),
        "build": build | {"requires": _requirements(build.get("requires", []))} if build else {},
        "tools": _drop_empty(tools),
        "groups": groups,
        "others": others,
    })  # fmt: skip


def _counts(tool: str, build: Mapping[str, Any], setup: Setup) -> bool:
    """Return whether a table of `tool` may change the installation."""
    name = re.sub(r"[-_.]+", "-", tool).lower()
    # A backend inside the tree may read any of them.
    if name in _PYTHON_INSTALLERS or "backend-path" in build:
        return True
    words = _words(re.sub(r"[_.]+", "-", f"{json.dumps(build, default=str)} {setup.command}"))
    return any(word == name or word.startswith(f"{name}-") for word in words)


def _requirements(listed: Iterable[str]) -> list[str]:
    return sorted(_SPACES.sub(r"\1", each.strip()) for each in listed)


def _group_item(item: object) -> str:
    return _SPACES.sub(r"\1", item.strip()) if isinstance(item, str) else json.dumps(item, sort_keys=True)


def _read_setup_cfg(text: str, setup: Setup) -> object:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ValueError(str(error)) from error
    about = setup.about(_ABOUT_SETUP)
    found = {}
    for section in parser.sections():
        if _SETUP_CFG.fullmatch(section):
            items = ((key.replace("-", "_"), value) for key, value in parser.items(section))
            left = about if section == "metadata" else frozenset[str]()
            # Blank lines and indentation of a list have no meaning.
            found[section] = {key: value.split() for key, value in items if key not in left}
    return _drop_empty(found)


def _read_setup_py(text: str, setup: Setup) -> object:
    """Return the program without literals that only describe the package."""
    tree = parse_python(text)
    versions = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"setup", "setuptools.setup"}:
            for key in [each for each in node.keywords if each.arg in setup.about(_ABOUT_SETUP)]:
                if key.arg == "version" and isinstance(key.value, ast.Name):
                    versions.add(key.value.id)
                    node.keywords.remove(key)
                    continue
                with suppress(ValueError, TypeError):
                    ast.literal_eval(key.value)
                    node.keywords.remove(key)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    tree.body = [each for each in tree.body if not _sets_version(each, versions - used)]
    return ast.dump(tree)


def _sets_version(statement: ast.stmt, names: Collection[str]) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant()):
            return name in names
    return False


def _read_requirements(text: str, setup: Setup) -> object:
    lines = (re.sub(r"(?:^|\s)#.*", "", line).strip() for line in text.replace("\\\n", " ").splitlines())
    found = {" ".join(_SPACES.sub(r"\1", line).split()) for line in lines if line}
    return sorted(found)


def _read_pipfile(text: str, setup: Setup) -> object:
    return _leave_out(tomllib.loads(text), () if setup.names("run") else ("scripts",))


def _read_python_lock(text: str, setup: Setup) -> object:
    """Return a lock in TOML; the version of a package within the tree counts as the project's."""
    document = tomllib.loads(text)
    packages = document.pop("package", [])
    own = ("editable", "virtual", "directory")
    document["package"] = sorted(
        json.dumps(_leave_out(each, setup.about(()) if _is_own(each, own) else ()), sort_keys=True, default=str)
        for each in packages
    )
    return document


def _is_own(package: Mapping[str, Any], kinds: Collection[str]) -> bool:
    source = package.get("source")
    return isinstance(source, Mapping) and not source.keys().isdisjoint(kinds)


# --- node, PHP


def _read_package_json(text: str, setup: Setup) -> object:
    document = parse_object(text)
    scripts = _run_scripts(document.get("scripts", {}), setup)
    # Install scripts may read further keys, which they or the command name.
    named = _words(" ".join((setup.command, *map(str, scripts.values()))))
    kept = _NODE | ({"version"} if setup.versions else frozenset())
    found = {key: value for key, value in document.items() if key in kept or key.lower() in named - {"version"}}
    return _drop_empty({**_leave_out(found, {"scripts"}), "scripts": scripts})


def _run_scripts(scripts: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    """Return the scripts that an installation runs, automatically or because the command names them."""
    found = {name: text for name, text in scripts.items() if name in LIFECYCLE or name.startswith("pnpm:")}
    waiting = [setup.command, *map(str, found.values())]
    while waiting:
        text = waiting.pop()
        for name, script in scripts.items():
            base = re.sub(r"^(?:pre|post)(?=.)", "", name).partition(":")[0]
            if name not in found and (base in _script_words(text) or name in text.split()):
                found[name] = script
                waiting.append(str(script))
    return found


def _script_words(text: str) -> frozenset[str]:
    return frozenset(re.split(r"[^\w.-]+", text))


def _read_npm_lock(text: str, setup: Setup) -> object:
    document = parse_object(text)
    packages = {
        path: _leave_out(each, (*_ABOUT_NODE_LOCK, *(() if "node_modules/" in path else setup.about(()))))
        for path, each in document.get("packages", {}).items()
    }
    return _drop_empty(_leave_out(document, setup.about(())) | {"packages": packages})


def _read_composer(text: str, setup: Setup) -> object:
    document = parse_object(text)
    scripts = document.get("scripts", {})
    run = {name: each for name, each in scripts.items() if name.startswith(("pre-", "post-"))}
    named = json.dumps([*run.values(), setup.command])
    run |= {name: each for name, each in scripts.items() if name in named}
    return _drop_empty(_leave_out(document, setup.about(_ABOUT_COMPOSER)) | {"scripts": run})


def _read_json(text: str, setup: Setup) -> object:
    return parse_object(text)


# --- Rust, Go, the JVM


def _read_cargo(text: str, setup: Setup) -> object:
    document = tomllib.loads(text)
    # Features choose among crates that are fetched anyway, unless a program is built and installed.
    builds = setup.names("install") or setup.names("build")
    found = _leave_out(document, () if builds else (*_CARGO_BUILD, "features"))
    if "package" in found:
        found["package"] = _leave_out(found["package"], setup.about(_ABOUT_CRATE))
    if "workspace" in found:
        workspace = _leave_out(found["workspace"], {"lints", "metadata"})
        if "package" in workspace:
            workspace["package"] = _drop_empty(_leave_out(workspace["package"], setup.about(_ABOUT_CRATE)))
        found["workspace"] = _drop_empty(workspace) or "workspace"
    return _drop_empty(found)


def _read_cargo_lock(text: str, setup: Setup) -> object:
    document = tomllib.loads(text)
    packages = [
        each if "source" in each else _leave_out(each, setup.about(())) for each in document.pop("package", [])
    ]
    return document | {"package": sorted(json.dumps(each, sort_keys=True) for each in packages)}


def _read_go_mod(text: str, setup: Setup) -> object:
    found, block = set[str](), ""
    for raw in text.splitlines():
        line = " ".join(raw.partition("//")[0].split())
        if line.endswith("("):
            block = line.removesuffix("(").strip()
        elif line == ")":
            block = ""
        elif line:
            found.add(f"{block} {line}".strip())
    return sorted(line for line in found if not line.startswith("retract "))


def _read_set_of_lines(text: str, setup: Setup) -> object:
    return sorted({line.strip() for line in text.splitlines()} - {""})


def _read_pom(text: str, setup: Setup) -> object:
    root = parse_project(text)
    if root is None:
        return []
    return [canonical_element(each) for each in root if local_name(each) not in setup.about(_ABOUT_POM)]


def _read_gradle(text: str, setup: Setup) -> object:
    """Return the lines of a build program; with a multi-line text or comment all of it counts."""
    if any(mark in text for mark in ('"""', "'''", "/*")):
        return text
    lines = (line.strip() for line in text.splitlines())
    return [
        line
        for line in lines
        if line and not line.startswith("//") and (setup.versions or not _GRADLE_ABOUT.fullmatch(line))
    ]


# --- any language


def _read_toml(text: str, setup: Setup) -> object:
    return tomllib.loads(text)


def _read_lines(text: str, setup: Setup) -> object:
    """Return the lines of a text in which `#` begins a comment and indentation counts."""
    lines = (line.rstrip() for line in text.splitlines())
    return [line for line in lines if line and not line.lstrip().startswith("#")]


def _read_gemfile(text: str, setup: Setup) -> object:
    return text if "=begin" in text or "<<" in text else _read_lines(text, setup)


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def _drop_empty(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if value or value is False or value == 0}


def _leave_out(table: Any, names: Collection[str]) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise ValueError(f"expected a table, found {type(table).__name__}")
    return {name: value for name, value in table.items() if name not in names}


_READERS: Mapping[str, _Read] = {
    "pyproject.toml": _read_pyproject,
    "setup.cfg": _read_setup_cfg,
    "setup.py": _read_setup_py,
    "Pipfile": _read_pipfile,
    "Pipfile.lock": _read_json,
    "uv.lock": _read_python_lock,
    "poetry.lock": _read_python_lock,
    "pdm.lock": _read_python_lock,
    "package.json": _read_package_json,
    "package-lock.json": _read_npm_lock,
    "npm-shrinkwrap.json": _read_npm_lock,
    "composer.json": _read_composer,
    "composer.lock": _read_json,
    "Cargo.toml": _read_cargo,
    "Cargo.lock": _read_cargo_lock,
    "go.mod": _read_go_mod,
    "go.sum": _read_set_of_lines,
    "pom.xml": _read_pom,
    "build.gradle": _read_gradle,
    "build.gradle.kts": _read_gradle,
    "libs.versions.toml": _read_toml,
    "Gemfile": _read_gemfile,
    "environment.yml": _read_lines,
    ".python-version": _read_lines,
    ".nvmrc": _read_lines,
}
_PATTERNS: tuple[tuple[str, _Read], ...] = (
    ("requirements*.txt", _read_requirements),
    ("constraints*.txt", _read_requirements),
    ("pnpm-lock.yaml", _read_lines),
    ("*.lock", _read_lines),
)
