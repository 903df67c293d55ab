"""Mistakes of earlier tools: for each, the tests that show that we do not repeat it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.workspace_kit import WorkspaceKit, agent, operate, write

TESTS = Path(__file__).parents[1]
CONTRACT = TESTS.parent / "src/chargehand/testing/workspace"
MISTAKES: dict[str, tuple[str, ...]] = {
    "staged, committed or ignored changes are invisible": (
        "test_commit_and_stash_inside_are_seen",
        "test_git_commands_inside_hide_no_changes",
        "test_ignored_byte_code_does_not_make_broken_source_pass",
    ),
    "content lines that look like headers fool the path check": ("test_content_that_looks_like_a_patch",),
    "containment by string prefix": ("test_allow_and_forbid_are_by_components", "test_targets_that_are_refused"),
    "reverted is reported when nothing was": (
        "test_resetting_unchanged_paths_makes_no_checkpoint",
        "test_outside_the_allowed_areas_is_set_back",
    ),
    "the same invalid tree is skipped the second time": (
        "test_an_invalid_tree_is_as_invalid_the_second_time",
        "test_a_verdict_of_another_tree_is_a_miss",
    ),
    "a roll-back un-applies the checkpoint it names": ("test_rollback_shows_exactly_the_tree_and_can_be_undone",),
    "a lock lets three of four in": (
        "test_only_a_single_concurrent_claim_succeeds",
        "test_a_lock_is_exclusive_between_processes",
    ),
    "many new files in a new directory count as one": ("test_five_hundred_files_in_a_new_directory",),
    "one git process for each new file": ("test_new_files_cost_no_git_process",),
    "gates are green on missing steps, reports and tests": (
        "test_pytest_fails_closed",
        "test_unittest_fails_closed",
        "test_a_verdict_without_checks_is_missing_unless_explicit",
        "test_a_check_that_did_not_pass_is_red",
        "test_missing_and_unusable_commands",
        "test_an_invalid_junit_report_is_refused",
        "test_a_test_suite_without_tests_fails",
    ),
    "a timeout kills the child alone": (
        "test_a_timeout_is_no_pass_and_leaves_no_process",
        "test_hang_is_stopped_and_its_last_writes_are_kept",
    ),
    "loops are not seen": (
        "test_each_loop_is_detected_with_its_pattern",
        "test_numbers_times_and_ids_make_no_difference",
    ),
    "unknown cost is booked as nothing": (
        "test_a_call_of_unknown_cost_stays_booked_at_its_reserve",
        "test_an_unlisted_model_has_no_price_unless_a_price_is_assumed",
    ),
    "any approval that is not empty is accepted": (
        "test_trust_applies_only_to_the_exact_content",
        "test_trust_is_granted_per_project_and_content_digest",
        "test_a_failed_result_cannot_be_promoted_by_a_person",
    ),
}


def test_every_mistake_has_its_tests() -> None:
    sources = [*TESTS.rglob("test_*.py"), *CONTRACT.glob("*_contract.py")]
    text = "\n".join(path.read_text() for path in sources)
    missing = [name for names in MISTAKES.values() for name in names if f"def {name}(" not in text]
    assert missing == []


def test_new_files_cost_no_git_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim, log = tmp_path / "bin/git", tmp_path / "log"
    shim.parent.mkdir()
    real = next(
        place for part in os.environ["PATH"].split(":") if os.access(place := os.path.join(part, "git"), os.X_OK)
    )
    shim.write_text(f"#!/bin/sh\necho \"$*\" >> '{log}'\nexec '{real}' \"$@\"\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shim.parent}:{os.environ['PATH']}")
    kit = WorkspaceKit(tmp_path / "crashes")
    few, many = kit.workspace(), kit.workspace()
    counts = []
    for workspace, number, directory in ((few, 1, "a"), (many, 500, "a"), (few, 1, "b"), (many, 500, "b")):
        operate(workspace, [write(f"{directory}/{name}", str(name)) for name in range(number)])
        log.write_text("")
        assert workspace.checkpoint("x").changed == number
        counts.append(len(log.read_text().splitlines()))
    # The first checkpoint creates its ref; only git moves it to the second one.
    assert counts == [0, 0, 1, 1]


def test_an_invalid_tree_is_as_invalid_the_second_time(tmp_path: Path) -> None:
    kit = WorkspaceKit(tmp_path)
    workspace = kit.workspace("worktree")
    agent(workspace, "ln -s /etc/passwd l; mkfifo pipe; echo x > s; chmod u+s s; mkdir .GIT; echo fine > fine")
    first = workspace.scan()
    assert len(first.findings) == 4
    assert workspace.scan() == first
    workspace.checkpoint("x", scan=first)
    assert workspace.scan() == first
    again = type(workspace).load(kit.open(), workspace.id)
    assert again.scan().findings == first.findings


def test_resetting_unchanged_paths_makes_no_checkpoint(tmp_path: Path) -> None:
    kit = WorkspaceKit(tmp_path)
    workspace = kit.workspace()
    agent(workspace, "echo x > x")
    kept = workspace.checkpoint("x")
    assert workspace.reset_paths(["README.md", "no/such", "repo-evil"], workspace.base.tree) == kept
    assert len(list(workspace.checkpoints())) == 1


def test_a_lock_is_exclusive_between_processes(tmp_path: Path) -> None:
    """Four processes increment a number, protected only by the lock: no increment is lost."""
    script = (
        "import sys; from pathlib import Path; from chargehand.workspace.host.files import hold_lock\n"
        "place = Path(sys.argv[1])\n"
        "for _ in range(50):\n"
        "    with hold_lock(place / 'lock'):\n"
        "        (place / 'n').write_text(str(int((place / 'n').read_text()) + 1))\n"
    )
    (tmp_path / "n").write_text("0")
    words = [sys.executable, "-c", script, str(tmp_path)]
    processes = [subprocess.Popen(words) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert (tmp_path / "n").read_text() == "200"
