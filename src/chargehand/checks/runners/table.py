"""The registered test runners, and the lookup of the runner that a command starts."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence

from chargehand.checks.runners.base import Runner
from chargehand.checks.runners.cargo import CargoTest
from chargehand.checks.runners.go import GoTest
from chargehand.checks.runners.node import NodeTest
from chargehand.checks.runners.other import Maven, OtherProgram
from chargehand.checks.runners.python import Pytest, Unittest
from chargehand.core.registry import Registry
from chargehand.core.text import late_pattern

# In the order in which checks are detected.
RUNNERS: Registry[Runner] = Registry("runners", "test runner")
_CLASSES = (Pytest, Unittest, NodeTest, CargoTest, GoTest, Maven, OtherProgram)
for _class in _CLASSES:
    RUNNERS.register(_class.name, _class, (_class.__doc__ or "").partition("\n")[0])
_OWN = tuple(RUNNERS.find(each.name) for each in _CLASSES)

# Words that may precede the program that a line actually runs.
_WRAPPERS = frozenset({
    "uv", "run", "uvx", "poetry", "pdm", "hatch", "pipenv", "rye", "pixi", "time", "exec", "env", "command",
    "nice", "timeout", "xvfb-run", "npx", "pnpm", "yarn", "bunx", "then", "do", "else", "!", "{", "if",
})  # fmt: skip
# Options of these wrappers that take the next word.
_VALUED_OPTIONS = frozenset({
    "--with", "-w", "--package", "--extra", "--group", "--only-group", "--python", "-p", "--project",
    "--directory", "--env-file", "--index", "-u", "-k", "-s", "-n",
})  # fmt: skip
_ASSIGNMENT = late_pattern(r"\w+=.*", re.DOTALL)
_OPERATORS = late_pattern(r"[;&|()<>]+")


def runner_of(command: str) -> Runner:
    """Return the first test runner that a shell line starts, or the one named `plain`."""
    for line in command.replace("\\\n", " ").split("\n"):
        try:
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            tokens = list(lexer)
        except ValueError:  # a quotation that continues in the next line
            tokens = line.split()
        for is_operator, group in itertools.groupby(tokens, lambda word: bool(_OPERATORS.fullmatch(word))):
            words = list(group)
            if not is_operator and (started := _find_started(words)):
                return started[0]
    return _OWN[-1]


def _find_started(words: list[str]) -> list[Runner]:
    pairs = set(itertools.pairwise(words))
    program, arguments = _split_program(words)

    def find_among(runners: Sequence[Runner]) -> list[Runner]:
        by_module = [runner for runner in runners if ("-m", runner.module) in pairs]
        return by_module or [runner for runner in runners if runner.is_started_by(program, arguments)]

    # Extensions last: a broken one must not affect commands of our own runners. It fails any other command, as
    # judging that by its exit code alone could accept a result that the extension would refuse.
    return find_among(_OWN) or find_among(
        [RUNNERS.find(name) for name in RUNNERS.names() if name not in RUNNERS.built_in()]
    )


def _split_program(words: list[str]) -> tuple[str, list[str]]:
    """Return the program's base name and its arguments, skipping wrappers and assignments before it."""
    previous = ""
    for index, word in enumerate(words):
        # Both run the script `test` without `run` before it, as npm does.
        if word in {"pnpm", "yarn"} and words[index + 1 :][:1] == ["test"]:
            return "npm", words[index + 1 :]
        is_before = word in _WRAPPERS or word.startswith("-") or word.isdecimal() or _ASSIGNMENT.fullmatch(word)
        if previous not in _VALUED_OPTIONS and not is_before:
            return word.rpartition("/")[2], words[index + 1 :]
        previous = word
    return "", []
