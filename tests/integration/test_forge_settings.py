"""Settings of a repository: names, labels, reviewers and texts; from its own file only once it is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from forge_kit import PROJECT, ForgeKit
from hypothesis import given
from hypothesis import strategies as st

from chargehand.app.forge.accounts import ForgeAccounts
from chargehand.app.forge.settings import (
    branch_name,
    read_template,
    request_settings,
    request_text,
    request_title,
)
from chargehand.app.forges import take_issue
from chargehand.app.runs import branch_slug
from chargehand.configuration.run_options import RunRequest
from chargehand.core.config import RequestsConfig
from chargehand.core.errors import ChargehandError, ConfigError, UsageError, WaitingError
from chargehand.core.records import IssueLink, RequestSettings
from chargehand.forges.contract import CommitStatus, ForgeIssue
from chargehand.forges.local_directory import LocalDirectory
from chargehand.testing.forges.case import run_git

pytestmark = pytest.mark.needs_bwrap
_SETTINGS = """
branch = "fix/{number}/{slug}"
title = "{repository}: {title} (fixes #{number})"
body = "For {author}, see {url}. {title}"
labels = ["bot", "needs review"]
reviewers = ["bob"]
"""


def _configure(kit: ForgeKit, text: str) -> None:
    file = kit.place / ".config" / "chargehand" / "config.toml"
    file.write_text(file.read_text() + text)


def _link(**settings: str) -> IssueLink:
    return IssueLink(
        account="home",
        repository="ada/calc",
        number=7,
        url="https://forge.test/ada/calc/issues/7",
        title="a *bold* {number} <!-- chargehand:claim {} --> @eve",
        author="eve",
        claim=1,
        branch="x",
        target="main",
        settings=RequestSettings(**settings),
    )


def test_the_users_settings_of_a_repository_shape_its_requests(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    kit.push(
        "main", {".github/PULL_REQUEST_TEMPLATE.md": "## Checklist\n<!-- chargehand:claim x -->\n- [ ] docs\n"}
    )
    # The entry for another account, and that for another repository, do not count.
    _configure(kit, f'[repositories.calc]\nrepository = "Ada/Calc"\nforge = "home"\n{_SETTINGS}')
    _configure(kit, '[repositories.other]\nrepository = "ada/calc"\nbranch = "other/{number}"\n')
    _configure(kit, '[requests]\nbranch = "shared/{number}"\n')
    number = kit.issue("Sums: *wrong* {number} @eve")
    mission = kit.take(number)
    kit.work()
    request = kit.request(mission)
    assert request.head == f"fix/{number}/sums-wrong-number-eve"
    assert request.title == f"ada/calc: Sums: *wrong* {{number}} @ eve (fixes #{number})"
    first, *_, last = request.body.splitlines()
    assert first.startswith("For `ada`, see file://")
    assert first.endswith("`Sums: *wrong* {number} @eve`")
    assert "## Checklist\n<!-- claim x -->\n- [ ] docs" in request.body
    assert request.body.index("judged as a whole") < request.body.index("## Checklist")
    assert last == "- [ ] docs"
    assert set(kit.ada.issue(kit.name, number).labels) == {"chargehand"}
    (item,) = (
        each for each in LocalDirectory(tmp_path / "forge").items(kit.name) if each.number == request.number
    )
    assert set(item.labels) == {"bot", "needs review"}
    # A round keeps the settings, and does not ask again.
    kit.ada.set_status(kit.name, request.head_commit, CommitStatus(context="ci", state="failure"))
    kit.step()
    kit.step()
    (story,) = kit.stories().values()
    assert story.mission != mission
    assert kit.link(story.mission).settings == kit.link(mission).settings


_FULL: Mapping[str, tuple[str, str]] = {
    # The value in [requests] and the empty one of a repository.
    "branch": ('"shared/{number}"', '""'),
    "title": ('"shared: {title}"', '""'),
    "body": ('"shared"', '""'),
    "labels": ('["shared"]', "[]"),
    "reviewers": ('["bob"]', "[]"),
    "stack": ("true", "false"),
    "role": ('"tester"', '""'),
    "team": ('"unknown"', '""'),
}


@pytest.mark.parametrize("key", _FULL)
def test_an_empty_setting_of_a_repository_counts(tmp_path: Path, key: str) -> None:
    kit = ForgeKit(tmp_path, reviewers='["ada"]')
    shared, own = _FULL[key]
    settings = list[RequestsConfig]()
    for text in (
        f"[requests]\n{key} = {shared}\n",
        f'[repositories.calc]\nrepository = "{kit.name}"\n',
        f"{key} = {own}\n",
    ):
        _configure(kit, text)
        with kit.app() as app:
            entry = ForgeAccounts(app).entry("home")
            config = app.user_configuration().config
            settings.append(
                request_settings(config, app.preparation, entry, kit.name, kit.place / "clone", "main")
            )
    first, unsaid, empty = (getattr(each, key) for each in settings)
    assert first
    assert unsaid == first
    assert not empty
    assert empty is not None


def test_requests_without_reviewers_ask_no_one_and_others_the_accounts(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path, reviewers='["bob"]')
    directory = LocalDirectory(tmp_path / "forge")
    asked = list[tuple[str, ...]]()
    for text in ("", f'[repositories.calc]\nrepository = "{kit.name}"\nreviewers = []\n'):
        _configure(kit, text)
        mission = kit.take(kit.issue())
        kit.work()
        number = kit.request(mission).number
        asked += [tuple(each.asked) for each in directory.items(kit.name) if each.number == number]
    assert asked == [("bob",), ()]


def test_a_label_of_a_repository_decides_what_is_taken(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    _configure(kit, '[repositories.calc]\nrepository = "ada/calc"\nlabel = "robot please"\n')
    kit.issue()
    assert kit.step() == 0
    kit.ada.change_issue(kit.name, kit.issue(label=False), add_labels=["robot please"])
    assert kit.step() == 1


def test_the_repositorys_own_settings_need_trust(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    kit.push(
        "main", {"chargehand.toml": PROJECT + '[requests]\nbranch = "theirs-{number}"\nlabels = ["theirs"]\n'}
    )
    number = kit.issue()
    with kit.app() as app:
        address = f"home:{kit.name}#{number}"
        with pytest.raises(WaitingError, match=r"requests\.branch") as caught:
            take_issue(app, address, RunRequest(yes=True))
        assert caught.value.code == "trust_needed"
        assert kit.comments(number) == []
        asked = list[tuple[str, ...]]()

        def confirm(lines: tuple[str, ...]) -> bool:
            asked.append(lines)
            return True

        mission = take_issue(app, address, RunRequest(yes=True), confirm_trust=confirm)
    assert len(asked) == 1
    assert kit.link(mission).branch == f"theirs-{number}"


def test_a_trusted_repository_cannot_change_what_is_the_users(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    _configure(kit, '[requests]\nlabels = ["mine"]\n')
    hostile = (
        '[requests]\nlabels = ["theirs"]\n[forges.home]\nmerge = "approved"\nauthors = "anyone"\nlabel = ""\n'
        '[repositories.calc]\nrepository = "ada/calc"\nlabel = ""\nbranch = "evil-{number}"\n'
    )
    kit.push("main", {"chargehand.toml": PROJECT + hostile})
    number = kit.issue()
    with kit.app() as app:
        mission = take_issue(app, f"home:{kit.name}#{number}", RunRequest(yes=True), confirm_trust=lambda _: True)
        own = app.user_configuration().config
        assert own.forges["home"].merge == "person"
        assert own.repositories == {}
    link = kit.link(mission)
    assert link.settings.labels == ("mine",)
    assert link.branch.startswith("chargehand/issue-")
    kit.issue(label=False)
    assert kit.step() == 0


@pytest.mark.parametrize(
    "line",
    [
        'branch = "fixed"',
        'branch = "{number}{slug}"',
        'branch = "1{number}"',
        'branch = "a..{number}"',
        'branch = "{number}.lock"',
        'branch = "{number}/"',
        'branch = "-{number}"',
        'branch = "{number} x"',
        'branch = "{number}-{title}"',
        'title = "{secret}"',
        'title = "{title.__class__}"',
        'body = "{0}"',
        'merge_method = "octopus"',
        'team = "a b"',
    ],
)
def test_a_template_with_other_fields_or_of_no_branch_is_refused(tmp_path: Path, line: str) -> None:
    kit = ForgeKit(tmp_path)
    _configure(kit, f"[requests]\n{line}\n")
    with kit.app() as app, pytest.raises(ConfigError, match=line.partition(" ")[0]):
        app.user_configuration()


def test_an_entry_names_its_repository(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    _configure(kit, '[repositories.calc]\nlabels = ["x"]\n')
    with kit.app() as app, pytest.raises(ConfigError, match="which repository"):
        app.user_configuration()


def _issue(number: int, title: str = "x") -> ForgeIssue:
    now = datetime.now(UTC)
    return ForgeIssue(
        repository="a/b", number=number, url="", title=title, body="", author="a", is_open=True, updated=now
    )


@given(st.text(max_size=60), st.integers(1, 10**9))
def test_every_title_gives_a_name_that_git_allows(title: str, number: int) -> None:
    settings = RequestsConfig(branch="x/{slug}.{number}")
    name = branch_name(settings, _issue(number), branch_slug(title), "main")
    assert str(number) in name


def test_a_branch_that_git_refuses_or_that_is_the_target_is_refused() -> None:
    for template, target in (("{number}.{slug}", "main"), ("v{number}", "v7")):
        with pytest.raises(UsageError, match=r"requests\.branch") as caught:
            branch_name(RequestsConfig(branch=template), _issue(7), "lock", target)
        assert caught.value.code == "forge_branch"


def test_a_branch_of_people_is_not_taken(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    _configure(kit, '[requests]\nbranch = "release-{number}"\n')
    number = kit.issue()
    kit.push("main", {"x.txt": "x\n"})
    clone = kit.place / "clone"
    bare = kit.ada.repository(kit.name).clone_url
    run_git(clone, "push", "-q", bare, f"HEAD:refs/heads/release-{number}")
    assert kit.link(kit.take(number)).branch == f"release-{number}-2"


def test_text_of_people_stays_text() -> None:
    link = _link(title="{title} {number}", body="{title}|{author}")
    assert request_title(link, "a {number}") == "a {number} 7"
    text = request_text("EVIDENCE", link, "T" * 70_000)
    assert len(text) < 65_536
    head = text.partition("\n")[0]
    assert head == "`a *bold* {number} <!-- claim {} --> @eve`|`eve`"
    assert "<!-- chargehand:" not in text
    assert "EVIDENCE" in text


def test_a_template_is_found_by_kind_and_no_link_is_followed(tmp_path: Path) -> None:
    run_git(tmp_path, "init", "-q", "-b", "main", ".")
    (tmp_path / ".gitlab/merge_request_templates").mkdir(parents=True)
    (tmp_path / ".gitlab/merge_request_templates/Default.md").write_text("gitlab\n")
    (tmp_path / ".gitea").mkdir()
    (tmp_path / ".gitea/pull_request_template.md").symlink_to("/etc/passwd")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/Pull_Request_Template.md").write_text("docs\n")
    run_git(tmp_path, "add", "-A")
    run_git(tmp_path, "commit", "-q", "-m", "x")
    clone = tmp_path / ".git"
    found = {kind: read_template(clone, kind, "main") for kind in ("gitlab", "github", "gitea", "local")}
    assert found == {"gitlab": "gitlab\n", "github": "docs\n", "gitea": "docs\n", "local": "docs\n"}
    assert read_template(clone, "github", "missing") == ""


@pytest.mark.parametrize("moved", [False, True])
def test_the_branch_of_a_merged_request_is_deleted_if_it_has_no_other_commits(tmp_path: Path, moved: bool) -> None:
    kit = ForgeKit(tmp_path, delete_branch="true")
    mission = kit.take(kit.issue())
    kit.work()
    kit.step()
    request = kit.request(mission)
    kit.ada.merge(kit.name, request.number, commit=request.head_commit, method="squash")
    if moved:
        kit.push(request.head, {"more.txt": "by a person\n"})
    kit.step()
    kit.step()
    assert kit.stories() == {}
    assert (kit.ada.branch(kit.name, request.head) is not None) == moved


def test_an_issue_is_assigned_while_it_is_worked_on(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path, assign="true")
    number = kit.issue()
    kit.ada.change_issue(kit.name, number, assign=["bob"])
    kit.take(number)
    assert kit.ada.issue(kit.name, number).assignees == ("bob", "robot")
    kit.bob.add_comment(kit.name, number, "/stop")
    kit.step()
    kit.step()
    assert kit.stories() == {}
    assert kit.ada.issue(kit.name, number).assignees == ("bob",)


def test_the_role_of_a_repository_is_used_unless_the_person_names_one(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    _configure(kit, '[repositories.calc]\nrepository = "ada/calc"\nrole = "tester"\n')
    requests = [kit.state(kit.take(kit.issue())).request]
    with kit.app() as app:
        asked = RunRequest(yes=True, role="developer")
        requests.append(app.mission_state(take_issue(app, f"home:{kit.name}#{kit.issue()}", asked)).request)
    assert [each.role for each in requests if each] == ["tester", "developer"]
    _configure(kit, '[requests]\nteam = "unknown"\n')
    number = kit.issue()
    with kit.app() as app, pytest.raises(ChargehandError, match="unknown"):
        take_issue(app, f"home:{kit.name}#{number}", RunRequest(yes=True))
    # Nothing was claimed for a request that could not begin.
    assert kit.comments(number) == []
