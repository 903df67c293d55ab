"""Inspection acts at once on critical findings and by path on errors; it is never green without seeing all."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import git, repository_state
from tests.native_kit import MENDS, NativeKit, call, says, scripted

from chargehand.checks.inspection import Inspection, examine
from chargehand.core.state import MissionState
from chargehand.missions.attempt import inspection as _inspection
from chargehand.missions.attempt import runner as _attempt
from chargehand.missions.attempt.watching import CheckpointPacing
from mission_kit import FILES, GOLD, MissionKit

pytestmark = pytest.mark.needs_bwrap


def codes(state: MissionState) -> set[str]:
    return {reason.code for reason in state.reasons}


def depot_of(kit: MissionKit) -> Path:
    (depot,) = kit.home.glob("projects/*/depot.git")
    return depot


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_attempt, "PACE", CheckpointPacing(seconds=0.3, quiet=0.1, note=0.1))


@pytest.mark.usefixtures("often")
def test_a_critical_finding_stops_a_running_agent_and_discards_its_work(tmp_path: Path) -> None:
    kit = MissionKit(tmp_path)
    before = repository_state(kit.repository, without="\0")
    # If the mission waited for the agent, it would run out of time.
    state = kit.run(f"{GOLD}; ln -s /etc/passwd leak; sleep 600; rm leak")
    assert (state.status, codes(state)) == ("refused", {"entry_link_out"})
    assert state.base is not None
    last = state.checkpoints[-1]
    assert (last.trigger, last.tree) == ("discarded", state.base.tree)
    assert repository_state(kit.repository, without="\0") == before


@pytest.mark.usefixtures("often")
def test_a_finding_that_is_not_critical_does_not_stop_an_agent(tmp_path: Path) -> None:
    state = MissionKit(tmp_path).run(
        f"{GOLD}; mkdir .ci; echo 'AKIA''QWERTYUIOPASDFGH' > k; sleep 1.5; rm -r k .ci"
    )
    assert state.status == "promoted", state.reasons


KINDS = {
    # by severity of the rule: the agent's extra act, and the paths that remain in its tree
    "critical": ("mkfifo pipe", None),
    "error": (
        "echo 'k = \"AKIA''QWERTYUIOPASDFGH\"' > k.py; echo '# fine' >> README.md",
        ("README.md", "calc/core.py"),
    ),
    "warning": ("printf 'a\\0b' > a.bin", ("a.bin", "calc/core.py")),
    "info": ("echo '*.tmp' >> .gitignore", (".gitignore", "calc/core.py")),
}


@pytest.mark.parametrize("severity", KINDS)
def test_the_severity_decides_which_changes_are_kept(tmp_path: Path, severity: str) -> None:
    extra, kept = KINDS[severity]
    act = "echo new > new.txt; echo '# more' >> calc/__init__.py; rm LICENSE"
    others = {"new.txt", "calc/__init__.py", "LICENSE"}
    kit = MissionKit(tmp_path, {**FILES, "LICENSE": "mine\n"})
    state = kit.run(f"{GOLD}; {act}; {extra}", partial=True)
    assert state.base is not None
    depot = depot_of(kit)
    tree = state.checkpoints[-1].tree
    touched = git(depot, "diff-tree", "-r", "--name-only", "-z", state.base.tree, tree).split("\0")
    assert set(filter(None, touched)) == ({*kept, *others} if kept else set())
    assert state.status == ("promoted" if kept else "refused"), state.reasons
    if kept:
        assert (
            git(depot, "cat-file", "-p", f"{tree}:calc/core.py")
            == FILES["calc/core.py"].replace("a - b", "a + b").strip()
        )


def degraded(*arguments: Any, **options: Any) -> Inspection:
    found = examine(*arguments, **options)
    return Inspection(
        findings=found.findings, looked=0, total=found.total, cached=0, seconds=0, degraded=True, reason="held up"
    )


def test_an_incomplete_inspection_is_never_promoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = MissionKit(tmp_path)
    before = repository_state(kit.repository, without="\0")
    with monkeypatch.context() as hold:
        hold.setattr(_inspection, "examine", degraded)
        state = kit.run(GOLD)
        assert (state.status, codes(state)) == ("refused", {"inspection_incomplete"})
        assert repository_state(kit.repository, without="\0") == before


def test_a_critical_finding_stops_a_native_agent_after_the_action(tmp_path: Path) -> None:
    kit = NativeKit(tmp_path)
    kit.model("scripted", scripted((says("", call("bash", command="mkfifo pipe")), *MENDS)))
    state = kit.native(attempts=1)
    assert (state.status, codes(state)) == ("refused", {"entry_special"})
    assert state.attempts[0].calls == 1, "it was asked for nothing more"


NAMES = ["with space.txt", 'quo"te.txt', "ünï 日本.txt", "-dash.txt", "a => b.txt", "back\\slash.txt"]
HEADERS = "--- a/evil.py\\n+++ b/evil.py\\n@@ -1 +1 @@\\ndiff --git a/x b/x\\nrename to ../../etc\\n"


def test_odd_names_and_content_like_a_diff_touch_exactly_their_paths(tmp_path: Path) -> None:
    kit = MissionKit(tmp_path)
    secret = "AKIA''QWERTYUIOPASDFGH"
    writes = "; ".join(f"printf '%b' '{HEADERS}{secret}' > ./{shlex.quote(name)}" for name in NAMES)
    state = kit.run(f"{GOLD}; {writes}", partial=True)
    assert state.base is not None
    assert state.status == "promoted", (
        state.reasons,
        [(p.trigger, p.tree) for p in state.checkpoints],
        state.reverted,
    )
    touched = git(
        depot_of(kit), "diff-tree", "-r", "--name-only", "-z", state.base.tree, state.checkpoints[-2].tree
    ).split("\0")
    assert {*NAMES, "calc/core.py"} == set(filter(None, touched))
    assert {each.path for each in state.reverted} == set(NAMES)
    assert state.status == "promoted"
    assert git(kit.repository, "diff", "--name-only", "main", state.commit or "") == "calc/core.py"
