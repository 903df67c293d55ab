"""Addresses of the pages of issues and requests."""

from __future__ import annotations

import re
from urllib.parse import unquote

from chargehand.forges.contract import IssueAddress

_NAME = r"[A-Za-z0-9_.-]*[A-Za-z0-9_-][A-Za-z0-9_.-]*"
_TAIL = r"(?:/.*)?"
_PULLS = re.compile(
    rf"/*(?P<name>{_NAME}/{_NAME})/(?P<what>issues|pulls?)/(?P<number>\d{{1,18}}){_TAIL}", re.DOTALL
)
_GITLAB = re.compile(
    rf"/*(?P<name>{_NAME}(?:/{_NAME})+?)(?:/-)?/(?P<what>issues|work_items|merge_requests)/(?P<number>\d{{1,18}}){_TAIL}",
    re.DOTALL,
)


def parse_issues_and_pulls(path: str) -> IssueAddress | None:
    """Read `/OWNER/NAME/issues/N` and `/OWNER/NAME/pull/N` or `/pulls/N`, with a tail, a query and a fragment."""
    return _read(_PULLS, path)


def parse_gitlab(path: str) -> IssueAddress | None:
    """Read `/GROUP/…/NAME/-/issues/N` and `/-/merge_requests/N`, with a tail, a query and a fragment."""
    return _read(_GITLAB, path)


def _read(pattern: re.Pattern[str], path: str) -> IssueAddress | None:
    found = pattern.fullmatch(unquote(re.split(r"[?#]", path, maxsplit=1)[0]))
    if found is None or int(found["number"]) == 0:
        return None
    is_request = found["what"] in ("pull", "pulls", "merge_requests")
    return IssueAddress(found["name"], int(found["number"]), is_request)
