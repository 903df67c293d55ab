"""Suites as directories: one folder with a `problem.toml` for each problem."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from chargehand.bench.forms.files import apply_patch, read_directory, run_git, suite_error
from chargehand.bench.records import BenchProblem, BenchValidator, Files
from chargehand.core.codec import convert_to

PROBLEM_FILE = "problem.toml"


class _ValidatorKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: str
    seconds: float = 30.0
    reports: bool = False


class _ProblemKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of `problem.toml`."""

    request: str
    validator: _ValidatorKeys | None = None
    checks: tuple[str, ...] | None = None
    repository: str = ""
    base: str = "HEAD"
    seconds: float | None = None


def load_directory(root: Path) -> tuple[BenchProblem, ...]:
    """Return the problems of a suite, sorted by id (the folder's path); raise `UsageError` (`suite_invalid`)."""
    return tuple(load_problem(path.parent, root) for path in sorted(root.rglob(PROBLEM_FILE)))


def load_problem(place: Path, root: Path) -> BenchProblem:
    """Return the problem of one folder."""
    file = place / PROBLEM_FILE
    try:
        keys = convert_to(tomllib.loads(file.read_text("utf-8")), _ProblemKeys)
    except (OSError, ValueError) as error:  # msgspec's and tomllib's errors too
        raise suite_error(f"{file}: {error}") from error
    if keys.checks == ():
        hint = "leave it out for the project's checks; for none write `checks = []` into its chargehand.toml"
        raise suite_error(f"{file}: checks = []", hint)
    files = read_directory(place / "project")
    repository, commit = "", ""
    if keys.repository:
        if files:
            raise suite_error(f"{file}: both `repository` and the folder `project`", "leave out one of them")
        source = (place / keys.repository).resolve()
        commit = run_git(source, "rev-parse", "--verify", f"{keys.base}^{{commit}}").decode().strip()
        repository = str(source)
    elif not files:
        raise suite_error(f"{file}: no files to work on", "add the folder `project`, or the key `repository`")
    validator = None
    if keys.validator is not None:
        if not 0 < keys.validator.seconds <= 3600:
            raise suite_error(f"{file}: validator.seconds = {keys.validator.seconds:g}", "give 1 to 3600 seconds")
        validator = BenchValidator(
            command=keys.validator.command,
            seconds=keys.validator.seconds,
            files=read_directory(place / "validator"),
            over=read_directory(place / "over"),
            reports=keys.validator.reports,
        )
    return BenchProblem(
        id=place.relative_to(root).as_posix(),
        request=keys.request,
        files=files,
        repository=repository,
        commit=commit,
        checks=keys.checks,
        validator=validator,
        gold=_gold(place, repository, commit),
        seconds=keys.seconds,
    )


def _gold(place: Path, repository: str, commit: str) -> Files | None:
    patch = place / "gold.patch"
    if patch.is_file():
        if not repository:
            raise suite_error(f"{patch}: the problem has no repository", "put the changed files into `gold`")
        return apply_patch(Path(repository), commit, patch.read_bytes())
    return read_directory(place / "gold") or None
