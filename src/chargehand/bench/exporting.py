"""Runs and suites in the forms of other programs: logs of Inspect, tasks of Harbor."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from chargehand.bench.comparison import summarize
from chargehand.bench.forms.harbor import require_exportable
from chargehand.bench.records import BenchProblem, BenchResult, BenchSuite, Files, RunHeader
from chargehand.core.errors import UsageError

_SCORER = "validator"
# In one container there is no second sandbox: the commands of a validator run on the solution's files directly.
_UNDER_TEST = """#!/bin/sh
cd /workspace || exit 125
while [ $# -gt 0 ]; do
    case $1 in
        --) shift; break ;;
        --cwd) cd "$2" || exit 126; shift 2 ;;
        --env) export "${2%%=*}=${2#*=}"; shift 2 ;;
        *) break ;;
    esac
done
exec "$@"
"""
_TEST = """#!/bin/bash
export PATH="/tests/programs:$PATH"
chmod +x /tests/programs/under-test
mkdir -p /logs/verifier /tmp/validator
cp -r /tests/base/. /tmp/validator
cp -r /tests/validator/. /tmp/validator
cp -r /tests/over/. /workspace
cd /tmp/validator || exit 1
if timeout {seconds:g} sh -c {command}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def inspect_log(header: RunHeader, results: Sequence[BenchResult], suite: BenchSuite) -> bytes:
    """Return the run as an evaluation log of Inspect (version 2, JSON); each trial is an epoch of its sample.

    The score is `C` for a solved trial and `I` for others; trials that ended with an error, or without a
    validator, have no score.
    """
    summary = summarize(header, results)
    requests = {each.id: each.request for each in suite.problems}
    metrics = {"accuracy": {"name": "accuracy", "value": summary.rate}} if summary.rate is not None else {}
    complete = summary.trials == summary.wanted
    log = {
        "version": 2,
        "status": "success" if complete else "cancelled",
        "eval": {
            "eval_id": header.id,
            "run_id": header.id,
            "created": header.created,
            "task": header.name,
            "task_id": header.name,
            "dataset": {
                "name": header.name,
                "location": header.suite,
                "samples": len(header.problems),
                "sample_ids": list(header.problems),
            },
            "model": summary.model or "none/none",
            "solver": summary.agent,
            "config": {"epochs": header.samples},
            "packages": {"chargehand": header.version},
            "metadata": {"suite_digest": header.digest, "seed": header.seed, "machine": header.machine},
        },
        "plan": {"name": "mission", "steps": [{"solver": summary.agent, "params": {}}]},
        "results": {
            "total_samples": summary.wanted,
            "completed_samples": summary.trials - summary.errors,
            "scores": [{"name": _SCORER, "scorer": _SCORER, "metrics": metrics}],
        },
        "stats": {
            "started_at": header.created,
            "completed_at": max((each.finished for each in results), default=""),
        },
        "samples": [_inspect_sample(each, requests.get(each.problem, "")) for each in results],
    }
    return msgspec.json.format(msgspec.json.encode(log))


def _inspect_sample(result: BenchResult, request: str) -> dict[str, Any]:
    sample: dict[str, Any] = {
        "id": result.problem,
        "epoch": result.sample + 1,
        "input": request,
        "target": "",
        "metadata": msgspec.to_builtins(result),
        "total_time": result.seconds,
        "completed_at": result.finished,
    }
    if result.outcome == "unvalidated":
        return sample
    if result.outcome == "error":
        return sample | {"error": {"message": result.message, "traceback": "", "traceback_ansi": ""}}
    value = "C" if result.outcome == "solved" else "I"
    return sample | {"scores": {_SCORER: {"value": value, "answer": result.tree, "explanation": result.message}}}


def write_harbor(suite: BenchSuite, place: Path) -> tuple[tuple[str, str], ...]:
    """Write the problems of a suite as tasks below a new directory; return those left out, with the reason.

    There a validator shares its container with the solution. Raises `UsageError` if the directory is not empty.
    """
    if place.exists() and any(place.iterdir()):
        raise UsageError(f"{str(place)!r} is not empty", hint="name a new directory")
    left_out, used = [], set[str]()
    for problem in suite.problems:
        try:
            require_exportable(problem)
        except UsageError as error:
            left_out.append((problem.id, error.message))
            continue
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", problem.id).strip("-.").lower() or "problem"
        names = (plain, *(f"{plain}-{number}" for number in range(2, len(suite.problems) + 2)))
        name = next(each for each in names if each not in used)
        used.add(name)
        _write_task(problem, place / name)
    return tuple(left_out)


def _write_task(problem: BenchProblem, place: Path) -> None:
    validator = problem.validator
    assert validator is not None
    name = json.dumps(f"chargehand/{place.name}")
    texts = {
        "task.toml": f'schema_version = "1.1"\n\n[task]\nname = {name}\n\n[verifier]\n'
        f"timeout_sec = {validator.seconds + 30:.1f}\n\n[agent]\ntimeout_sec = {problem.seconds or 1800:.1f}\n",
        "instruction.md": problem.request.rstrip() + "\n",
        "environment/Dockerfile": "FROM python:3.12-slim\nWORKDIR /workspace\nCOPY project /workspace\n",
        "tests/test.sh": _TEST.format(seconds=validator.seconds, command=shlex.quote(validator.command)),
        "tests/programs/under-test": _UNDER_TEST,
    }
    files: dict[str, tuple[bytes, bool] | None] = {
        path: (text.encode(), path.endswith((".sh", "under-test"))) for path, text in texts.items()
    }
    parts: list[tuple[str, Files]] = [
        ("environment/project", problem.files),
        ("tests/base", problem.files),
        ("tests/validator", validator.files),
        ("tests/over", validator.over),
    ]
    if problem.gold is not None:
        parts.append(("solution/files", problem.gold))
        # Beside its script, wherever Harbor puts the folder.
        solve = '#!/bin/bash\ncp -r "$(dirname "$0")/files/." /workspace\n'
        if problem.gold_script:
            solve += f"cd /workspace && {problem.gold_script}\n"
        files["solution/solve.sh"] = (solve.encode(), True)
    for folder, content in parts:
        files |= {f"{folder}/{path}": file for path, file in content.items()}
        (place / folder).mkdir(parents=True, exist_ok=True)
    for path, file in files.items():
        if file is not None:
            target = place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file[0])
            target.chmod(0o755 if file[1] else 0o644)
