"""Validator of one Python function: calls it in another sandbox and compares its answers here.

Usage: `function_check.py TASK.json`, with the keys `entry_point`, `module`, `reference`, `test`, `known`. `test`
defines `check(candidate)`. Its calls go to the solution through `under-test`; only plain values come back, so that
no object of the solution takes part in a comparison. Other names that the test uses are those of `reference`,
which is trusted: a `known` solution, or else the code around the function.

Standard library only, and no import of the package: the sandbox contains only this file.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import subprocess
import sys
from typing import Any

_LAUNCH = ("under-test", "--", "python3", "-I", "-c")
_LONGEST_ANSWER = 16 << 20  # bytes

# Both sides: exact built-in types only. Numbers are texts, since JSON has neither infinities nor all integers.
CODEC = """
def encode(value):
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return {"int": hex(value)}
    if kind is float:
        return {"float": repr(value)}
    if kind is complex:
        return {"complex": [repr(value.real), repr(value.imag)]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind in (list, tuple, set, frozenset):
        return {kind.__name__: [encode(each) for each in value]}
    if kind is dict:
        return {"dict": [[encode(key), encode(each)] for key, each in value.items()]}
    raise TypeError("no plain value: " + kind.__name__)


def decode(value):
    if not isinstance(value, dict):
        return value
    (name, inner), = value.items()
    if name == "int":
        return int(inner, 16)
    if name == "float":
        return float(inner)
    if name == "complex":
        return complex(float(inner[0]), float(inner[1]))
    if name == "bytes":
        return bytes.fromhex(inner)
    if name == "dict":
        return {decode(key): decode(each) for key, each in inner}
    return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[name](map(decode, inner))
"""

# Runs in the sandbox of the solution. Nothing here decides: all of it may be replaced by the solution.
DRIVER = (
    "import json, os, sys\n"
    + CODEC
    + """
sys.set_int_max_str_digits(0)
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.path.insert(0, os.getcwd())
try:
    found = getattr(__import__(sys.argv[1]), sys.argv[2])
    problem = None
except Exception as error:
    problem = error
for line in sys.stdin:
    try:
        if problem is not None:
            raise problem
        words = decode(json.loads(line))
        answer = {"value": encode(found(*words["positional"], **words["named"]))}
    except Exception as error:
        answer = {"raised": type(error).__name__, "text": str(error)[:2000]}
    out.write(json.dumps(answer) + "\\n")
    out.flush()
"""
)

_codec: dict[str, Any] = {}
exec(CODEC, _codec)  # noqa: S102 - the text above


class TestedFunction:
    """The solution's function, called in its own sandbox.

    Raises a new built-in exception of the type that the solution raised, `RuntimeError` for other types.
    """

    def __init__(self, module: str, name: str, launch: tuple[str, ...] = _LAUNCH) -> None:
        self._process = subprocess.Popen(
            [*launch, DRIVER, module, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """Return the answer as plain values; raises `SystemExit` without an answer."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        request = json.dumps(_codec["encode"]({"positional": list(positional), "named": named}))
        try:
            process.stdin.write(request.encode() + b"\n")
            process.stdin.flush()
        except OSError:
            sys.exit("the solution's process ended before it answered")
        line = process.stdout.readline(_LONGEST_ANSWER)
        try:
            answer = json.loads(line)
            if "value" in answer:
                return _codec["decode"](answer["value"])
            name, text = str(answer["raised"]), str(answer["text"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            sys.exit("the solution gave no answer that can be read")
        found = getattr(builtins, name, None)
        if isinstance(found, type) and issubclass(found, Exception):
            with contextlib.suppress(TypeError):  # some need more arguments
                raise found(text)
        raise RuntimeError(f"{name}: {text}")

    def close(self) -> None:
        """End the solution's process."""
        self._process.kill()
        with contextlib.suppress(OSError), self._process:
            pass  # closes the streams, also one with a request that no one will read


def run(task: dict[str, Any], launch: tuple[str, ...] = _LAUNCH) -> str:
    """Run a task's test; return why the solution failed, empty if it passed."""
    names: dict[str, Any] = {"__name__": "reference"}
    candidate = TestedFunction(task["module"], task["entry_point"], launch)
    try:
        exec(task["reference"], names)  # noqa: S102 - part of the suite
        if not task["known"]:
            names[task["entry_point"]] = candidate
        exec(task["test"], names)  # noqa: S102 - part of the suite
        names["check"](candidate)
    except SystemExit as ended:
        return str(ended.code)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:2000]
    finally:
        candidate.close()
    return ""


def main() -> int:
    """Judge the task of the first argument; return the exit code."""
    with open(sys.argv[1], encoding="utf-8") as file:
        task = json.load(file)
    problem = run(task)
    print(problem or "passed")  # noqa: T201 - the output is the report
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
