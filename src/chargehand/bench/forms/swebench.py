"""Suites in the form of SWE-bench: issues of repositories, of which clones are at hand. Nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from chargehand.bench.forms.files import apply_patch, run_git, suite_error
from chargehand.bench.forms.humaneval import read_lines
from chargehand.bench.inside import report_check
from chargehand.bench.records import BenchProblem, BenchValidator
from chargehand.core.codec import convert_to, decode_as
from chargehand.core.errors import UsageError

_PROGRAM, _NAMES = ".validator/report_check.py", ".validator/names.json"
_SECONDS = 1800.0


class _SweBenchRecord(msgspec.Struct, frozen=True):
    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    test_patch: str
    # Lists, or their JSON text as in the published tables.
    FAIL_TO_PASS: list[str] | str
    PASS_TO_PASS: list[str] | str = []
    patch: str = ""


def load_swebench(path: Path, clones: Path | None) -> tuple[BenchProblem, ...]:
    """Return the problems of a `.jsonl` file or a JSON list; raise `UsageError` (`suite_invalid`).

    The clone of `owner/name` is `owner__name`, `owner/name` or `name` below `clones`. A problem without a clone is
    unsupported, and so is one whose tests are not named as pytest names them.
    """
    values = _read_list(path) if path.suffix == ".json" else [value for _, value in read_lines(path)]
    problems = []
    for number, value in enumerate(values, 1):
        try:
            problems.append(_problem(convert_to(value, _SweBenchRecord), clones))
        except ValueError as error:  # msgspec's errors, and texts that are not Unicode
            raise suite_error(f"{path}: record {number}: {error}") from error
    return tuple(problems)


def _read_list(path: Path) -> list[Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise suite_error(f"{path}: {error}") from error
    if not isinstance(found, list):
        raise suite_error(f"{path}: not a list of records")
    return found


def _problem(record: _SweBenchRecord, clones: Path | None) -> BenchProblem:
    names = [*_names(record.FAIL_TO_PASS), *_names(record.PASS_TO_PASS)]
    clone = _find_clone(record.repo, clones)
    unsupported = ""
    if clone is None:
        unsupported = f"there is no clone of {record.repo} (--clones DIR)"
    elif not names or not all("::" in name for name in names):
        unsupported = "its tests are not named as pytest names them"
    if clone is None or unsupported:
        return BenchProblem(id=record.instance_id, request=record.problem_statement, unsupported=unsupported)
    try:
        commit = run_git(clone, "rev-parse", "--verify", f"{record.base_commit}^{{commit}}").decode().strip()
        tests = apply_patch(clone, commit, record.test_patch.encode())
        gold = apply_patch(clone, commit, record.patch.encode()) or None
    except UsageError as error:
        reason = f"its commit or patches do not fit the clone: {error.message}"
        return BenchProblem(id=record.instance_id, request=record.problem_statement, unsupported=reason)
    files = sorted({name.partition("::")[0] for name in names})
    wanted = json.dumps({"files": files, "names": names}).encode()
    return BenchProblem(
        id=record.instance_id,
        request=record.problem_statement,
        repository=str(clone.resolve()),
        commit=commit,
        validator=BenchValidator(
            command=f"python3 -I {_PROGRAM} tests {_NAMES}",
            seconds=_SECONDS,
            files={_PROGRAM: (Path(report_check.__file__).read_bytes(), False), _NAMES: (wanted, False)},
            over=tests,
            reports=True,
        ),
        gold=gold,
    )


def _names(value: list[str] | str) -> list[str]:
    return decode_as(value, list[str]) if isinstance(value, str) else value


def _find_clone(repo: str, clones: Path | None) -> Path | None:
    if clones is None:
        return None
    places = (clones / repo.replace("/", "__"), clones / repo, clones / repo.rpartition("/")[2])
    return next(
        (each for each in places if each.is_dir() and each.resolve().is_relative_to(clones.resolve())), None
    )
