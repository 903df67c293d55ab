"""What a model sees of a text: the region nearest to what it looked for, and what an edit changed."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_REGION_LINES = 20
_COMPARED_LINES = 4000
_LINE_SHOWN = 200
_DIFF_LINES = 60
_DIFF_BYTES = 400_000


@dataclass(frozen=True, slots=True)
class Region:
    """Lines of a text and the number of the first (from 1)."""

    first: int
    lines: tuple[str, ...]

    def __str__(self) -> str:
        shown = (f"{self.first + at:6}\t{_cut(line)}" for at, line in enumerate(self.lines[:_REGION_LINES]))
        return "\n".join(shown)


def nearest_region(lines: Sequence[str], wanted: Sequence[str]) -> Region | None:
    """Return the region of `lines` that is most like `wanted`, or None when nothing is."""
    start = _voted(lines, wanted)
    if start is None:
        start = _alike(lines, wanted)
    if start is None:
        return None
    start = max(0, min(start, len(lines) - 1))
    return Region(start + 1, tuple(lines[start : start + max(len(wanted), 1)]))


def _voted(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Each line that stands in both, white space aside, votes for a beginning; rare ones weigh more."""
    offsets: dict[str, list[int]] = {}
    for offset, line in enumerate(wanted[:_COMPARED_LINES]):
        if line.strip():
            offsets.setdefault(line.strip(), []).append(offset)
    found = [(at, line.strip()) for at, line in enumerate(lines) if line.strip() in offsets]
    common = Counter(text for _, text in found)
    votes: Counter[int] = Counter()
    for at, text in found:
        for offset in offsets[text][:_REGION_LINES]:
            votes[at - offset] += len(text) * 1000 // common[text]  # a brace is everywhere and tells little
    return max(votes, key=lambda start: (votes[start], -start)) if votes else None


def _alike(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Find the line most like the longest wanted one."""
    longest = max(range(len(wanted)), key=lambda at: len(wanted[at].strip()), default=0)
    target = wanted[longest].strip()[:_LINE_SHOWN] if wanted else ""
    stripped = [line.strip()[:_LINE_SHOWN] for line in lines[:_COMPARED_LINES]]
    close = difflib.get_close_matches(target, set(stripped), n=1, cutoff=0.5) if target else []
    return stripped.index(close[0]) - longest if close else None


def whitespace_hint(found: Sequence[str], wanted: Sequence[str]) -> str:
    """Return a sentence (with a space before it) when two regions differ in white space alone, else nothing."""
    if [line.split() for line in found] != [line.split() for line in wanted]:
        return ""
    tabs = [any(line.startswith("\t") for line in side) for side in (found, wanted)]
    if tabs[0] != tabs[1]:
        return f" Only the indentation differs: the file uses {'tabs' if tabs[0] else 'spaces'}."
    return " Only white space differs: copy the lines with their exact indentation."


def unified(old: str, new: str, path: str, *, context: int = 3) -> str:
    """Return what changed as a unified diff that is one to the letter, marks for missing line feeds included."""
    made = difflib.unified_diff(_lines(old), _lines(new), f"a/{path}", f"b/{path}", n=context)
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in made)


def change_shown(old: str, new: str, path: str) -> str:
    """Return a small diff for the model: the first lines of it, and how many follow."""
    if len(old) + len(new) > _DIFF_BYTES:
        return f"{path}: {len(old)} -> {len(new)} characters"
    lines = [_cut(line) for line in unified(old, new, path, context=2).split("\n")]
    if len(lines) <= _DIFF_LINES:
        return "\n".join(lines).rstrip("\n")
    return "\n".join(lines[:_DIFF_LINES]) + f"\n[... {len(lines) - _DIFF_LINES} more lines of the diff ...]"


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _cut(line: str) -> str:
    line = line.rstrip("\r")
    return line if len(line) <= _LINE_SHOWN else line[:_LINE_SHOWN] + f"[... {len(line) - _LINE_SHOWN} more]"
