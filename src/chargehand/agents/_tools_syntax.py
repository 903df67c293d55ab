"""A look at what was just written: does it parse? Nothing of it is ever run."""

from __future__ import annotations

import ast
import json
import sys
import tomllib
import warnings

_LARGEST = 200_000
_WITH_COMMENTS = ("tsconfig", "jsconfig", ".eslintrc", "devcontainer", "settings", "launch", "tasks")


def syntax_line(path: str, data: bytes) -> str | None:
    """Return "syntax: ok", or the error with its line; None for files that are not looked at."""
    if len(data) > _LARGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _checked(path, data)
    except SyntaxError as error:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return f"syntax: {error.msg} at line {error.lineno or '?'} (as Python {version} reads it)"
    except json.JSONDecodeError as error:
        return f"syntax: {error.msg} at line {error.lineno}, column {error.colno}"
    except (ValueError, RecursionError, MemoryError) as error:  # TOML errors, wrong encodings, too deep nesting
        return f"syntax: {str(error)[:200] or 'too deeply nested to check'}"


def _checked(path: str, data: bytes) -> str | None:
    name = path.rpartition("/")[2]
    if name.endswith((".py", ".pyi")):
        ast.parse(data)
    elif name.endswith(".toml"):
        tomllib.loads(data.decode())
    elif name.endswith(".json") and not name.startswith(_WITH_COMMENTS):
        json.loads(data)
    else:
        return None
    return "syntax: ok"
