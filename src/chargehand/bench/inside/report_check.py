"""Validators that read the report of programs in the solution's sandbox.

`report_check.py tests NAMES.json`: runs pytest there on `files`, and accepts if every test of `names` is reported
as passed. `report_check.py reward SCRIPT LOGS`: runs a script there, and accepts if it left a reward of 1 in LOGS.
Both reports are made by processes that a hostile solution can reach; their absence is a failure.

Standard library only, and no import of the package: the sandbox contains only this file.
"""

from __future__ import annotations

import json
import subprocess
import sys

_PYTEST = ("python3", "-m", "pytest", "-rA", "--tb=no", "-q", "-p", "no:cacheprovider", "--color=no")


def _run(*words: str) -> tuple[int, str]:
    done = subprocess.run(["under-test", "--", *words], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout.decode("utf-8", "replace")


def check_tests(path: str) -> str:
    """Return why not all expected tests passed, empty if they did."""
    with open(path, encoding="utf-8") as file:
        wanted = json.load(file)
    code, said = _run(*_PYTEST, *wanted["files"])
    passed = {line.split(" ", 1)[1].strip() for line in said.splitlines() if line.startswith("PASSED ")}
    missing = [name for name in wanted["names"] if name not in passed]
    return f"pytest ended with {code}; not passed: {', '.join(missing[:5])}" if missing else ""


def check_reward(script: str, logs: str) -> str:
    """Return why a script gave no reward of 1, empty if it did."""
    code, said = _run("bash", script)
    for name in ("reward.txt", "reward.json"):
        found, text = _run("cat", f"{logs}/{name}")
        if found:
            continue
        try:
            value = json.loads(text)
            value = value.get("reward", min(value.values())) if isinstance(value, dict) else value
            return "" if float(value) >= 1 else f"the reward is {value}"
        except (ValueError, TypeError):
            return f"the reward cannot be read: {text[:200]!r}"
    return f"the script ended with {code} and left no reward: {said[-500:]}"


def main() -> int:
    """Judge as the arguments say; return the exit code."""
    kind, *words = sys.argv[1:]
    problem = check_tests(*words) if kind == "tests" else check_reward(*words)
    print(problem or "passed")  # noqa: T201 - the output is the report
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
