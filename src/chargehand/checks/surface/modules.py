"""New files that a program imports in place of others."""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Collection

from chargehand.core.records import Change
from chargehand.core.text import late_pattern

# A fallback: with an environment layer the installed packages are known from it.
_TEST_TOOLS = frozenset({
    "pytest", "_pytest", "py", "pluggy", "iniconfig", "tox", "nox", "nose", "nose2", "coverage",
    "hypothesis", "xdist", "mock", "pip", "setuptools", "pkg_resources", "packaging", "exceptiongroup",
    "tomli", "attr", "attrs", "pygments", "typing_extensions", "pytest_cov", "pytest_asyncio",
    "pytest_mock", "pytest_timeout", "pytest_django", "pytest_randomly", "pytest_xdist", "pytest_subtests",
    "pytest_httpx", "pytest_benchmark", "pytest_env", "anyio", "execnet", "colorama", "wheel",
    "_distutils_hack", "distutils_precedence", "virtualenv", "importlib_metadata", "zipp", "six",
    "argcomplete", "pytest_metadata", "pytest_html", "sniffio", "trio", "xmlschema", "testfixtures",
    "freezegun", "pytest_sugar", "twisted", "zope",
})  # fmt: skip
# `test` is also in the standard library, and the commonest name for a project's own tests.
_SHADOWABLE = (_TEST_TOOLS | sys.stdlib_module_names) - {"test", "__main__"}
_MODULE = late_pattern(r"(\w+)(?:\.[\w-]+)*\.(?:py|pyc|so|pyd)")
_SYMLINK = 0o120000
# Directories that Python or a test runner puts on the path: only there does a file hide an installed module.
_ROOTS = frozenset({"", "src", "lib", "python"})


# By language: files that a compiler, or a language's search path, finds in place of test libraries.
_HIDING = tuple(
    (what, late_pattern(pattern))
    for what, pattern in (
        (
            "a class of the JVM's test libraries",
            r"(?P<place>(?:.*/)?(?:org/(?:junit|hamcrest|assertj|mockito|testng|opentest4j|apiguardian|spockframework"
            r"|scalatest|easymock|jmock|powermock)|junit|kotlin/test|io/(?:kotest|mockk)|com/google/common/truth|munit"
            r"|spock))/.*\.(?:java|kt|groovy|scala)",
        ),
        (
            "a header of the C library or of a test library",
            r"(?P<place>(?:.*/)?(?:(?:assert|ctype|errno|fenv|float|inttypes|limits|locale|math|setjmp|signal|stdarg"
            r"|stdbool|stddef|stdint|stdio|stdlib|string|strings|time|unistd|check|cmocka|unity|munit|greatest|minunit"
            r"|doctest|utest|tap|CUnit)\.h|c(?:assert|stdio|stdlib|string|math|stddef|stdint)|catch(?:_amalgamated)?\.hpp"
            r"|(?:gtest|gmock|catch2|CUnit|criterion|boost/test)(?=/)))(?:/.*)?",
        ),
        (
            "a module of Perl's tests",
            r"(?P<place>(?:lib|t/lib|inc|t|blib/lib)/(?:Test|TAP)(?:/.*)?\.pm"
            r"|(?:lib|t/lib|inc)/(?:strict|warnings|Carp|Exporter|Data/Dumper|Scalar/Util|List/Util)\.pm)",
        ),
        (
            "a library of Ruby's tests",
            r"(?P<place>(?:lib|test|spec)/(?:minitest|rspec|test/unit|test-unit|rake|bundler|mocha|simplecov|set|json|date"
            r"|time|delegate|forwardable|timeout|tempfile|fileutils|pp|stringio|ostruct|open3))(?:/.*|\.rb)",
        ),
        ("a module of Lua's tests", r"(?P<place>(?:.*/)?(?:busted|luassert|luaunit|lust|say))(?:/.*\.lua|\.lua)"),
    )
)


def hidden_library(change: Change) -> tuple[str, str] | None:
    """Return the library that a new file hides, and its place; files that the base already has there may stay."""
    if change.kind in {"modified", "deleted"}:
        return None
    for what, pattern in _HIDING:
        if found := pattern.fullmatch(change.path):
            return what, found["place"]
    return None


def new_module(change: Change) -> tuple[str, str] | None:
    """Return (directory, name) of the Python module that a new file makes importable, or `None`."""
    if change.kind in {"modified", "deleted"}:
        return None
    *directories, name = change.path.split("/")
    if name.startswith("__init__.") and directories:
        *directories, module = directories
    elif found := _MODULE.fullmatch(name):
        module = found[1]
    elif change.new_mode == _SYMLINK:
        module = name  # a link to a directory is a package as well
    else:
        return None
    return "/".join(directories), module


def is_usual_root(directory: str, top: str = "") -> bool:
    """Return whether projects, also the one in `top`, usually keep importable top-level modules here."""
    return directory in _ROOTS or directory == top or directory.removeprefix(f"{top}/") in _ROOTS


def can_hide(module: str, installed: Collection[str]) -> bool:
    """Return whether a module of this name would be found before one of a runner or an installed package."""
    return module in _SHADOWABLE or module in installed


def module_names(path: str, top: str = "") -> tuple[str, str] | None:
    """Return (directory, name) of a Python file's top-level module, by the usual roots below `top`.

    Return `None` for a file outside `top`.
    """
    within = path.removeprefix(f"{top}/") if top else path
    if not path.endswith(".py") or (top and within == path):
        return None
    root, _, rest = within.partition("/")
    if rest and root in _ROOTS:
        return posixpath.join(top, root), rest.partition("/")[0].removesuffix(".py")
    return top, root.removesuffix(".py")
