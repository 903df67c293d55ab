"""A request whose target branch moves: the merge is judged again, conflicts are worked on, red merges mended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forge_kit import ForgeKit

from chargehand.app.forges import take_issue
from chargehand.configuration.run_options import RunRequest
from chargehand.core.ids import keyed_id
from chargehand.forges.contract import CommitStatus
from chargehand.testing.forges.case import run_git
from mission_kit import FILES, GOLD

pytestmark = pytest.mark.needs_bwrap

CORE = FILES["calc/core.py"]
# A person changes meanwhile: another file, the agent's line, and a test that fails with the agent's change only.
BESIDE = {"README.md": "# calc\n\nIt adds.\n"}
ON_IT = {"calc/core.py": CORE.replace("a - b", "a - b  # sums two numbers")}
BREAKING = {
    "tests/test_more.py": (
        "import unittest\nfrom calc.core import add\n\n\nclass More(unittest.TestCase):\n"
        "    def test_more(self):\n"
        "        self.assertTrue(add(1, 1) == 0 or 'zero' in open('calc/core.py').read())\n"
    )
}


def _open_request(kit: ForgeKit) -> tuple[int, str]:
    number = kit.issue()
    mission = kit.take(number)
    kit.work()
    assert kit.state(mission).deliveries["request"].state == "done"
    kit.step()  # shows the result
    return number, mission


def _newest(kit: ForgeKit) -> str:
    (story,) = kit.stories().values()
    return story.mission


def _git(kit: ForgeKit, *words: str) -> str:
    return run_git(kit.place / "forge" / f"{kit.name}.git", *words)


def test_a_moved_target_is_merged_and_judged_again(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    _, first = _open_request(kit)
    before = kit.request(first).head_commit
    tip = kit.push("main", BESIDE)
    kit.step()
    second = _newest(kit)
    assert second != first
    kit.work()
    state = kit.state(second)
    assert state.status == "promoted", state.reasons
    # No agent worked on it, and the exact tree of the merge was judged.
    assert len(state.attempts) == len(kit.state(first).attempts)
    assert [each.status for each in state.verdicts if each.tree == state.tree][-1] == "green"
    request = kit.request(first)
    assert request.head_commit == state.commit
    assert _git(kit, "rev-parse", f"{request.head_commit}^@").split() == [before, tip]
    merged = _git(kit, "merge-tree", "--write-tree", before, tip)
    assert _git(kit, "rev-parse", f"{request.head_commit}^{{tree}}") == merged == state.tree
    (status,) = kit.ada.statuses(kit.name, request.head_commit)
    assert (status.context, status.state) == ("chargehand", "success")
    # Nothing more happens for the same tip, and another move is merged on top.
    kit.step()
    kit.step()
    assert _newest(kit) == second
    tip = kit.push("main", {"NEWS.md": "more\n"})
    kit.step()
    kit.work()
    head = kit.request(first).head_commit
    assert _git(kit, "rev-parse", f"{head}^@").split() == [request.head_commit, tip]


def test_conflicts_are_shown_and_worked_on(tmp_path: Path) -> None:
    again = "sed -i 's/a - b/a + b/' calc/core.py"
    kit = ForgeKit(tmp_path, f"case \"$CHARGEHAND_REQUEST\" in *'has moved'*) {again} ;; *) {GOLD} ;; esac")
    _, first = _open_request(kit)
    before = kit.request(first).head_commit
    tip = kit.push("main", ON_IT)
    kit.step()
    (shown,) = kit.comments(kit.request(first).number)
    assert "does not merge with this request" in shown
    assert "sums two numbers" in shown
    assert "return a + b" in shown
    kit.step()
    assert len(kit.comments(kit.request(first).number)) == 1
    second = _newest(kit)
    kit.work()
    state = kit.state(second)
    assert state.status == "promoted", state.reasons
    head = kit.request(first).head_commit
    assert _git(kit, "rev-parse", f"{head}^@").split() == [before, tip]
    assert "return a + b  # sums two numbers" in _git(kit, "show", f"{head}:calc/core.py")
    assert kit.link(second).round == 1


def test_a_merge_that_is_red_is_mended(tmp_path: Path) -> None:
    mend = "echo '# zero' >> calc/core.py"
    kit = ForgeKit(tmp_path, f"if grep -q test_more tests/*.py; then {mend}; else {GOLD}; fi")
    _, first = _open_request(kit)
    kit.push("main", BREAKING)
    kit.step()
    kit.work()
    second = _newest(kit)
    assert kit.state(second).status == "refused"
    kit.step()
    assert kit.acts(second) == ["mend"]
    kit.work()
    state = kit.state(second)
    assert state.status == "promoted", state.reasons
    assert len(state.attempts) == 2
    assert kit.request(first).head_commit == state.commit


def test_a_merge_that_stays_red_leaves_the_request_and_says_so(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    number, first = _open_request(kit)
    head = kit.request(first).head_commit
    kit.push("main", BREAKING)
    kit.step()
    kit.work()
    kit.step()
    kit.work()
    second = _newest(kit)
    assert kit.state(second).status == "refused"
    kit.step()
    (said,) = kit.comments(kit.request(first).number)
    assert "no further result" in said
    # The request is followed as before: it is not tried again for this tip, and a merge ends the work.
    assert _newest(kit) == first
    kit.step()
    assert _newest(kit) == first
    assert kit.request(first).head_commit == head
    kit.ada.merge(kit.name, kit.request(first).number, commit=head, method="merge")
    kit.step()
    assert kit.stories() == {}
    assert not kit.ada.issue(kit.name, number).is_open


def test_a_replaced_target_needs_a_person(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    _, first = _open_request(kit)
    clone = tmp_path / "other"
    run_git(tmp_path, "init", "-q", "-b", "main", str(clone))
    (clone / "new.txt").write_text("another history\n")
    run_git(clone, "add", "-A")
    run_git(clone, "commit", "-q", "-m", "replaced")
    run_git(clone, "push", "-q", "--force", str(tmp_path / "forge" / f"{kit.name}.git"), "main")
    kit.step()
    kit.step()
    (said,) = kit.comments(kit.request(first).number)
    assert "A person has to resolve" in said
    assert _newest(kit) == first


def test_approvals_outlast_merges_with_the_target(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path, merge='"approved"')
    number, first = _open_request(kit)
    request = kit.request(first)
    kit.push("main", BESIDE)
    kit.host.review("bob", request.number, "approved", "fine")
    # Before it is merged by rule, the present target is merged and judged.
    kit.step()
    assert kit.request(first).merged is None
    kit.work()
    kit.step()
    kit.step()
    kit.step()
    assert kit.request(first).merged is not None
    kit.step()
    assert not kit.ada.issue(kit.name, number).is_open


def test_the_target_is_merged_only_as_configured(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path, update='"conflict"')
    _, first = _open_request(kit)
    kit.push("main", BESIDE)
    kit.step()
    assert _newest(kit) == first
    kit.configure(GOLD, update='"never"')
    kit.push("main", ON_IT)
    kit.step()
    assert _newest(kit) == first
    kit.configure(GOLD, update='"conflict"')
    kit.step()
    assert _newest(kit) != first


def test_a_failed_round_is_said_and_can_be_started_again(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path, f"case \"$CHARGEHAND_REQUEST\" in *'Answer the review'*) exit 3 ;; *) {GOLD} ;; esac")
    _, first = _open_request(kit)
    request = kit.request(first)
    red = CommitStatus(context="ci/build", state="failure", description="it does not build")
    kit.ada.set_status(kit.name, request.head_commit, red)
    kit.step()
    second = _newest(kit)
    assert second != first
    kit.work()
    assert kit.state(second).status != "promoted"
    kit.step()
    (said,) = kit.comments(request.number)
    assert "no further result" in said
    kit.step()
    assert _newest(kit) == first
    # The same check does not start it again, but a person's word does.
    kit.bob.add_comment(kit.name, request.number, "/revise try once more", is_request=True)
    kit.step()
    assert _newest(kit) not in (first, second)


def _take_plan(kit: ForgeKit, number: int) -> str:
    """Take an issue with a plan of two tasks, and have it delivered."""
    agent = {name: f'command:sh -c "{what}"' for name, what in (("fix", GOLD), ("note", "echo new > a.txt"))}
    tasks = [{"id": name, "text": f"do {name}", "agent": each} for name, each in agent.items()]
    tasks[1]["checks"] = ["cat *.txt"]
    plan = {"tasks": [tasks[0], {**tasks[1], "after": ["fix"]}]}
    (kit.place / "plan.json").write_text(json.dumps(plan))
    with kit.app() as app:
        request = RunRequest(yes=True, plan=str(kit.place / "plan.json"), agent="fixer", red_base="go")
        first = take_issue(app, f"home:{kit.name}#{number}", request)
    kit.work()
    assert kit.state(first).status == "promoted", kit.state(first).reasons
    return first


def test_a_plan_is_one_request_with_rounds_and_updates_like_any(tmp_path: Path) -> None:
    kit = ForgeKit(
        tmp_path, "case \"$CHARGEHAND_REQUEST\" in *'Answer the review'*) echo '# revised' >> a.txt ;; esac"
    )
    first = _take_plan(kit, kit.issue())
    state = kit.state(first)
    opened = kit.request(first)
    assert opened.head_commit == state.commit
    kit.step()
    kit.host.review("bob", opened.number, "changes", "please revise", [("a.txt", 1, "more")])
    kit.step()
    second = _newest(kit)
    assert second != first
    kit.work()
    assert kit.state(second).deliveries["request"].state == "done", kit.state(second)
    revised = kit.request(first).head_commit
    assert _git(kit, "rev-parse", f"{revised}^") == opened.head_commit
    assert _git(kit, "show", f"{revised}:a.txt") == "new\n# revised"
    kit.step()
    tip = kit.push("main", BESIDE)
    kit.step()
    kit.work()
    assert _git(kit, "rev-parse", f"{kit.request(first).head_commit}^@").split() == [revised, tip]


def test_a_result_of_a_plan_is_merged_with_the_checks_of_its_tasks(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path, "true")
    first = _take_plan(kit, kit.issue())
    kit.step()
    kit.push("main", BESIDE)
    kit.step()
    second = _newest(kit)
    assert second != first
    kit.work()
    state = kit.state(second)
    assert state.status == "promoted", state.reasons
    (last,) = [each for each in state.verdicts if each.tree == state.tree][-1:]
    assert "cat *.txt" in {each.name for each in last.checks}


def test_an_interrupted_update_is_made_by_the_next_visit(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path)
    _, first = _open_request(kit)
    tip = kit.push("main", BESIDE)
    made = keyed_id("mission", f"update {tip} {first}")
    with kit.app() as app:
        # As if the watch had been killed before it recorded the mission.
        depot = app.projects.mission_depot(app.mission_state(first))
        commit = depot.read_ref(f"refs/chargehand/missions/{first}")
        assert commit is not None
        for which in ("base", "onto"):
            depot.swap(f"refs/chargehand/forks/{made}-{which}", commit, None)
    kit.step()
    assert _newest(kit) == made
    kit.work()
    assert kit.state(made).status == "promoted"
