"""Pinned versions of programs that a forge or a git hook runs: actions of GitHub, repositories of pre-commit."""

from __future__ import annotations

import posixpath
import re

from chargehand.checks.trees import TreeReader, new_text, old_text
from chargehand.core.records import Change
from chargehand.core.text import late_pattern

_WORKFLOW = late_pattern(r"(?:.*/)?\.(?:github|gitea|forgejo)/workflows/[^/]+\.ya?ml")
_HOOKS = frozenset({".pre-commit-config.yaml", ".pre-commit-config.yml"})
# A digest does not show its age, and GitHub also resolves a fork's digest: only versions can be compared.
_VERSION = r"(?P<version>v?\d+(?:\.\d+){0,3})(?P<tail>['\"]?\s*)"
_ACTION = late_pattern(rf"(?P<head>\s*(?:-\s+)?uses:\s*['\"]?\w[\w.-]*/[\w./-]+@){_VERSION}")
_REVISION = late_pattern(rf"(?P<head>\s*rev:\s*['\"]?){_VERSION}")


def is_workflow(path: str) -> bool:
    """Return whether a path is a GitHub, Gitea or Forgejo workflow."""
    return bool(_WORKFLOW.fullmatch(path))


def only_moves_pins(change: Change, reader: TreeReader) -> bool:
    """Return whether a change only moves pins to newer versions of the same programs."""
    if is_workflow(change.path):
        pattern = _ACTION
    elif posixpath.basename(change.path) in _HOOKS:
        pattern = _REVISION
    else:
        return False
    old, new = old_text(reader, change), new_text(reader, change)
    if old is None or new is None or change.old_mode != change.new_mode:
        return False
    before, after = old.split("\n"), new.split("\n")
    return len(before) == len(after) and all(
        one == other or _is_newer(pattern, one, other) for one, other in zip(before, after, strict=True)
    )


def _is_newer(pattern: re.Pattern[str], old: str, new: str) -> bool:
    before, after = pattern.fullmatch(old), pattern.fullmatch(new)
    if before is None or after is None:
        return False
    same = (before["head"], before["tail"]) == (after["head"], after["tail"])
    return same and _numbers(before["version"]) <= _numbers(after["version"])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.removeprefix("v").split(".")))
