"""The pages of docs: all are in the index, their links resolve, and its rows are found by people's words."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs/README.md"
LINK = re.compile(r"\]\(([^)\s]+)\)")
# Each task of a new user, as a word of theirs and the page that its row must link.
TASKS = {
    "subscription": "how-to/subscriptions.md",
    "red tests": "how-to/flaky-checks.md",
    "flaky": "how-to/flaky-checks.md",
    "CI": "how-to/in-ci.md",
    "services": "how-to/services.md",
    "pull request": "how-to/forge-requests.md",
    "completion": "how-to/completion.md",
    "uninstall": "how-to/faq.md",
    "upgrade": "how-to/faq.md",
    "where data is": "how-to/faq.md",
    "uncommitted": "how-to/uncommitted-changes.md",
    "Windows": "how-to/windows-and-mac.md",
    "budget": "how-to/limit-money.md",
    "undo": "how-to/roll-back.md",
    "own model": "how-to/own-model.md",
}


def prose(text: str) -> str:
    """Return Markdown without its code blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as forges name them."""
    titles = re.findall(r"^#+ (.+)$", prose(page.read_text()), flags=re.MULTILINE)
    words = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in words}


def broken_links(page: Path, text: str) -> Iterator[str]:
    for link in LINK.findall(prose(text)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if re.match(r"https?:|mailto:", link):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            yield link


def find_rows(text: str, word: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|") and word in line]


def test_every_page_is_in_the_index() -> None:
    linked = {(INDEX.parent / link.partition("#")[0]).resolve() for link in LINK.findall(INDEX.read_text())}
    pages = [page for page in INDEX.parent.rglob("*.md") if page != INDEX]
    records = set((ROOT / "docs/decisions").glob("[0-9]*.md"))  # their own README lists them
    missing = {*pages} - linked - records
    assert missing == set()
    assert len(pages) > 100


def test_every_link_resolves() -> None:
    done = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True)
    pages = [ROOT / name for name in done.stdout.decode().split() if not name.startswith(("src/", "tests/"))]
    pages = [page for page in pages if page.is_file()]
    assert len(pages) > 100
    assert {str(page): found for page in pages if (found := list(broken_links(page, page.read_text())))} == {}


@pytest.mark.parametrize("text", ["[a](nowhere.md)", "[a](README.md#no-such-heading)", "[a](#no-such-heading)"])
def test_a_broken_link_is_found(text: str) -> None:
    assert list(broken_links(INDEX, text)) != []
    assert list(broken_links(INDEX, f"```\n{text}\n```\n[b](#start) [c](how-to/faq.md)")) == []


@pytest.mark.parametrize(("word", "page"), TASKS.items())
def test_a_task_is_found_by_its_word(word: str, page: str) -> None:
    assert any(f"({page}" in row for row in find_rows(INDEX.read_text(), word))
