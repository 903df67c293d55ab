"""Writes each generated page that is stale; with `--check` it names them instead, and fails if there are any."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.reference.pages import render_pages

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Compare, and write."""
    stale = {}
    for name, text in render_pages().items():
        path = ROOT / name
        if not path.is_file() or path.read_text("utf-8") != text:
            stale[path] = text
    for path, text in stale.items():
        print(path.relative_to(ROOT))
        if "--check" not in sys.argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    if stale and "--check" in sys.argv:
        sys.exit("hint: run scripts/pages, and commit what it wrote")


if __name__ == "__main__":
    main()
