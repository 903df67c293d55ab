"""Reads a suite of problems in any of the known forms."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from chargehand.bench.forms.directories import PROBLEM_FILE, load_directory
from chargehand.bench.forms.files import suite_error
from chargehand.bench.records import FORMS, BenchProblem, BenchSuite, Files, Form
from chargehand.core.errors import nearest

_LINES = (".jsonl", ".jsonl.gz", ".json")


def load_suite(path: Path, *, form: str | None = None, clones: Path | None = None) -> BenchSuite:
    """Read a suite; its form is detected unless it is given.

    `clones` has the repositories of a suite in the form of SWE-bench. Raises `UsageError` (`suite_invalid`).
    """
    if not path.exists():
        raise suite_error(f"there is no suite at {str(path)!r}", "name a directory or a .jsonl file")
    form = form or _detect(path)
    problems = tuple(map(_refuse_faults, _load(path, form, clones)))
    if not problems:
        raise suite_error(f"{str(path)!r} has no problems")
    ids = [each.id for each in problems]
    if doubled := sorted({each for each in ids if ids.count(each) > 1})[:3]:
        raise suite_error(f"{str(path)!r} names problems twice: {', '.join(doubled)}")
    name = path.resolve().name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")
    return BenchSuite(name=name, form=form, problems=problems, digest=digest_problems(problems))


def _refuse_faults(problem: BenchProblem) -> BenchProblem:
    """Return the problem, as unsupported if no mission could begin on it."""
    reason = ""
    if not problem.request.strip():
        reason = "it has no request"
    elif problem.seconds is not None and not problem.seconds > 0:
        reason = f"its time limit is {problem.seconds:g} seconds"
    return msgspec.structs.replace(problem, unsupported=problem.unsupported or reason)


def select_problems(suite: BenchSuite, ids: tuple[str, ...] = (), limit: int | None = None) -> BenchSuite:
    """Return the suite with the named problems only, at most `limit`; raise `UsageError` for an unknown id."""
    known = {each.id for each in suite.problems}
    if missing := [each for each in ids if each not in known]:
        raise suite_error(f"the suite {suite.name!r} has no problem {missing[0]!r}", nearest(missing[0], known))
    kept = tuple(each for each in suite.problems if not ids or each.id in ids)[:limit]
    return msgspec.structs.replace(suite, problems=kept)


def _load(path: Path, form: str, clones: Path | None) -> tuple[BenchProblem, ...]:
    match form:
        case "directory":
            return load_directory(path)
        case "humaneval":
            from chargehand.bench.forms.humaneval import load_humaneval

            return load_humaneval(path)
        case "swebench":
            from chargehand.bench.forms.swebench import load_swebench

            return load_swebench(path, clones)
        case "harbor":
            from chargehand.bench.forms.harbor import load_harbor

            return load_harbor(path)
    raise suite_error(f"there is no form {form!r}", f"one of {', '.join(FORMS)}")


def _detect(path: Path) -> Form:
    if path.is_dir():
        if next(path.rglob(PROBLEM_FILE), None) is not None:
            return "directory"
        if next(path.rglob("task.toml"), None) is not None:
            return "harbor"
        raise suite_error(f"{str(path)!r} has neither {PROBLEM_FILE} nor task.toml")
    if not path.name.endswith(_LINES):
        raise suite_error(f"{str(path)!r} has no known form", f"give --form: {', '.join(FORMS)}")
    from chargehand.bench.forms.humaneval import read_lines

    if path.suffix != ".json":
        for _, value in read_lines(path):
            return "swebench" if isinstance(value, dict) and "base_commit" in value else "humaneval"
    return "swebench"


def digest_problems(problems: tuple[BenchProblem, ...]) -> str:
    """Return a hex SHA-256 of everything in these problems."""
    digest = hashlib.sha256()

    def add(*parts: object) -> None:
        digest.update(repr(parts).encode("utf-8", "surrogateescape") + b"\n")

    def add_files(name: str, files: Files | None) -> None:
        for path, file in sorted((files or {}).items()):
            add(name, path, file and (hashlib.sha256(file[0]).hexdigest(), file[1]))

    for each in problems:
        add(each.id, each.request, each.commit, each.checks, each.seconds, each.unsupported)
        add_files("file", each.files)
        add(each.gold is not None, each.gold_script)
        add_files("gold", each.gold)
        if each.validator is not None:
            add(each.validator.command, each.validator.seconds)
            add_files("validator", each.validator.files)
            add_files("over", each.validator.over)
    return digest.hexdigest()
