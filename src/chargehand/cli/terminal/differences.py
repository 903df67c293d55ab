"""Shows the difference between two trees: line by line, or as line counts per file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chargehand.app.checkpoints import TreeDifference
    from chargehand.cli.terminal.output import Output
    from chargehand.workspace.depot import LineCount


def show_difference(out: Output, found: TreeDifference, *, stat: bool) -> None:
    """Write the difference between two trees: line counts, or the patch."""
    if out.as_json:
        out.document(found.document(with_patch=not stat))
    elif stat:
        show_line_counts(out, found.line_counts())
    else:
        out.patch(found.patch())


def show_line_counts(out: Output, files: Iterable[LineCount]) -> None:
    """Write the numbers of lines that each file gained and lost."""
    from chargehand.core.text import shown_path

    def count(sign: str, lines: int | None) -> str:
        return "binary" if lines is None else f"{sign}{lines}"

    rows = [(shown_path(file.path), count("+", file.added), count("-", file.removed)) for file in files]
    if rows:
        out.table(("FILE", "ADDED", "REMOVED"), rows)
    else:
        out.text("no difference")
