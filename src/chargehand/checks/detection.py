"""Detects a project's checks and setup from the content of its tree; nothing is run."""

from __future__ import annotations

import posixpath
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct

from chargehand.checks import _dependencies
from chargehand.checks.areas import OWN_CONFIG
from chargehand.checks.reads import PROJECT_FILES
from chargehand.checks.runners.base import RunnableCheck
from chargehand.checks.runners.table import RUNNERS
from chargehand.checks.setups.inputs import ignores_requirements
from chargehand.checks.setups.python import pip_commands
from chargehand.checks.stacks import Stack, table
from chargehand.checks.surface.makefile import MAKEFILES, targets
from chargehand.checks.trees import TreeReader
from chargehand.core.records import Change
from chargehand.core.text import late_pattern, printable

# `ci` and `--frozen-lockfile` install exactly the lock's packages and never rewrite it.
_NODE_INSTALLS = {
    "package-lock.json": "npm ci",
    "npm-shrinkwrap.json": "npm ci",
    "pnpm-lock.yaml": "pnpm install --frozen-lockfile",
    "yarn.lock": "yarn install --frozen-lockfile",
}
NODE_PROGRAMS = "/workspace/.chargehand/npm"
"""Where setup installs node programs; their `bin` is on the PATH of checks and agents."""
# Versions that run on every supported node, and that read the locks of newer ones.
_NODE_CLIENTS = {"pnpm": "pnpm@9", "yarn": "yarn@1"}
_FETCHES: tuple[tuple[str, str], ...] = (
    ("Cargo.toml", "cargo fetch"),
    ("go.sum", "go mod download"),
    # surefire resolves its runner's jars only when it runs tests; classes of the base must not stay.
    ("pom.xml", "mvn -B -q test -Dmaven.test.failure.ignore=true && mvn -B -q clean"),
)
# Files that a directory of a larger repository may have instead.
_PROJECT_FILES = (
    *PROJECT_FILES,
    *("requirements.txt", "pytest.ini", "tox.ini", "Pipfile", "go.work", "GNUmakefile", "makefile", "deno.json"),
)

# Configuration has a licence header only in projects that want one in each file. Code may be copied.
_CONFIGURATION = late_pattern(r"[^/]+\.(?:toml|ya?ml|xml|properties|cfg|conf|ini|gradle|gradle\.kts)|\.[^/]+")
_FIRST_COMMENT = late_pattern(
    r"(?:#![^\n]*\n|<\?xml[^\n]*\?>|\s)*"
    r"(?:<!--(?P<xml>.*?)-->|/\*(?P<block>.*?)\*/|(?P<lines>(?:[ \t]*(?:#|//|;)[^\n]*(?:\n|\Z))+))",
    re.DOTALL,
)
_COMMENT_MARK = late_pattern(r"^[ \t]*(?:#+|//+|;+|\*+)", re.MULTILINE)
_LICENCE = late_pattern(
    r"SPDX-License-Identifier:|\blicen[sc]ed (?:under|to)\b|\bAll rights reserved\b", re.IGNORECASE
)
_MOST_HEADER = 6_000  # characters


class Detected(Struct, frozen=True):
    """Detected commands, and in `why` the evidence in the tree for each."""

    commands: tuple[str, ...] = ()
    why: tuple[str, ...] = ()


def find_project(reader: TreeReader, tree: str, start: str) -> str:
    """Return the directory of the project that contains `start`: the nearest one upwards with project files.

    A directory without checks (with a Makefile for the documentation, say) yields to a directory above it with
    checks, unless it has a `chargehand.toml`. Directories are relative to the top of the tree, "", which needs no
    files.
    """
    projects = [
        place
        for place in (start, *above(start))
        if place and any(reader.lookup(tree, f"{place}/{name}") for name in (OWN_CONFIG, *_PROJECT_FILES))
    ]
    for place in (*projects, "") if projects else ():
        if reader.lookup(tree, posixpath.join(place, OWN_CONFIG)) or detect_checks(reader, tree, place).commands:
            return place
    return projects[0] if projects else ""


def above(directory: str) -> Iterator[str]:
    """Yield the directories above one of a tree, the top ("") last."""
    while directory:
        directory = posixpath.dirname(directory)
        yield directory


def detect_checks(reader: TreeReader, tree: str, directory: str = "") -> Detected:
    """Return the test commands of a directory: one per ecosystem; tox or make only if there are no others."""
    stack = Stack(reader, tree, directory)
    by_ecosystem: dict[str, RunnableCheck] = {}
    for runner in RUNNERS.values():
        check = runner.detect(stack) if runner.ecosystem not in by_ecosystem else None
        if check is not None:
            by_ecosystem[runner.ecosystem] = check
    found = list(by_ecosystem.values())
    # tox and make mostly run the same tests, in environments that the sandbox would have to fetch.
    if not found:
        named = [path for path in ("tox.ini", "tox.toml") if stack.has(path)]
        named += ["pyproject.toml"] if "tox" in table(stack.toml("pyproject.toml"), "tool") else []
        found = [RunnableCheck("tox", f"{path} configures tox") for path in named[:1]] or [
            RunnableCheck(f"make {target}", f"{path} has the target {target}")
            for path in sorted(MAKEFILES)
            for target in ("test", "check")
            if target in targets(stack.text(path))
        ][:1]
    return Detected(tuple(each.command for each in found), tuple(each.why for each in found))


