"""The treatment of failures that a mission did not cause: those of its base, and flaky tests."""

from __future__ import annotations

import re

from msgspec import Struct

from chargehand.core.config import Config
from chargehand.core.records import FlakyPolicy, MissionRequest
from chargehand.core.state import MissionState

RED_BASE = "red_base"
ACCEPT, LEAVE_OUT, AGAIN, FIX, STOP = "accept", "leave out", "run again", "fix", "stop"
_GO_ON = "go on"  # the answer to this question in logs of earlier versions


class FailurePolicy(Struct, frozen=True, kw_only=True):
    """The treatment of the base's failures and of flaky tests, from request, answers and project.

    `accepted`: known failures may land. `leaves_out`: failures on the base do not count at all. `strict`: each of
    these failures must be gone, since fixing them is the request; so must tests whose own name is among `aims`,
    the words of the request.
    """

    accepted: bool = False
    leaves_out: bool = False
    strict: bool = False
    aims: frozenset[str] = frozenset()
    flaky: FlakyPolicy = "ask"


def failure_policy(config: Config, request: MissionRequest, state: MissionState) -> FailurePolicy:
    """Return the treatment of the base's failures in a mission, by its request and a person's last answer."""
    answer = find_answer(state)
    return FailurePolicy(
        accepted=answer in (ACCEPT, LEAVE_OUT) or (answer is None and request.red_base == "accept_known"),
        leaves_out=answer == LEAVE_OUT,
        strict=answer in (FIX, _GO_ON) or (answer is None and request.red_base == "go"),
        aims=frozenset() if answer in (ACCEPT, LEAVE_OUT) else words_of(request.text),
        flaky=config.project.flaky,
    )


def find_answer(state: MissionState) -> str | None:
    """Return a person's last answer about a red base, `None` without an answer."""
    answers = [asked.answer for name, asked in state.questions.items() if name.partition("/")[0] == RED_BASE]
    return next((answer for answer in reversed(answers) if answer is not None), None)


def count_repeats(state: MissionState, tree: str) -> int:
    """Return how often a person asked for the checks on a base's tree to run again."""
    return sum(
        asked.answer == AGAIN and asked.tree == tree
        for name, asked in state.questions.items()
        if name.partition("/")[0] == RED_BASE
    )


def words_of(text: str) -> frozenset[str]:
    """Return the words of a request, as the names of tests are written."""
    return frozenset(re.findall(r"\w+", text))
