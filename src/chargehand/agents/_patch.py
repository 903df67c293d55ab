"""Patches as a model writes them, in either of two notations: read, and applied to texts in memory."""

from __future__ import annotations

from chargehand.agents._patch_envelope import BEGIN, looks_like_envelope, parse_envelope
from chargehand.agents._patch_model import FileChange, PatchProblem
from chargehand.agents._patch_unified import parse_unified


def parse_patch(text: str) -> tuple[FileChange, ...]:
    """Return the changes of a patch in either notation; raises `PatchProblem`, whose text says what is wrong."""
    lines = text.split("\n")
    changes = parse_envelope(lines) if looks_like_envelope(lines) else parse_unified(lines)
    if not changes:
        raise PatchProblem(
            f"no change found in the patch: write {BEGIN!r} with '*** Update File: path' sections, or a unified "
            "diff with '--- a/path' and '+++ b/path' lines"
        )
    return changes
