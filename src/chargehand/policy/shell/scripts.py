"""Finds the lines for a shell in script files, Makefiles and package scripts."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from chargehand.core.text import late_pattern
from chargehand.policy.shell.programs import positionals
from chargehand.policy.shell.wrappers import SHELLS, Argv

# In the order in which make looks for them.
MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
_RUNNERS = frozenset({"npm", "pnpm", "yarn", "bun"})
_RUN = frozenset({"run", "run-script"})
_OWN_NAMES = frozenset({"test", "start", "stop", "restart"})
_DIRECTORY = {
    "make": ("-C", "--directory"),
    "npm": ("-C", "--prefix"),
    "pnpm": ("-C", "--dir"),
    "yarn": ("--cwd",),
    "bun": ("--cwd",),
}
_MAKE_VALUED = "-f --file --makefile -C --directory -I -o -W"
_RULE = late_pattern(r"([^\s#:=][^:=#]*)::?(?!=)([^;]*);?(.*)")
_ASSIGNMENT = late_pattern(r"(?:export\s+|override\s+)*([\w.-]+)\s*(?::{0,3}|[?+])=\s*(.*)")
_REFERENCE = late_pattern(r"\$(?:\(([\w.-]+)\)|\{([\w.-]+)\}|\((shell) )|\$(.)")
_IMPLICIT = {"CC": "cc", "CXX": "g++", "MAKE": "make", "RM": "rm -f", "AR": "ar", "LD": "ld", "CURDIR": "."}
# Stands for text that is only known at run time.
_UNKNOWN = "$1"
_DEEPEST = 5
_MOST_RULES = 100
_LONGEST = 20_000


class Line(Struct, frozen=True, kw_only=True):
    """Text for a shell; `number` is its first line in the file."""

    text: str
    number: int


class ScriptTask(Struct, frozen=True, kw_only=True):
    """The tasks to run from a file that lists tasks: the first existing one of `files`, relative to `directory`.

    `directory` is the working directory of the lines, `None` if unknown.
    """

    files: tuple[str, ...]
    directory: str | None
    names: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


def shell_script(text: str) -> bool:
    """Return whether a shell would run a file's text: by its first line, or if it has no `#!` line."""
    if "\0" in text:
        return False
    first = text.partition("\n")[0]
    if not first.startswith("#!"):
        return True
    words = [word for word in first[2:].split() if not word.startswith("-")]
    names = [posixpath.basename(word) for word in words if "=" not in word]
    if names[:1] == ["env"]:
        names = names[1:]
    return bool(names) and names[0] in SHELLS


def task_of(program: str, words: Argv) -> ScriptTask | None:
    """Return the task that `make` or a package manager of Node runs, `None` for other programs and commands."""
    if program in _RUNNERS:
        given = positionals(words, " ".join((*_DIRECTORY[program], "-w --workspace -F --filter")))
        if given[:1] and given[0] in _RUN:
            given = given[1:]
        elif program in ("npm", "bun") and not (given[:1] and given[0] in _OWN_NAMES):
            return None
        if not given or given[0] is None:
            return None
        name = given[0]
        return ScriptTask(
            files=("package.json",),
            directory=_directory(program, words),
            names=(f"pre{name}", name, f"post{name}"),
        )
    if program not in ("make", "gmake"):
        return None
    named = _option(words, ("-f", "--file", "--makefile"))
    plain = [word for word in positionals(words, _MAKE_VALUED) if word is not None]
    return ScriptTask(
        files=(named,) if named else MAKEFILES,
        directory=_directory("make", words),
        names=tuple(word for word in plain if "=" not in word),
        variables=dict(word.split("=", 1) for word in plain if "=" in word),
    )


def lines_of(task: ScriptTask, text: str) -> tuple[Line, ...]:
    """Return the lines for a shell that a task runs of its file."""
    if task.files != ("package.json",):
        return _Makefile.parse(text).lines_of(task)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    scripts = document.get("scripts") if isinstance(document, dict) else None
    if not isinstance(scripts, dict):
        return ()
    found = []
    for name in task.names:
        if isinstance(scripts.get(name), str):
            at = text.find(f'"{name}"', max(text.find('"scripts"'), 0))
            found.append(Line(text=scripts[name], number=text.count("\n", 0, at) + 1 if at >= 0 else 1))
    return tuple(found)


