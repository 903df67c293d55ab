"""Shows how two trees differ: line by line, or how many lines each file gained and lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chargehand.app.checkpoints import TreeDifference
    from chargehand.cli.terminal.output import Output
    from chargehand.workspace.depot import LineCount


def show_difference(out: Output, found: TreeDifference, *, stat: bool) -> None:
    """Write how two trees differ: line counts, or the patch."""
    if out.as_json:
        out.document(found.document(with_patch=not stat))
    elif stat:
        show_line_counts(out, found.line_counts())
    else:
        # Raw: `git apply` needs the very bytes, and `text` would take control characters out of them.
        out.raw(found.patch())


def show_line_counts(out: Output, files: Iterable[LineCount]) -> None:
    """Write how many lines each file gained and lost."""
    from chargehand.core.text import shown_path

    def count(sign: str, lines: int | None) -> str:
        return "binary" if lines is None else f"{sign}{lines}"

    rows = [(shown_path(file.path), count("+", file.added), count("-", file.removed)) for file in files]
    if rows:
        out.table(("FILE", "ADDED", "REMOVED"), rows)
    else:
        out.text("no difference")
