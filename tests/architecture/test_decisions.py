"""The index of decisions lists each decision by its title."""

from __future__ import annotations

from pathlib import Path

DECISIONS = Path(__file__).parents[2] / "docs/decisions"


def test_each_decision_is_in_the_index() -> None:
    rows = [
        line.split(" | ")[:2] for line in (DECISIONS / "README.md").read_text().splitlines() if line[:3] == "| 0"
    ]
    pages = sorted(path for path in DECISIONS.glob("*.md") if path.name != "README.md")
    titles = {path: path.read_text().partition("\n")[0] for path in pages}
    expected = [[f"| {title[2:6]}", f"[{title[8:]}]({path.name})"] for path, title in titles.items()]
    assert rows == expected, "list it in docs/decisions/README.md"
    assert all(path.name.startswith(f"{title[2:6]}-") for path, title in titles.items())
