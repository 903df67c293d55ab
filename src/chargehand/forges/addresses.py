"""Addresses of the pages of issues and requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from chargehand.forges.contract import IssueAddress

_LONGEST = 2_000
_NAME = re.compile(r"(?!\.{1,2}$|-$)[A-Za-z0-9_.-]+")
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_KINDS = {"issues": False, "work_items": False, "pull": True, "pulls": True, "merge_requests": True}


def github_api(url: str, api: str) -> str:
    """Return the address of GitHub's API: `api` if given, else the usual one of the pages at `url`."""
    usual = "https://api.github.com" if urlsplit(url).netloc == "github.com" else f"{url}/api/v3"
    return api.rstrip("/") or usual


def parse_issues_and_pulls(path: str) -> IssueAddress | None:
    """Read `/OWNER/NAME/issues/N` and `/OWNER/NAME/pull/N` or `/pulls/N`, with a tail, a query and a fragment."""
    parts = _split(path)
    return _read(parts[:2], parts[2:4], ("issues", "pull", "pulls"))


def parse_gitlab(path: str) -> IssueAddress | None:
    """Read `/GROUP/…/NAME/-/issues/N` and `/-/merge_requests/N`, with a tail, a query and a fragment."""
    parts = _split(path)
    words = ("issues", "work_items", "merge_requests")
    if "-" in parts:  # no name is "-"
        end = parts.index("-")
        return _read(parts[:end], parts[end + 1 : end + 3], words)
    places = (_read(parts[:end], parts[end : end + 2], words) for end in range(2, len(parts)))
    return next((found for found in places if found), None)


def _split(path: str) -> list[str]:
    if len(path) > _LONGEST:
        return []
    # Decoded after the split: an escaped slash or question mark is a part of a name.
    return [unquote(part) for part in re.split(r"[?#]", path, maxsplit=1)[0].lstrip("/").split("/")]


def _read(names: Sequence[str], page: Sequence[str], words: Sequence[str]) -> IssueAddress | None:
    is_page = len(page) == 2 and page[0] in words and _NUMBER.fullmatch(page[1])
    if not is_page or len(names) < 2 or not all(map(_NAME.fullmatch, names)):
        return None
    return IssueAddress("/".join(names), int(page[1]), _KINDS[page[0]])
