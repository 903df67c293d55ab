"""Linters, type checkers and compilers: programs that read code without running it.

A file that such a program reads is the subject of a check, not a part of the check. The settings of such a program
matter only if a check starts it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection

from chargehand.checks.paths import is_source
from chargehand.core.text import late_pattern

TYPE_CHECKERS = frozenset({"mypy", "dmypy", "pyright", "basedpyright", "ty", "pyre", "pyrefly", "tsc"})
"""Words by which a command starts a type checker."""
# By program: the tables and files of settings named after it are read only by it.
_LINTERS = (
    "ruff", "flake8", "pylint", "isort", "black", "bandit", "mypy", "pyright", "basedpyright", "ty", "pyrefly",
    "yapf", "eslint", "biome", "oxlint", "stylelint", "prettier", "standard", "golangci", "staticcheck",
    "rubocop", "phpstan", "psalm", "phpcs", "clang-tidy", "clippy", "credo", "shellcheck", "hadolint",
    "semgrep", "checkstyle", "pmd", "detekt", "scalafix", "swiftlint", "yamllint", "markdownlint", "pre-commit",
    "pyre", "pycodestyle", "pydocstyle", "pyflakes", "vulture", "codespell", "xo", "tslint", "rustfmt", "gofmt",
)  # fmt: skip
TABLES = frozenset(_LINTERS) | {"pyproject-fmt", "autopep8", "docformatter", "eslintConfig", "eslintIgnore"}
"""Tables of shared settings files (pyproject.toml, setup.cfg, package.json) that belong to one such program."""
# Their own settings name the programs that they start; nothing here follows all of them.
_OPAQUE = frozenset({
    "tox", "nox", "pre", "prek", "hatch", "pdm", "poe", "task", "inv", "invoke", "just", "rake", "gulp",
    "grunt", "nx", "turbo", "lerna", "wireit", "mvn", "mvnw", "gradle", "gradlew", "ant", "sbt", "bazel",
    "bazelisk", "composer", "grumphp", "trunk", "cmake", "ctest", "meson", "ninja", "dune", "stack", "cabal",
    "mix", "rebar3", "swift", "msbuild", "dotnet", "pants", "buck", "buck2", "moon", "earthly", "dagger", "act",
    "docker", "deno", "bun", "lefthook", "megalinter",
})  # fmt: skip
_RUNS = (
    r"(?:[A-Z_]\w*=\S*\s+)*"
    r"(?:(?:time|nice|env|command|npx|bunx|(?:uv|poetry|pdm|hatch|pipenv|rye)\s+run|bundle\s+exec)\s+)*"
)
# They read the given files; `python -m` starts some of them.
_ANALYSER = late_pattern(
    r"\s*" + _RUNS + r"(?:python[\d.]*\s+(?:-\S+\s+)*-m\s+)?(?:[\w./-]*/)?"
    r"(?:mypy|dmypy\s+run|pyright|basedpyright|ty\s+check|pyrefly\s+check|ruff(?:\s+check|\s+format)?|flake8|pylint|black"
    r"|isort|bandit|pycodestyle|pydocstyle|pyflakes|vulture|codespell|py_compile|compileall|doctest|yapf|autopep8"
    r"|eslint|prettier|standard|xo|tslint|biome(?:\s+\w+)?|oxlint|stylelint|node\s+(?:--check|-c)|tsc|shellcheck"
    r"|(?:ba|da|z|k)?sh\s+-n|gofmt|go\s+(?:vet|build)|golint|staticcheck|golangci-lint(?:\s+run)?|rustfmt|rustc"
    r"|clang-format|clang-tidy|cppcheck|rubocop|ruby\s+-c|php\s+-l|phpstan(?:\s+\w+)?|psalm|phpcs|perl\s+-c|luacheck"
    r"|yamllint|markdownlint|hadolint|swiftlint)(?=\s|$)"
)
_SEGMENT = late_pattern(r"(&&|\|\||[;|\n&])")
# Options of such programs that take a file which they load.
_LOADS = late_pattern(
    r"-[crpP]|--(?:config|config-file|rcfile|rulesdir|load-plugins?|require|plugin|format|resolve-.*)"
)
_DRIVER_PLACES = frozenset(
    {"ci", ".ci", "script", "scripts", "tool", "tools", "bin", "build", "hack", "dev", "etc", "contrib"}
)
_DRIVER_NAME = late_pattern(
    r"(?:.*[-_.])?(?:tests?|runtests|checks?|lint|ci|build|verify|validate|run|harness)(?:[-_.].*)?"
)
_SCRIPTS = (".sh", ".bash", ".zsh", ".ksh", ".bats", ".ps1", ".bat", ".cmd", ".mk", ".awk", ".sed", ".jq")


def leave_out_subjects(text: str) -> str:
    """Return a shell text without the source files that its programs read but do not run."""
    return "".join(
        # A substitution runs its program.
        _without_sources(segment) if _ANALYSER.match(segment) and not {"$", "`"} & set(segment) else segment
        for segment in _SEGMENT.split(text)
    )


def _without_sources(segment: str) -> str:
    words = re.split(r"(\s+)", segment)
    kept = list[str]()
    before = ""
    for word in words:
        plain = word.strip("\"'")
        subject = (
            not plain.startswith("-") and "=" not in plain and is_source(plain) and not _LOADS.fullmatch(before)
        )
        kept.append("" if subject else word)
        before = plain if plain.strip() else before
    return "".join(kept)


def is_driver(path: str) -> bool:
    """Return whether a program that a check starts is a driver of checks, by its directory and name."""
    *directories, name = path.lower().split("/")
    if not is_source(path) or name.endswith(_SCRIPTS):
        return True
    return bool(_DRIVER_PLACES.intersection(directories) or _DRIVER_NAME.fullmatch(posixpath.splitext(name)[0]))


def idle_linters(words: Collection[str]) -> frozenset[str]:
    """Return the tables of linters that no check starts, by the `words` of all programs that checks run."""
    if not words or not _OPAQUE.isdisjoint(words):
        return frozenset()
    return frozenset(table for table in TABLES if set(re.findall(r"[a-z0-9]+", _program(table))).isdisjoint(words))


def linter_of(path: str) -> str | None:
    """Return the linter that a file configures, by its name, or `None`."""
    name = posixpath.basename(path).lower()
    stem = re.sub(r"[^a-z0-9]+", " ", name)
    known = {"bandit yaml": "bandit", "style yapf": "yapf", "isort cfg": "isort", "pyrightconfig json": "pyright"}
    return known.get(stem.strip()) or next((each for each in _LINTERS if each.replace("-", " ") in stem), None)


def _program(table: str) -> str:
    return "eslint" if table.startswith("eslint") else table
