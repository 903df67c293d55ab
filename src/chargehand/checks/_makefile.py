"""The part of a Makefile that the given targets run: enough to say whether a check's target changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

MAKEFILES = frozenset({"Makefile", "makefile", "GNUmakefile"})
_RULE = re.compile(r"([^\s#:=][^:=#]*)::?(?!=)(.*)")
_ASSIGNMENT = re.compile(r"(?:export\s+|override\s+)*([\w.-]+)\s*[:+?!]{0,3}=(.*)")
_REFERENCE = re.compile(r"\$[({]([\w.-]+)")
_INVOCATION = re.compile(r"(?:\bmake|\$[({]MAKE[)}])((?:[ \t]+[^\s;&|()]+)*)")
_ALWAYS = frozenset({"SHELL", ".SHELLFLAGS", "MAKEFLAGS", "PATH", "PYTHONPATH"})
_USUAL = frozenset({"test", "tests", "check"})


@dataclass(slots=True)
class _ParsedMakefile:
    """`rules` holds the lines below each target, recipes with their tab; `directives` what is neither rule nor
    assignment, such as `include` and `ifeq`: all of these count as used.
    """

    rules: dict[str, list[str]] = field(default_factory=dict)
    variables: dict[str, list[str]] = field(default_factory=dict)
    directives: list[str] = field(default_factory=list)
    first: str | None = None


def targets(source: str) -> frozenset[str]:
    """Return the names of all targets."""
    return frozenset(_parse(source).rules)


def used_part(source: str, commands: Sequence[str]) -> object:
    """Return what the commands' targets run, comparable by `==`; `test` and `check` always count as used."""
    makefile = _parse(source)
    goals = set(_USUAL)
    for command in commands:
        goals |= _goals(command, makefile.first)

    waiting, reached = sorted(goals), set[str]()
    while waiting:
        name = waiting.pop()
        if name in reached or name not in makefile.rules:
            continue
        reached.add(name)
        for line in makefile.rules[name]:
            # A recipe may call make for other targets; any other line of a rule lists what it needs.
            waiting += sorted(_goals(line, makefile.first)) if line.startswith("\t") else line.split()
    rules = sorted(reached)
    text = [line for name in rules for line in makefile.rules[name]] + makefile.directives
    # make itself, and the programs that it starts, read the first ones without a recipe that names them.
    names = [*_ALWAYS, *(name for line in text for name in _REFERENCE.findall(line))]
    used: dict[str, list[str]] = {}
    while names:
        name = names.pop()
        if name not in used and name in makefile.variables:
            used[name] = makefile.variables[name]
            names += [other for line in used[name] for other in _REFERENCE.findall(line)]
    return rules, text, used


def _goals(command: str, first: str | None) -> set[str]:
    goals: set[str] = set()
    for found in _INVOCATION.finditer(command):
        words = {word for word in found[1].split() if not word.startswith("-") and "=" not in word}
        goals |= words or ({first} if first else set())
    return goals


def _parse(source: str) -> _ParsedMakefile:
    makefile, names = _ParsedMakefile(), list[str]()
    for line in source.replace("\\\n", " ").split("\n"):
        if line.startswith("\t"):
            for name in names:
                makefile.rules[name].append(line.rstrip())
        elif not line.strip() or line.lstrip().startswith("#"):
            continue  # a recipe may go on behind an empty line or a comment
        elif found := _ASSIGNMENT.fullmatch(line.strip()):
            makefile.variables.setdefault(found[1], []).append(line.strip())
            names = []
        elif found := _RULE.fullmatch(line.rstrip()):
            names = found[1].split()
            for name in names:
                makefile.rules.setdefault(name, []).append(found[2].strip())
                if makefile.first is None and not name.startswith("."):
                    makefile.first = name
        else:
            makefile.directives.append(line.strip())
            names = []
    return makefile