# --- Makefiles


class _Makefile(Struct):
    variables: dict[str, str] = field(default_factory=dict)
    needs: dict[str, list[str]] = field(default_factory=dict)
    recipes: dict[str, list[Line]] = field(default_factory=dict)
    first: str | None = None

    @classmethod
    def parse(cls, text: str) -> _Makefile:
        """Return a parsed Makefile."""
        makefile = cls()
        targets = [""]
        number = 0
        lines = text.split("\n")
        while number < len(lines):
            start, line = number + 1, lines[number]
            while line.endswith("\\") and number + 1 < len(lines):
                number += 1
                line = f"{line}\n{lines[number]}"
            number += 1
            if line.startswith("\t"):
                for target in targets:
                    makefile.add_recipe(target, line[1:].replace("\n\t", "\n"), start)
            elif line.strip() and not line.lstrip().startswith("#"):
                targets = makefile.add_statement(line.replace("\\\n", " ").strip(), start)
        return makefile

    def lines_of(self, task: ScriptTask) -> tuple[Line, ...]:
        """Return the recipes of the goals and of all that they need; text that make generates is unknown."""
        variables = {**_IMPLICIT, **self.variables, **task.variables}
        waiting = list(task.names) or ([self.first] if self.first else [])
        reached: dict[str, None] = {}
        while waiting and len(reached) < _MOST_RULES:
            name = waiting.pop(0)
            if name not in reached and (name in self.needs or name in self.recipes):
                reached[name] = None
                waiting += self.needs.get(name, [])
        found = [line for name in reached for line in self.recipes.get(name, [])]
        return tuple(Line(text=_expand(line.text, variables), number=line.number) for line in found)

    def add_statement(self, line: str, number: int) -> list[str]:
        """Add one line that is not a recipe; return the targets whose recipe follows."""
        assigned = _ASSIGNMENT.fullmatch(line)
        if assigned is not None:
            self.variables[assigned[1]] = assigned[2]
            return []
        rule = _RULE.fullmatch(line)
        if rule is None:
            return []
        targets = rule[1].split()
        for target in targets:
            self.needs.setdefault(target, []).extend(rule[2].replace("|", " ").split())
            if self.first is None and not target.startswith("."):
                self.first = target
            if rule[3].strip():
                self.add_recipe(target, rule[3], number)
        return targets

    def add_recipe(self, target: str, line: str, number: int) -> None:
        """Add a line to a target's recipe, without the `@`, `-` and `+` that make removes before running it."""
        text = line.lstrip(" \t@+-")
        if text:
            self.recipes.setdefault(target, []).append(Line(text=text, number=number))


def _expand(text: str, variables: Mapping[str, str], depth: int = 0) -> str:
    """Return a line as make gives it to a shell, with `$1` for everything unknown."""

    def one(found: re.Match[str]) -> str:
        if found[3]:  # $(shell …) is run as well
            return "$("
        if found[4] is not None:
            return "$" if found[4] == "$" else "$(" if found[4] == "(" else _UNKNOWN
        value = variables.get(found[1] or found[2])
        known = value is not None and depth < _DEEPEST and len(text) < _LONGEST
        return _expand(value, variables, depth + 1) if known and value is not None else _UNKNOWN

    return _REFERENCE.sub(one, text)


# --- words


def _directory(program: str, words: Argv) -> str | None:
    """Return the directory that an option names, "." without the option, `None` if unknown."""
    options = _DIRECTORY[program]
    if any(word is None for word in words):
        return None if any(word in options for word in words) else "."
    return _option(words, options) or "."


def _option(words: Argv, names: Sequence[str]) -> str | None:
    for index, word in enumerate(words):
        if word in names:
            return words[index + 1] if index + 1 < len(words) else None
        for name in names:
            if word is not None and word.startswith(f"{name}=" if name.startswith("--") else name):
                return word.removeprefix(name).removeprefix("=")
    return None
