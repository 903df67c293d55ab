"""A plan as a stack: each task is a request on top of the one before it, merged in this order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forge_kit import ForgeKit

from chargehand.app.forges import take_issue
from chargehand.configuration.run_options import RunRequest
from chargehand.forges.contract import ForgeRequest
from chargehand.testing.forges.case import run_git
from mission_kit import GOLD

pytestmark = pytest.mark.needs_bwrap
REVISE = "case \"$CHARGEHAND_REQUEST\" in *'Answer the review'*) echo '# revised' >> a.txt ;; esac"


def take_plan(kit: ForgeKit, number: int) -> str:
    """Take an issue with a plan of three tasks, each after the one before, and have it done."""
    whats = {"fix": GOLD, "note": "echo new > a.txt", "more": "echo more > b.txt"}
    tasks = [
        {"id": name, "text": f"do {name} @bob", "agent": f'command:sh -c "{what}"', "after": after}
        for (name, what), after in zip(whats.items(), ([], ["fix"], ["note"]), strict=True)
    ]
    (kit.place / "plan.json").write_text(json.dumps({"tasks": tasks}))
    with kit.app() as app:
        request = RunRequest(yes=True, plan=str(kit.place / "plan.json"), agent="fixer", red_base="go")
        mission = take_issue(app, f"home:{kit.name}#{number}", request)
    kit.work()
    assert kit.state(mission).status == "promoted", kit.state(mission).reasons
    return mission


def stack(kit: ForgeKit) -> None:
    """Configure a stack."""
    file = kit.place / ".config" / "chargehand" / "config.toml"
    file.write_text(f'{file.read_text()}[repositories.calc]\nrepository = "{kit.name}"\nstack = true\n')


def parts(kit: ForgeKit, mission: str) -> list[ForgeRequest]:
    """Return the requests, the lowest first."""
    branch = kit.link(mission).branch
    names = (f"{branch}-part-1", f"{branch}-part-2", branch)
    return [kit.ada.find_requests(kit.name, name)[0] for name in names]


def test_each_task_is_a_request_on_the_one_before_it(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path, REVISE, delete_branch="true")
    stack(kit)
    number = kit.issue()
    mission = take_plan(kit, number)
    first, second, last = parts(kit, mission)
    assert (first.base, second.base, last.base) == ("main", first.head, second.head)
    assert [each.draft for each in (first, second, last)] == [False, False, False]
    bare = tmp_path / "forge" / f"{kit.name}.git"
    for lower, upper in ((first, second), (second, last)):
        assert run_git(bare, "rev-parse", f"{upper.head_commit}^") == lower.head_commit
    for place, each in enumerate((first, second, last), 1):
        assert f"Part {place} of 3" in each.body
        assert "@bob" not in each.title
        (status,) = kit.ada.statuses(kit.name, each.head_commit)
        assert (status.context, status.state) == ("chargehand", "success")
    # The last one alone closes the issue.
    assert [f"Closes #{number}" in each.body for each in (first, second, last)] == [False, False, True]
    # A remark on a lower one is worked on on top, and answered in its thread.
    kit.step()
    kit.host.review("bob", second.number, "changes", "", [("a.txt", 1, "say more")])
    kit.step()
    kit.work()
    kit.step()
    (story,) = kit.stories().values()
    assert story.mission != mission
    replies = kit.ada.review_comments(kit.name, second.number)
    assert [each.author for each in replies] == ["bob", "robot"]
    assert parts(kit, mission)[1].head_commit == second.head_commit
    last = parts(kit, mission)[2]
    assert run_git(bare, "show", f"{last.head_commit}:a.txt") == "new\n# revised"
    # Merged from below, the next one moves to the target each time.
    kit.ada.merge(kit.name, first.number, commit=first.head_commit, method="merge")
    kit.step()
    assert [each.base for each in parts(kit, mission)[1:]] == ["main", second.head]
    kit.ada.merge(kit.name, second.number, commit=second.head_commit, method="merge")
    kit.step()
    assert parts(kit, mission)[2].base == "main"
    kit.step()
    kit.work()  # the merge with the target is judged
    kit.step()
    last = parts(kit, mission)[2]
    kit.ada.merge(kit.name, last.number, commit=last.head_commit, method="merge")
    kit.step()
    kit.step()
    assert kit.stories() == {}
    assert not kit.ada.issue(kit.name, number).is_open
    assert [kit.ada.branch(kit.name, each.head) for each in (first, second, last)] == [None, None, None]
