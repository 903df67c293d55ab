"""What an ACP agent asks permission for, in the words of policy: as real agents ask."""

from __future__ import annotations

from typing import Any

import pytest

from chargehand.agents.acp.client import action_of_call, lines_of
from chargehand.policy.actions import Action, FileWrite, Other, Shell


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ({"kind": "execute", "title": "rm -rf build"}, Shell(text="rm -rf build")),  # gemini
        ({"kind": "execute", "rawInput": {"command": "make"}, "title": "Build it"}, Shell(text="make")),
        (
            {"kind": "execute", "rawInput": {"command": ["/bin/sh", "-lc", "make"], "cwd": "/workspace"}},  # codex
            Shell(text="make", cwd="/workspace"),
        ),
        ({"kind": "execute", "rawInput": {"script": "make"}, "title": "make"}, Other(kind="tool", name="make")),
        ({"kind": "execute"}, Other(kind="tool", name="execute")),
        ({"kind": "other", "title": "make"}, Other(kind="tool", name="make")),
        ({"title": "make"}, Other(kind="tool", name="make")),
        ({"kind": "edit", "locations": [{"path": "/workspace/a"}]}, FileWrite(path="/workspace/a")),
    ],
)
def test_what_a_call_would_do(call: dict[str, Any], action: Action) -> None:
    assert action_of_call(call) == action


@pytest.mark.parametrize(
    ("first", "limit", "lines"),
    [
        (None, None, "a\x0cb\u2028c\n\r\nd\n\ne"),
        (1, 1, "a\x0cb\u2028c\n"),
        (2, 1, "\r\n"),
        (3, None, "d\n\ne"),
        (4, 9, "\ne"),
        (0, 1, "a\x0cb\u2028c\n"),
        (6, None, ""),
        (2, 0, ""),
    ],
)
def test_lines_of_a_file_end_at_line_feeds_alone(first: int | None, limit: int | None, lines: str) -> None:
    assert lines_of("a\x0cb\u2028c\n\r\nd\n\ne", first=first, limit=limit) == lines
