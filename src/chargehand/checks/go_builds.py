"""Finds Go files for other machines: go opens each file of a package to see its constraints, and skips those."""

from __future__ import annotations

import ast
import os
import posixpath
import re
from collections.abc import Iterable

from chargehand.checks.paths import language_of
from chargehand.checks.trees import TreeReader, text_of
from chargehand.core.text import late_pattern, parse_python

_SYSTEMS = frozenset({
    "aix", "android", "darwin", "dragonfly", "freebsd", "illumos", "ios", "js", "linux", "netbsd", "openbsd",
    "plan9", "solaris", "wasip1", "windows",
})  # fmt: skip
_PROCESSORS = frozenset({
    "386", "amd64", "arm", "arm64", "loong64", "mips", "mips64", "mips64le", "mipsle", "ppc64", "ppc64le",
    "riscv64", "s390x", "wasm",
})  # fmt: skip
_NEVER_SET = frozenset({"ignore", "never"})
_THEIR_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
_CONSTRAINT = late_pattern(r"^//go:build[ \t]+(.+)$", re.MULTILINE)
_PACKAGE = late_pattern(r"^package\b", re.MULTILINE)


def find_skipped(code: Iterable[str], reader: TreeReader, tree: str) -> frozenset[str]:
    """Return the files among `code` that go skips on this machine, by their names and their constraints.

    Tags that a check may set are unknown here: a file that needs one counts as compiled.
    """
    here = {"linux", "unix", _THEIR_NAMES.get(os.uname().machine, os.uname().machine)}
    absent = (_SYSTEMS | _PROCESSORS | _NEVER_SET) - here
    skipped = set[str]()
    for path in code:
        entry = reader.lookup(tree, path) if language_of(path) == "go" else None
        if entry is None:
            continue
        _, *tags = posixpath.basename(path).removesuffix(".go").removesuffix("_test").split("_")
        *before, last = tags or [""]
        # `x_windows_amd64.go` is for both; an unknown word in front of them is part of the name.
        named = {last} | set(before[-1:] if last in _PROCESSORS else ()) & _SYSTEMS
        constraint = _CONSTRAINT.search(_PACKAGE.split(text_of(reader, *entry) or "", maxsplit=1)[0])
        if named & (absent - _NEVER_SET) or (
            constraint is not None and _holds(constraint[1], present=here, absent=absent) is False
        ):
            skipped.add(path)
    return frozenset(skipped)


def _holds(constraint: str, *, present: Iterable[str], absent: Iterable[str]) -> bool | None:
    """Return whether a build constraint holds, `None` if that depends on unknown tags."""
    known = {**dict.fromkeys(present, "True"), **dict.fromkeys(absent, "False")}
    words = re.sub(r"[\w.]+", lambda word: known.get(word[0], "None"), constraint.partition("//")[0])
    python = words.replace("&&", " and ").replace("||", " or ").replace("!", " not ")

    def value(node: ast.expr) -> bool | None:
        match node:
            case ast.Constant(value=bool() as said):
                return said
            case ast.UnaryOp(operand=operand):
                inner = value(operand)
                return None if inner is None else not inner
            case ast.BoolOp(op=op, values=values):
                decides, found = isinstance(op, ast.Or), {value(each) for each in values}
                return decides if decides in found else None if None in found else not decides
        return None

    try:
        match parse_python(f"({python})").body:
            case [ast.Expr(value=node)]:
                return value(node)
    except (SyntaxError, RecursionError):
        pass
    return None
