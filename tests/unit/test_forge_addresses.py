"""Addresses of the pages of issues and requests, as people copy them from a browser."""

from __future__ import annotations

import pytest

from chargehand.forges.addresses import parse_gitlab
from chargehand.forges.contract import IssueAddress
from chargehand.forges.registries import FORGES

ISSUE, PULL = IssueAddress("ada/demo", 7), IssueAddress("ada/demo", 7, True)
PATHS = {
    "/ada/demo/issues/7": ISSUE,
    "ada/demo/issues/7": ISSUE,
    "//ada/demo/issues/7": ISSUE,
    "/ada/demo/issues/7/": ISSUE,
    "/ada/demo/issues/7?foo=/x/y/issues/8#issuecomment-9": ISSUE,
    "/ada/demo/issues/7#issuecomment-9": ISSUE,
    "/ada/demo/pull/7": PULL,
    "/ada/demo/pulls/7/files?w=1": PULL,
    "/ada/demo/pull/7/commits/0123abc": PULL,
    "/Ada-1/demo.py_x/issues/7": IssueAddress("Ada-1/demo.py_x", 7),
    "/ada/d%65mo/issues/7": ISSUE,
    "/ada/demo/issues/0": None,
    "/ada/demo/issues/new": None,
    "/ada/demo/issues/7x": None,
    "/ada/demo/issues": None,
    "/ada/demo/issues/٧": None,
    "/ada/demo/issues/99999999999999999999": None,
    "/demo/issues/7": None,
    "/a/b/c/issues/7": None,
    "/../demo/issues/7": None,
    "/ada/./issues/7": None,
    "/ada%2Fdemo/x/issues/7": None,
    "/ada/demo%3Fx/issues/7": None,
    "/ada/demo/actions/runs/7": None,
    "": None,
}
GITLAB = {
    "/ada/demo/-/issues/7": ISSUE,
    "/ada/demo/issues/7": ISSUE,
    "/ada/demo/-/work_items/7": ISSUE,
    "/ada/demo/-/merge_requests/7/diffs?tab=x#note_1": PULL,
    "/group/sub/deeper/demo/-/issues/7": IssueAddress("group/sub/deeper/demo", 7),
    "/group/issues/issues/demo/-/merge_requests/7": IssueAddress("group/issues/issues/demo", 7, True),
    "/demo/-/issues/7": None,
    "/ada/demo/-/issues/": None,
    "/ada/demo/-/issues/0": None,
    "/ada/../demo/-/issues/7": None,
    "/ada/demo/-/pipelines/7": None,
    "/ada/demo/pull/7": None,
}


@pytest.mark.parametrize("kind", ["local", "gitea", "github"])
@pytest.mark.parametrize(("path", "expected"), PATHS.items())
def test_pages_of_issues_and_pulls(kind: str, path: str, expected: IssueAddress | None) -> None:
    assert FORGES[kind].parse(path) == expected


@pytest.mark.parametrize(("path", "expected"), GITLAB.items())
def test_pages_of_gitlab(path: str, expected: IssueAddress | None) -> None:
    assert parse_gitlab(path) == expected


def test_a_hostile_path_is_read_in_time() -> None:
    for path in ("/a" * 20_000, "/a.-" * 20_000 + "/-/issues/x", "/" * 100_000, "-" * 100_000):
        assert parse_gitlab(path) is None
        assert FORGES["github"].parse(path) is None
