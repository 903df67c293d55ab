"""The conformance suite of forges: subclass `ForgeContract` and provide the fixture `case`."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from chargehand.forges.contract import (
    CommitStatus,
    ForgeError,
    ForgeProblem,
    ForgeRequest,
    MergeMethod,
    NewRequest,
)
from chargehand.testing.forges.case import ForgeCase, wait_until

TEXTS = (
    "plain",
    "Ünïcödé 漢字 \U0001f469\u200d\U0001f680 \u202eright to left\u202c zero\u200bwidth",
    "<script>alert(1)</script> <!-- chargehand:1 --> &amp; &lt;",
    "'; DROP TABLE issues; -- \\ \\\\ \\u0000 %s {0} $HOME `id` $(id)",
    "# heading\n\n```python\nx = 1\n```\n\n- [ ] task\n\n| a | b |\n|---|---|\n| 1 | 2 |",
    "x" * 20_000,
)


def fails(problem: ForgeProblem, act: Callable[[], object]) -> ForgeError:
    """Return the error of a call that must fail with this problem."""
    with pytest.raises(ForgeError) as caught:
        act()
    assert caught.value.problem == problem, caught.value
    assert caught.value.code == f"forge_{problem}"
    return caught.value


class ForgeContract:
    """All promises of a forge, one test each."""

    def open_request(self, case: ForgeCase, head: str, *, body: str = "", draft: bool = False) -> ForgeRequest:
        case.commit(head, {"new.txt": f"{head}\none\ntwo\n"})
        new = NewRequest(title=f"Add {head}", body=body, head=head, base="main", draft=draft)
        return case.forge.open_request(case.repository, new)

    # Accounts and repositories

    def test_the_account_and_its_rights(self, case: ForgeCase) -> None:
        ada, bob = case.forge.account().login, case.other.account().login
        assert ada != bob
        assert case.forge.repository(case.repository).right == "admin"
        assert case.other.repository(case.repository).right == "read"
        assert case.forge.right(case.repository, ada) == "admin"
        assert case.forge.right(case.repository, bob) == "read"
        assert case.forge.right(case.repository, "nobody-of-that-name") == "none"

    def test_a_right_is_read_again_after_a_change(self, case: ForgeCase) -> None:
        bob = case.other.account().login
        case.host.set_right(case.repository, bob, "write")
        assert case.forge.right(case.repository, bob) == "write"
        case.host.set_right(case.repository, bob, "read")
        assert case.forge.right(case.repository, bob) == "read"

    def test_a_repository(self, case: ForgeCase) -> None:
        found = case.forge.repository(case.repository)
        assert (found.name, found.default_branch, found.archived) == (case.repository, "main", False)
        assert found.url.startswith(case.forge.url)
        assert set(found.merge_methods) <= {"merge", "squash", "rebase"}
        assert case.forge.branch(case.repository, "main")
        assert case.forge.branch(case.repository, "no/such") is None

    def test_an_empty_repository_has_no_default_branch(self, case: ForgeCase) -> None:
        empty = case.host.create_repository()
        assert case.forge.repository(empty).default_branch is None
        assert case.forge.branch(empty, "main") is None
        assert list(case.forge.issues(empty)) == []

    def test_a_renamed_repository_names_the_new_one(self, case: ForgeCase) -> None:
        case.host.rename(case.repository, "renamed-to")
        new = f"{case.repository.rpartition('/')[0]}/renamed-to"
        assert new in fails("moved", lambda: case.forge.repository(case.repository)).hint
        assert case.forge.repository(new).name == new

    def test_unknown_things_are_missing(self, case: ForgeCase) -> None:
        forge, name = case.forge, case.repository
        fails("missing", lambda: forge.repository("no-such-owner/no-such-name"))
        fails("missing", lambda: forge.issue(name, 4_040))
        fails("missing", lambda: forge.request(name, 4_040))
        fails("missing", lambda: forge.comments(name, 4_040))

    def test_a_bad_token_is_denied_and_appears_in_no_message(self, case: ForgeCase) -> None:
        forge = case.host.open_forge("s3cret-of-no-account")
        for act in (forge.account, lambda: forge.add_comment(case.repository, 1, "x")):
            error = fails("denied", act)
            assert "s3cret" not in f"{error} {error.hint} {error!r} {error.__cause__!r}"

    def test_a_token_without_a_scope_is_forbidden(self, case: ForgeCase) -> None:
        weak = case.host.weak_forge()
        if weak is None:
            return
        number = case.host.create_issue(case.repository, "bug")
        assert fails("forbidden", lambda: weak.add_comment(case.repository, number, "x")).hint

    def test_a_reader_may_comment_but_not_change(self, case: ForgeCase) -> None:
        number = case.host.create_issue(case.repository, "bug")
        case.other.add_comment(case.repository, number, "me too")
        with pytest.raises(ForgeError) as caught:
            case.other.change_issue(case.repository, number, add_labels=["agent"])
        assert caught.value.problem in ("forbidden", "missing")  # some forges do not say which
        assert case.forge.issue(case.repository, number).labels == ()

    def test_an_archived_repository_refuses_changes(self, case: ForgeCase) -> None:
        number = case.host.create_issue(case.repository, "bug")
        case.host.archive(case.repository)
        assert case.forge.repository(case.repository).archived
        assert case.forge.issue(case.repository, number).title == "bug"
        fails("refused", lambda: case.forge.add_comment(case.repository, number, "x"))

    # Issues and comments

    def test_an_issue_is_read_and_changed_and_a_repetition_changes_nothing(self, case: ForgeCase) -> None:
        forge, name, bob = case.forge, case.repository, case.other.account().login
        case.host.set_right(name, bob, "write")
        number = case.host.create_issue(name, "A bug", "It fails.")
        issue = forge.issue(name, number)
        assert (issue.repository, issue.number, issue.title, issue.body) == (name, number, "A bug", "It fails.")
        assert (issue.author, issue.is_open, issue.locked) == (forge.account().login, True, False)
        for _ in range(2):
            forge.change_issue(name, number, add_labels=["agent", "a: b/c"], assign=[bob])
            issue = forge.issue(name, number)
            assert (sorted(issue.labels), issue.assignees) == (["a: b/c", "agent"], (bob,))
        for _ in range(2):
            forge.change_issue(name, number, remove_labels=["agent", "never there"], unassign=[bob])
            issue = forge.issue(name, number)
            assert (issue.labels, issue.assignees) == (("a: b/c",), ())
        for _ in range(2):
            forge.change_issue(name, number, is_open=False)
            assert not forge.issue(name, number).is_open
        assert number not in [each.number for each in forge.issues(name)]
        forge.change_issue(name, number, is_open=True)
        assert forge.issue(name, number).is_open

    def test_open_issues_are_listed_by_update_without_requests(self, case: ForgeCase) -> None:
        forge, name, me = case.forge, case.repository, case.forge.account().login
        numbers = [case.host.create_issue(name, f"issue {count}") for count in range(case.page + 3)]
        request = self.open_request(case, "listed")
        time.sleep(1.1)  # GitHub and Gitea have times of whole seconds
        forge.change_issue(name, numbers[0], add_labels=["agent"], assign=[me])
        listed = [each.number for each in forge.issues(name)]
        assert sorted(listed) == sorted(numbers)
        assert request.number not in listed
        assert listed[-1] == numbers[0]
        assert [each.number for each in forge.issues(name, label="agent")] == [numbers[0]]
        assert [each.number for each in forge.issues(name, assignee=me)] == [numbers[0]]
        assert list(forge.issues(name, label="no such label")) == []
        since = forge.issue(name, numbers[0]).updated
        assert [each.number for each in forge.issues(name, since=since)] == [numbers[0]]
        assert list(forge.issues(name, since=since + timedelta(hours=1))) == []

    def test_comments_of_several_pages_are_in_order(self, case: ForgeCase) -> None:
        forge, name = case.forge, case.repository
        number = case.host.create_issue(name, "long")
        written = [forge.add_comment(name, number, f"comment {count}").id for count in range(case.many)]
        found = forge.comments(name, number)
        assert [each.body for each in found] == [f"comment {count}" for count in range(case.many)]
        assert [each.id for each in found] == written == sorted(set(written))

    @pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
    def test_texts_come_back_as_they_were_written(self, case: ForgeCase, text: str) -> None:
        forge, name = case.forge, case.repository
        title = text.partition("\n")[0][:80]
        number = case.host.create_issue(name, title, text)
        issue = forge.issue(name, number)
        assert (issue.title, issue.body) == (title, text)
        comment = forge.add_comment(name, number, text)
        assert (comment.body, comment.author) == (text, forge.account().login)
        edited = forge.edit_comment(name, number, comment.id, f"{text} edited")
        assert (edited.id, edited.body) == (comment.id, f"{text} edited")
        assert [each.body for each in forge.comments(name, number)] == [f"{text} edited"]
        for _ in range(2):
            forge.delete_comment(name, number, comment.id)
        assert forge.comments(name, number) == []

    def test_a_text_that_is_not_unicode_is_invalid(self, case: ForgeCase) -> None:
        number = case.host.create_issue(case.repository, "bug")
        fails("invalid", lambda: case.forge.add_comment(case.repository, number, "half \ud800"))
        assert case.forge.comments(case.repository, number) == []

    def test_a_locked_issue_refuses_the_comments_of_readers(self, case: ForgeCase) -> None:
        number = case.host.create_issue(case.repository, "hot")
        case.host.lock_issue(case.repository, number)
        assert case.forge.issue(case.repository, number).locked
        fails("refused", lambda: case.other.add_comment(case.repository, number, "x"))
        case.forge.add_comment(case.repository, number, "closing words")

    # Requests and reviews

    def test_a_request_is_opened_found_and_changed(self, case: ForgeCase) -> None:
        forge, name = case.forge, case.repository
        assert forge.find_requests(name, "feature/x") == []
        opened = self.open_request(case, "feature/x", body="text", draft=True)
        assert (opened.title, opened.body, opened.head, opened.base) == (
            "Add feature/x",
            "text",
            "feature/x",
            "main",
        )
        assert (opened.draft, opened.is_open, opened.merged, opened.head_repository) == (True, True, None, name)
        assert opened.author == forge.account().login
        assert opened.head_commit == forge.branch(name, "feature/x")
        assert [each.number for each in forge.find_requests(name, "feature/x")] == [opened.number]
        assert forge.find_requests(name, "feature") == []
        for _ in range(2):
            changed = forge.change_request(name, opened.number, title="New", body="other", draft=False)
            assert (changed.title, changed.body, changed.draft) == ("New", "other", False)
        assert forge.change_request(name, opened.number, draft=True).draft
        case.commit("other", {"other.txt": "x\n"})
        assert forge.change_request(name, opened.number, base="other").base == "other"
        assert forge.change_request(name, opened.number, base="main").base == "main"
        assert forge.request(name, opened.number).title == "New"
        assert not forge.change_request(name, opened.number, is_open=False).is_open
        assert [each.is_open for each in forge.find_requests(name, "feature/x")] == [False]
        assert forge.change_request(name, opened.number, is_open=True).is_open
        new = case.commit("feature/x", {"new.txt": "again\n"})
        wait_until(lambda: forge.request(name, opened.number).head_commit, new)

    def test_a_second_request_from_a_branch_is_refused(self, case: ForgeCase) -> None:
        self.open_request(case, "twice")
        again = NewRequest(title="again", body="", head="twice", base="main")
        fails("refused", lambda: case.forge.open_request(case.repository, again))

    @pytest.mark.parametrize("method", ["merge", "squash", "rebase"])
    def test_a_merge_closes_the_request_and_its_issue(self, case: ForgeCase, method: MergeMethod) -> None:
        forge, name = case.forge, case.repository
        if method not in forge.repository(name).merge_methods:
            return
        issue = case.host.create_issue(name, "bug")
        opened = self.open_request(case, "fix", body=f"closes #{issue}")
        wait_until(lambda: forge.request(name, opened.number).mergeable, True)
        base = forge.branch(name, "main")
        fails("refused", lambda: forge.merge(name, opened.number, commit=base or "", method=method))
        forge.merge(name, opened.number, commit=opened.head_commit, method=method)
        merged = forge.request(name, opened.number)
        assert (merged.is_open, merged.merged) == (False, forge.branch(name, "main"))
        assert merged.merged != base
        wait_until(lambda: forge.issue(name, issue).is_open, False)
        case.remove_branch("fix")
        wait_until(lambda: forge.branch(name, "fix"), None)
        assert [each.merged for each in forge.find_requests(name, "fix")] == [merged.merged]
        fails("refused", lambda: forge.merge(name, opened.number, commit=opened.head_commit, method=method))

    def test_a_protected_branch_waits_for_its_check(self, case: ForgeCase) -> None:
        forge, name = case.forge, case.repository
        opened = self.open_request(case, "guarded")
        case.host.protect(name, "ci/test")
        head = opened.head_commit
        fails("refused", lambda: forge.merge(name, opened.number, commit=head, method="merge"))
        forge.set_status(name, head, CommitStatus(context="ci/test", state="failure"))
        fails("refused", lambda: forge.merge(name, opened.number, commit=head, method="merge"))
        forge.set_status(name, head, CommitStatus(context="ci/test", state="success"))
        wait_until(lambda: forge.request(name, opened.number).mergeable, True)
        forge.merge(name, opened.number, commit=head, method="merge")
        assert forge.request(name, opened.number).merged

    def test_conflicting_changes_are_not_mergeable(self, case: ForgeCase) -> None:
        forge, name = case.forge, case.repository
        opened = self.open_request(case, "clash")
        case.commit("main", {"new.txt": "other\n"})
        wait_until(lambda: forge.request(name, opened.number).mergeable, False)
        fails("refused", lambda: forge.merge(name, opened.number, commit=opened.head_commit, method="merge"))

    def test_reviews_and_their_lines(self, case: ForgeCase) -> None:
        forge, name, bob = case.forge, case.repository, case.other.account().login
        case.host.set_right(name, bob, "write")
        opened = self.open_request(case, "reviewed")
        for _ in range(2):
            forge.ask_reviews(name, opened.number, [bob])
        assert forge.reviews(name, opened.number) == []
        case.host.submit_review(name, opened.number, "changes", "not yet", [("new.txt", 2, "why?")])
        (review,) = forge.reviews(name, opened.number)
        text = "not yet" if case.reviews_have_text else ""
        assert (review.author, review.state, review.body) == (bob, "changes", text)
        (line,) = forge.review_comments(name, opened.number)
        assert (line.author, line.body, line.path, line.line) == (bob, "why?", "new.txt", 2)
        assert not line.resolved
        forge.reply(name, opened.number, {line.thread: "because"})
        answers = forge.review_comments(name, opened.number)
        assert [each.body for each in answers] == ["why?", "because"]
        assert {each.thread for each in answers} == {line.thread}
        case.host.submit_review(name, opened.number, "approved", "now yes")
        approval = forge.reviews(name, opened.number)[-1]
        assert (approval.state, approval.commit) == ("approved", opened.head_commit)
        assert forge.comments(name, opened.number, is_request=True) == []

    # Statuses, files, hooks

    def test_the_latest_state_of_each_check(self, case: ForgeCase) -> None:
        forge, name = case.forge, case.repository
        head = case.commit("checked", {"new.txt": "x\n"})
        assert forge.statuses(name, head) == []
        for state in ("pending", "failure", "success", "success"):
            forge.set_status(name, head, CommitStatus(context="ci/a", state=state, description="Ünïcödé"))
        forge.set_status(name, head, CommitStatus(context="ci/b", state="error", url="http://127.0.0.1/b"))
        found = {each.context: each for each in forge.statuses(name, head)}
        assert {context: each.state for context, each in found.items()} == {"ci/a": "success", "ci/b": "error"}
        assert (found["ci/a"].description, found["ci/b"].url) == ("Ünïcödé", "http://127.0.0.1/b")
        assert forge.read_log(name, found["ci/b"]) == ""
        fails("missing", lambda: forge.set_status(name, "0" * 39 + "1", CommitStatus(context="c", state="error")))

    def test_a_file_is_attached(self, case: ForgeCase) -> None:
        number = case.host.create_issue(case.repository, "with a file")
        address = case.forge.attach(case.repository, number, "report é.txt", b"hello\x00")
        assert address == "" or address.startswith(case.forge.url)

    def test_a_hook_is_set_and_removed_repeatedly(self, case: ForgeCase) -> None:
        for _ in range(2):
            case.forge.ensure_hook(case.repository, "http://127.0.0.1:9/hook", "s3cret")
        for _ in range(2):
            case.forge.remove_hook(case.repository, "http://127.0.0.1:9/hook")
        with pytest.raises(ForgeError) as caught:
            case.other.ensure_hook(case.repository, "http://127.0.0.1:9/hook", "s3cret")
        assert caught.value.problem in ("forbidden", "missing")
