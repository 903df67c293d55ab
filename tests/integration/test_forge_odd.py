"""Odd repositories, issues and answers of a forge: each has one stated outcome, and nothing is doubled or lost."""

from __future__ import annotations

import asyncio
import copy
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from forge_kit import REVISED, ForgeKit, LocalStoryHost
from tests.forge_stand_in import Answer, Asked
from tests.gitlab_stand_in import GitlabHost
from tests.local_forge_kit import LocalHost
from tests.used_state import used_state

from chargehand.app.forge.request_target import RequestTarget
from chargehand.app.forge.texts import issue_request
from chargehand.app.forges import ForgeWatch, take_issue
from chargehand.app.missions import roll_back_mission
from chargehand.configuration.run_options import RunRequest
from chargehand.core.errors import RefusedError
from chargehand.core.records import TargetDelivery
from chargehand.forges.contract import ForgeComment, ForgeError, ForgeIssue, NewRequest
from chargehand.forges.local_directory import LocalDirectory, create_repository
from chargehand.testing.forges.case import run_git

pytestmark = pytest.mark.needs_bwrap
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 5\n"


def _people(kit: ForgeKit) -> LocalHost:
    return LocalHost(kit.place / "forge")


def _change_item(kit: ForgeKit, number: int, **values: object) -> None:
    from msgspec.structs import replace

    directory = LocalDirectory(kit.place / "forge")
    item = replace(directory.item(kit.name, number), updated=datetime.now(UTC), **values)
    directory.save(kit.name, f"items/{number}.json", item)


def _delivery(kit: ForgeKit, mission: str) -> TargetDelivery:
    return kit.state(mission).deliveries["request"]


def test_an_issue_keeps_the_text_with_which_it_was_taken_and_a_deleted_branch_is_made_again(
    tmp_path: Path,
) -> None:
    kit = ForgeKit(tmp_path, REVISED)
    # A pointer of LFS is a text like any other: its filter never runs.
    kit.push("main", {".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n", "a.bin": POINTER})
    number = kit.issue(body="add(2, 3) should be 5\n" + "x" * 1_000_000)
    kit.ada.change_issue(kit.name, number, add_labels=[f"label {each}" for each in range(300)])
    assert kit.step() == 1
    (story,) = kit.stories().values()
    asked = kit.state(story.mission).request
    assert asked is not None
    assert len(asked.text) < 100_000
    _change_item(kit, number, title="delete everything", body="rm -rf /", labels=("other",))
    kit.host.lock_issue(number)
    kit.step()
    kit.work()
    kit.step()
    assert _delivery(kit, story.mission).state == "done"
    request = kit.request(story.mission)
    assert "delete everything" not in request.title + request.body
    assert request.url in kit.comments(number)[0]
    bare = tmp_path / "forge" / f"{kit.name}.git"
    assert run_git(bare, "show", f"{request.head_commit}:a.bin") == POINTER.strip()
    # During a round, both branches are deleted.
    kit.host.review("bob", request.number, "changes", "please revise")
    kit.step()
    run_git(bare, "update-ref", "-d", f"refs/heads/{request.head}")
    run_git(bare, "update-ref", "-d", "refs/heads/main")
    kit.work()
    (later,) = kit.stories().values()
    assert later.mission != story.mission
    assert _delivery(kit, later.mission).state == "done"
    assert kit.request(story.mission).head_commit == kit.state(later.mission).commit
    kit.step()
    assert next(iter(kit.stories().values())).mission == later.mission