def find_licence_header(reader: TreeReader, tree: str, directory: str = "") -> tuple[str, ...]:
    """Return the licence header of a project's configuration files, as lines without comment marks.

    A licence checker (`apache-rat`, `reuse lint`) then accepts a new file that begins with them. Return the most
    common header among the files directly in `directory`, on a tie the first by path; empty without a header.
    """
    found = Counter[tuple[str, ...]]()
    stack = Stack(reader, tree, directory)
    for path in sorted(filter(_CONFIGURATION.fullmatch, stack.under(""))):
        comment = _FIRST_COMMENT.match(stack.text(path)[:_MOST_HEADER].replace("\r\n", "\n"))
        text = "" if comment is None else comment["xml"] or comment["block"] or comment["lines"] or ""
        lines = textwrap.dedent(_COMMENT_MARK.sub("", printable(text))).strip().splitlines()
        if _LICENCE.search(text):
            found[tuple(line.rstrip() for line in lines)] += 1
    return next((lines for lines, _ in found.most_common(1)), ())


# Messages of package clients, compilers and interpreters about missing packages.
_LACKS = late_pattern(
    r"No module named|ModuleNotFoundError|ImportError"
    r"|Cannot find (?:module|package)|ERR_MODULE_NOT_FOUND"
    r"|no required module provides|missing go\.sum entry|cannot find module providing"
    r"|no matching package named|failed to (?:get|download|load source)|can't find crate"
    r"|Could not (?:resolve|transfer|find) |Cannot access |command not found|: not found"
    # Clients that try to fetch it now, without name resolution.
    r"|EAI_AGAIN|ENOTFOUND|name resolution|ould(?: not|n't) resolve host|dns error|dial tcp: lookup|UnknownHost"
)
_NOTHING_RAN = frozenset({"collection_error", "command_not_found", "no_report", "no_tests_ran"})


def lacks_packages(reason: str, output: str) -> bool:
    """Return whether a failed check seems to lack installable packages, by its `reason` and output."""
    return could_not_run(reason) or bool(_LACKS.search(output))


def could_not_run(reason: str) -> bool:
    """Return whether a check that failed for `reason` never ran the tested code."""
    return reason in _NOTHING_RAN


def detect_setups(reader: TreeReader, tree: str, directory: str = "") -> tuple[str, ...]:
    """Return commands that may install the packages for a directory's tests, the most complete one first.

    Later ones leave out parts that often fail: requirements of the documentation, those that contradict each
    other, a lock that does not fit, a client that this machine lacks.
    """
    stack = Stack(reader, tree, directory)
    node = _locked_installs(stack)
    for place in above(directory) if not node and stack.has("package.json") else ():
        root = Stack(reader, tree, place)
        # A workspace member: it uses the lock of its root.
        if "workspaces" in root.json("package.json") or root.has("pnpm-workspace.yaml"):
            up = "/".join(".." for _ in directory[len(place) :].strip("/").split("/"))
            node = [f"(cd {up} && {command})" for command in _locked_installs(root) or ["npm install"]]
            break
    if not node and {"dependencies", "devDependencies"} & set(stack.json("package.json")):
        node = ["npm install"]
    kinds = [pip_commands(stack), node, *([command] for path, command in _FETCHES if stack.has(path))]
    found = [kind for kind in kinds if kind]
    tries = range(max(map(len, found), default=0))
    # The kinds are independent: a kind without further variants repeats its last one.
    return tuple(" && ".join(kind[min(number, len(kind) - 1)] for kind in found) for number in tries)


def find_new_packages(changes: Iterable[Change], reader: TreeReader, directory: str = "") -> tuple[str, ...]:
    """Return the files in which a tree requires packages, or versions, that the base does not require.

    Only files of the project in a directory count: those below it, or those of a workspace that contains it.
    """
    places = frozenset((directory, *above(directory)))
    own = f"{directory}/" if directory else ""

    def is_ours(path: str) -> bool:
        return path.startswith(own) or posixpath.dirname(path) in places

    return _dependencies.find_new_packages(changes, reader, is_ours)


def leave_out_unread_requirements(
    paths: Iterable[str], reader: TreeReader, trees: Iterable[str], directory: str, setup: str
) -> tuple[str, ...]:
    """Return the paths without requirements files that `setup`, run in a directory, reads in no tree."""
    known = tuple(trees)
    return tuple(
        path
        for path in paths
        if not all(ignores_requirements(reader, tree, directory, setup, path) for tree in known)
    )


def _locked_installs(stack: Stack) -> list[str]:
    command = next((command for lock, command in _NODE_INSTALLS.items() if stack.has(lock)), None)
    if command is None:
        return []
    client = command.partition(" ")[0]
    # A client that does not come with node is installed from the registry; checks' scripts call it too.
    install = f"npm install --silent --global --prefix {NODE_PROGRAMS} {_NODE_CLIENTS.get(client)} && {command}"
    return [command, *([install] if client in _NODE_CLIENTS else []), "npm install --no-package-lock"]
