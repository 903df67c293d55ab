"""The table of test runners, and the lookup of the runner that a command starts."""

from __future__ import annotations

import itertools
import re
import shlex

from chargehand.checks.runners.base import Runner
from chargehand.checks.runners.cargo import CargoTest
from chargehand.checks.runners.go import GoTest
from chargehand.checks.runners.node import NodeTest
from chargehand.checks.runners.other import Maven, OtherProgram
from chargehand.checks.runners.python import Pytest, Unittest
from chargehand.core.text import late_pattern

# In the order in which checks are detected.
RUNNERS: tuple[Runner, ...] = (Pytest(), Unittest(), NodeTest(), CargoTest(), GoTest(), Maven(), OtherProgram())
_OTHER = RUNNERS[-1]

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
            pairs = set(itertools.pairwise(words))
            started = [runner for runner in RUNNERS if ("-m", runner.module) in pairs]
            if not started:
                program, arguments = _split_program(words)
                started = [runner for runner in RUNNERS if runner.is_started_by(program, arguments)]
            if started and not is_operator:
                return started[0]
    return _OTHER


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