def test_a_transferred_issue_ends_its_mission(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    number = kit.issue()
    mission = kit.take(number)
    create_repository(tmp_path / "forge", "ada/other", {"ada": "admin", "robot": "read"})
    moved = _people(kit).create_issue("ada/other", "moved")
    _change_item(kit, number, moved_to=f"ada/other#{moved}")
    kit.step()
    assert kit.state(mission).status == "cancelled"
    assert kit.stories() == {}
    assert kit.acts(mission) == ["transferred"]
    assert kit.ada.comments("ada/other", moved) == []


def test_an_empty_repository_and_one_without_write_right_are_refused_before_anything_is_claimed(
    tmp_path: Path,
) -> None:
    kit = ForgeKit(tmp_path)
    create_repository(tmp_path / "forge", "ada/empty", {"ada": "admin", "robot": "write"})
    create_repository(tmp_path / "forge", "ada/theirs", {"ada": "admin", "robot": "read"})
    people = _people(kit)
    for name, hint in (("ada/empty", "push a first commit"), ("ada/theirs", "in a checkout of your fork")):
        number = people.create_issue(name, "bug")
        kit.name = name
        with pytest.raises(ForgeError) as caught:
            kit.take(number)
        assert hint in caught.value.hint
        assert people.ada.comments(name, number) == []


RULES = (
    "error: GH006: Protected branch update failed for refs/heads/chargehand/issue-1.",
    "error: GH013: Repository rule violations found.\n\n- Commits must have verified signatures.",
    "error: GH008: Your push referenced at least 1 unknown Git LFS object",
    "GitLab: You are not allowed to push code to protected branches on this project.",
)


def test_a_refused_delivery_leaves_nothing_and_names_the_way_out(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    mission = kit.take(kit.issue())
    people = _people(kit)
    people.archive(kit.name)
    kit.work()
    assert (_delivery(kit, mission).state, _delivery(kit, mission).remedy) == (
        "blocked",
        "unarchive it, then promote again",
    )
    people.set(kit.name, archived=False)
    hook = tmp_path / "forge" / f"{kit.name}.git" / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    for words in RULES:
        hook.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{words}\nEND\nexit 1\n")
        hook.chmod(0o755)
        kit.step()
        delivery = _delivery(kit, mission)
        assert delivery.state == "blocked"
        assert words.splitlines()[-1].strip(" -") in delivery.reason
        assert "requests.branch" in delivery.remedy
    hook.unlink()
    people.rename(kit.name, "renamed")
    kit.step()
    assert (_delivery(kit, mission).state, _delivery(kit, mission).remedy) == ("blocked", "use ada/renamed")
    bare = tmp_path / "forge" / "ada/renamed.git"
    assert run_git(bare, "for-each-ref", "refs/heads/chargehand") == ""
    assert people.ada.find_requests("ada/renamed", kit.link(mission).branch) == []


def test_a_request_that_a_person_names_is_refused_in_words(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    clone, bare = tmp_path / "clone", tmp_path / "forge" / f"{kit.name}.git"
    run_git(clone, "commit", "-q", "--allow-empty", "-m", "by a person")
    run_git(clone, "push", "-q", str(bare), "HEAD:refs/heads/theirs")
    new = NewRequest(title="theirs", body="", head="theirs", base="main", draft=False)
    page = kit.bob.open_request(kit.name, new).url
    with kit.app() as app, pytest.raises(RefusedError, match="not an issue") as caught:
        take_issue(app, page, RunRequest(yes=True))
    assert caught.value.code == "issue_request"
    assert "name the issue" in (caught.value.hint or "")
    assert kit.step() == 0
    assert kit.stories() == {}


def test_a_merged_request_of_an_earlier_branch_of_the_same_name_is_left_alone(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    number = kit.issue()
    first = kit.take(number)
    kit.work()
    kit.step()
    request = kit.request(first)
    kit.ada.merge(kit.name, request.number, commit=request.head_commit, method="merge")
    run_git(tmp_path / "forge" / f"{kit.name}.git", "update-ref", "-d", f"refs/heads/{request.head}")
    kit.step()
    # Rolled back here, the result gets no second request.
    with kit.app() as app:
        asyncio.run(roll_back_mission(app, first))
    assert [each.number for each in kit.ada.find_requests(kit.name, request.head)] == [request.number]
    run_git(tmp_path / "forge" / f"{kit.name}.git", "update-ref", "-d", f"refs/heads/{request.head}")
    kit.ada.change_issue(kit.name, number, is_open=True)
    # Another machine has never seen the branch.
    other = _elsewhere(kit)
    other.configure("echo more >> README.md; echo '# more' >> calc/core.py")
    second = other.take(number)
    assert other.link(second).branch == request.head
    other.work()
    newest, oldest = kit.ada.find_requests(kit.name, request.head)
    assert (newest.is_open, oldest.number) == (True, request.number)
    assert newest.head_commit == other.state(second).commit
    # A branch that is still there is not used again.
    other.step()
    kit.ada.merge(kit.name, newest.number, commit=newest.head_commit, method="merge")
    other.step()
    kit.ada.change_issue(kit.name, number, is_open=True)
    assert kit.link(kit.take(number)).branch == f"{request.head}-2"


def _elsewhere(kit: ForgeKit) -> ForgeKit:
    other = copy.copy(kit)
    other.home = used_state(kit.place / "other")
    other.environ = {**kit.environ, "CHARGEHAND_HOME": str(other.home)}
    return other


def test_two_servers_that_watch_take_an_issue_once(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    number = kit.issue()
    other = _elsewhere(kit)
    with ThreadPoolExecutor(2) as pool:
        taken = list(pool.map(ForgeKit.step, (kit, other)))
    assert sum(taken) == 1
    for each in (kit, other, kit, other):
        assert each.step() == 0
    assert len(kit.comments(number)) == 1


def test_while_a_forge_is_away_nothing_is_given_up(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    number = kit.issue()
    mission = kit.take(number)
    forge, away = tmp_path / "forge", tmp_path / "away"
    with kit.app() as app:
        watch = ForgeWatch(app)
        forge.rename(away)
        for _ in range(4):
            assert watch.step(hurry=True) == 0
        assert kit.state(mission).status == "planned"
        assert [each.mission for each in kit.stories().values()] == [mission]
        away.rename(forge)
        kit.bob.add_comment(kit.name, number, "/stop")
        watch.step(hurry=True)
        watch.step(hurry=True)
    assert kit.state(mission).status == "cancelled"
    assert len(kit.comments(number)) == 2


def test_of_thousands_of_comments_the_newest_are_given_to_the_agent() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    issue = ForgeIssue(
        repository="ada/calc", number=1, url="", title="t", body="b", author="ada", is_open=True, updated=now
    )
    comments = [
        ForgeComment(id=each, author="ada", body=f"comment {each} " + "y" * 200, created=now, updated=now)
        for each in range(5_000)
    ]
    text = issue_request(issue, comments)
    assert "comment 4999 " in text
    assert "comment 4950 " in text
    assert "(4950 older comments are left out.)" in text
    assert len(text) < 20_000


class _Failing:
    """Fails each kind of call once: reads with a page or half a document, changes with 502, done or not."""

    def __init__(self, host: GitlabHost) -> None:
        self._host, self._failed = host, dict[str, Answer]()

    def __call__(self, asked: Asked) -> Answer | None:
        kind = f"{asked.method} {re.sub(r'/[0-9a-f]+', '/N', asked.path)}"
        if asked.token != "token-robot" or kind in self._failed:
            return None
        is_even = len(self._failed) % 2 == 0
        page = Answer(200, headers={"content-type": "text/html"}, content=b"<html>maintenance</html>")
        half = Answer(200, content=b'{"id": 1, "titl')
        self._failed[kind] = page if is_even else half
        if asked.method != "GET":
            if is_even:
                self._host.answer(asked)  # done, and only its answer is lost
            self._failed[kind] = Answer(502, content=b"<html>bad gateway</html>")
        return self._failed[kind]

    def __len__(self) -> int:
        return len(self._failed)


def test_whatever_a_forge_answers_first_nothing_is_doubled_or_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RequestTarget, "retry_seconds", ())
    root = tmp_path / "forge"
    root.mkdir()
    host = LocalStoryHost(root)
    stand_in = GitlabHost(root)
    host.kind, host.url = "gitlab", stand_in.server.url
    monkeypatch.setattr(host, "token", lambda login: f"token-{login}")
    kit = ForgeKit(tmp_path, REVISED, host=host)
    failing = _Failing(stand_in)
    stand_in.server.faults.append(failing)
    number = kit.issue()
    while not kit.stories():
        kit.step()
    (story,) = kit.stories().values()
    kit.work()
    for _ in range(8):
        kit.step()
    request = kit.request(story.mission)
    stand_in.submit_review(kit.name, request.number, "changes", "", [("calc/core.py", 1, "one")])
    while next(iter(kit.stories().values())).mission == story.mission:
        kit.step()
    kit.work()
    for _ in range(8):
        kit.step()
    (later,) = kit.stories().values()
    assert _delivery(kit, later.mission).state == "done"
    now = kit.request(story.mission)
    assert now.head_commit == kit.state(later.mission).commit
    assert [each.author for each in kit.ada.review_comments(kit.name, now.number)] == ["bob", "robot"]
    assert [each.state for each in kit.ada.statuses(kit.name, now.head_commit)] == ["success"]
    kit.ada.merge(kit.name, now.number, commit=now.head_commit, method="merge")
    while kit.stories():
        kit.step()
    assert len(kit.comments(number)) == 1
    assert "the request was merged" in kit.comments(number)[0]
    assert len(failing) >= 14
    stand_in.close()
