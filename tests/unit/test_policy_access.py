"""Rights through the server: every action, role and set of scopes against a table written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.policy.access import (
    ACCESS_RULES,
    ROLES,
    SCOPES,
    answer_action,
    judge_access,
    lock_seconds,
    scopes_of_role,
)

# The lowest role, the scope, and the actions; the product's own table has another layout on purpose.
EXPECTED = {
    **dict.fromkeys(
        ["session.show", "session.close", "event.follow", "artifact.show", "project.list", "agent.list"]
        + ["model.list", "stats.show", "system.show", "question.list", "action.list", "token.own.list"]
        + ["action.log", "policy.test", "knowledge.show", "memory.show", "factor.own.list"]
        + [f"mission.{each}" for each in ("list", "show", "events", "transcript", "plan", "report", "diff")]
        + [f"mission.{each}" for each in ("review", "checkpoints", "artifacts", "output")],
        ("viewer", "read"),
    ),
    "audit.verify": ("operator", "read"),
    **dict.fromkeys(
        [f"mission.{each}" for each in ("start", "pause", "resume", "cancel", "send", "answer", "fork")]
        + ["mission.continue", "mission.restore", "mission.replan", "mission.look"]
        + ["action.cancel", "agent.probe", "model.probe", "alert.test", "memory.change"],
        ("operator", "steer"),
    ),
    **dict.fromkeys(
        [f"mission.{each}" for each in ("approve", "promote", "discard", "rollback", "feedback")]
        + ["action.answer"],
        ("operator", "decide"),
    ),
    "review.decide": ("viewer", "decide"),
    **dict.fromkeys(
        ["token.own.create", "token.own.revoke", "password.own.set", "factor.own.add", "factor.own.remove"],
        ("viewer", "administer"),
    ),
    **dict.fromkeys(
        [f"user.{each}" for each in ("list", "create", "role", "password", "disable", "enable", "remove")]
        + ["user.link", "user.unlink", "factor.reset"]
        + ["token.list", "token.create", "token.revoke", "config.show", "config.set", "secret.list"]
        + ["secret.set", "project.trust", "policy.allow", "audit.export", "access.list", "store.check"]
        + ["store.backup", "store.restore", "store.rebuild", "store.collect"]
        + ["knowledge.import", "knowledge.update", "knowledge.remove"],
        ("admin", "administer"),
    ),
}
RANK = {"viewer": 0, "operator": 1, "admin": 2}


def subsets() -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(SCOPES, size) for size in range(len(SCOPES) + 1))


def test_the_table_has_every_action() -> None:
    assert set(ACCESS_RULES) == set(EXPECTED)


@pytest.mark.parametrize("action", EXPECTED)
def test_every_role_and_set_of_scopes(action: str) -> None:
    least, scope = EXPECTED[action]
    for role in ROLES:
        for scopes in subsets():
            judged = judge_access(action, role, scopes)
            assert judged.allowed is (RANK[role] >= RANK[least] and scope in scopes), (role, scopes)
            assert action in judged.reason
            assert judged.allowed or (least in judged.reason or scope in judged.reason)


@pytest.mark.parametrize("action", ["", "mission", "mission.", "mission.*", "MISSION.LIST", "user.create ", "x"])
def test_an_action_without_a_rule_is_denied_to_every_role(action: str) -> None:
    for role in ROLES:
        judged = judge_access(action, role, SCOPES)
        assert not judged.allowed
        assert repr(action) in judged.reason


@pytest.mark.parametrize("role", ["", "Admin", "root", "admin ", "owner"])
def test_an_unknown_role_is_denied_every_action(role: str) -> None:
    assert not any(judge_access(action, role, SCOPES).allowed for action in ACCESS_RULES)


def test_without_scopes_every_action_is_denied() -> None:
    assert not any(judge_access(action, "admin", ()).allowed for action in ACCESS_RULES)


@given(
    action=st.sampled_from(sorted(ACCESS_RULES)) | st.text(max_size=20),
    roles=st.tuples(st.sampled_from(ROLES), st.sampled_from(ROLES)),
    scopes=st.tuples(st.frozensets(st.sampled_from(SCOPES)), st.frozensets(st.sampled_from(SCOPES))),
)
def test_more_of_role_or_scopes_never_allows_less(
    action: str, roles: tuple[str, str], scopes: tuple[frozenset[str], frozenset[str]]
) -> None:
    less, more = sorted(roles, key=RANK.__getitem__)
    if judge_access(action, less, scopes[0]).allowed:
        assert judge_access(action, more, scopes[0] | scopes[1]).allowed


def test_a_token_of_a_role_may_no_more_than_the_role() -> None:
    assert [scopes_of_role(role) for role in ROLES] == [("read",), ("read", "steer", "decide"), SCOPES]
    for role in ROLES:
        # Each scope is useful to every role that can have it.
        for scope in scopes_of_role(role):
            assert any(judge_access(action, role, (scope,)).allowed for action in ACCESS_RULES)


def test_to_permit_something_is_a_decision() -> None:
    assert answer_action("clarification") == "mission.answer"
    assert {answer_action(kind) for kind in ("permission", "decision", "risk")} == {"mission.approve"}
    assert not judge_access(answer_action("permission"), "operator", ("read", "steer")).allowed


def test_locks_begin_at_five_failures_and_grow_to_fifteen_minutes() -> None:
    assert [lock_seconds(count) for count in range(12)] == [0] * 5 + [60, 120, 240, 480, 900, 900, 900]
    assert lock_seconds(10**9) == 900
