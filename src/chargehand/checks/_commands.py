"""Which test runner a shell line starts, so that its way of saying "no test ran" can be heard."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from typing import Literal

Runner = Literal["pytest", "unittest", "cargo", "go", "node", "plain"]

_WRAPPERS = frozenset(
    {
        "uv",
        "run",
        "uvx",
        "poetry",
        "pdm",
        "hatch",
        "pipenv",
        "rye",
        "pixi",
        "time",
        "exec",
        "env",
        "command",
        "nice",
    }
    | {"timeout", "xvfb-run", "npx", "pnpm", "yarn", "bunx", "then", "do", "else", "!", "{", "if"}
)
_TAKE_VALUES = frozenset(
    {
        "--with",
        "-w",
        "--package",
        "--extra",
        "--group",
        "--only-group",
        "--python",
        "-p",
        "--project",
        "--directory",
    }
    | {"--env-file", "--index", "-u", "-k", "-s", "-n"}
)
_PYTESTS = frozenset({"pytest", "py.test"})
_NODE_RUNNERS = frozenset({"jest", "vitest", "mocha", "ava", "tap"})
_ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)
_OPERATORS = re.compile(r"[;&|()<>]+")


def runner_of(command: str) -> Runner:
    """Return the first test runner that a shell line starts, `plain` where none is known."""
    for words in _simple_commands(command):
        runner = _runner(words)
        if runner is not None:
            return runner
    return "plain"


def _simple_commands(command: str) -> Iterator[list[str]]:
    for line in command.replace("\\\n", " ").split("\n"):
        words: list[str] = []
        for word in _words(line):
            if _OPERATORS.fullmatch(word):
                yield words
                words = []
            else:
                words.append(word)
        yield words


def _words(line: str) -> list[str]:
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        return list(lexer)
    except ValueError:
        return line.split()


def _runner(words: list[str]) -> Runner | None:
    pairs = set(itertools.pairwise(words))
    if ("-m", "pytest") in pairs:
        return "pytest"
    if ("-m", "unittest") in pairs:
        return "unittest"
    program, arguments = _program(words)
    if program in _PYTESTS:
        return "pytest"
    tasks = [word for word in arguments if not word.startswith(("-", "+"))]
    if program in {"cargo", "go"} and tasks[:1] == ["test"]:
        return "cargo" if program == "cargo" else "go"
    return "node" if _is_node(program, arguments, tasks) else None


def _is_node(program: str, arguments: list[str], tasks: list[str]) -> bool:
    if program in _NODE_RUNNERS or (program == "node" and "--test" in arguments):
        return True
    return program in {"npm", "bun"} and (tasks[:1] in (["test"], ["t"]) or tasks[:2] == ["run", "test"])


def _program(words: list[str]) -> tuple[str, list[str]]:
    """Return the program's base name and its arguments; wrappers and assignments before it do not count."""
    previous = ""
    for index, word in enumerate(words):
        if word in {"pnpm", "yarn"} and words[index + 1 :][:1] == ["test"]:
            return "npm", words[index + 1 :]
        if previous not in _TAKE_VALUES and not _passed_over(word):
            return word.rpartition("/")[2], words[index + 1 :]
        previous = word
    return "", []


def _passed_over(word: str) -> bool:
    return word in _WRAPPERS or word.startswith("-") or word.isdecimal() or bool(_ASSIGNMENT.fullmatch(word))
