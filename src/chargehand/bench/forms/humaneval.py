"""Suites in the form of HumanEval: one Python function per line of a JSON Lines file."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from chargehand.bench.forms.files import suite_error
from chargehand.bench.inside import function_check
from chargehand.bench.records import BenchProblem, BenchValidator
from chargehand.core.codec import convert_to

_MODULE = "solution"
_PROGRAM, _TASK = ".validator/function_check.py", ".validator/task.json"
_REQUEST = (
    "Complete the function `{name}` in {module}.py so that it does what its docstring says. Keep its name and its "
    "parameters, and change no other file."
)


class _HumanEvalLine(msgspec.Struct, frozen=True):
    task_id: str
    prompt: str
    entry_point: str
    test: str
    canonical_solution: str = ""


def read_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each line of a `.jsonl` or `.jsonl.gz` file. Raises `UsageError`."""
    number = 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, json.loads(line)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        hint = "name a file of JSON Lines, also compressed with gzip"
        raise suite_error(f"{path}: line {number} cannot be read: {error}", hint) from error


def load_humaneval(path: Path) -> tuple[BenchProblem, ...]:
    """Return the problems of a file; raise `UsageError` (`suite_invalid`)."""
    problems = []
    for number, value in read_lines(path):
        try:
            problems.append(_problem(convert_to(value, _HumanEvalLine)))
        except ValueError as error:  # msgspec's errors, and texts that are not Unicode
            raise suite_error(f"{path}: line {number}: {error}") from error
    return tuple(problems)


def _problem(line: _HumanEvalLine) -> BenchProblem:
    gold = line.prompt + line.canonical_solution if line.canonical_solution else ""
    task: dict[str, object] = {
        "entry_point": line.entry_point,
        "module": _MODULE,
        # A test may call helpers of the prompt, or the function itself for an expected value.
        "reference": gold or line.prompt,
        "test": line.test,
        "known": bool(gold),
    }
    file = f"{_MODULE}.py"
    return BenchProblem(
        id=line.task_id,
        request=_REQUEST.format(name=line.entry_point, module=_MODULE),
        files={file: (line.prompt.encode(), False)},
        checks=(f"python3 -c 'import {_MODULE}'",),
        validator=BenchValidator(
            command=f"python3 -I {_PROGRAM} {_TASK}",
            files={
                _PROGRAM: (Path(function_check.__file__).read_bytes(), False),
                _TASK: (json.dumps(task).encode(), False),
            },
        ),
        gold={file: (gold.encode(), False)} if gold else None,
    )
