"""Rolling a workspace back: it follows the plan, can be undone completely, and leaves no ignored file."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.trees_kit import EXECUTABLE, FILE, LINK, File, files_of, make_tree
from tests.workspace_kit import Operation, WorkspaceKit, agent, operate, write

from chargehand.core.errors import NotFoundError, UsageError
from chargehand.core.ports import DriverName
from chargehand.core.records import Checkpoint, Finding
from chargehand.workspace.depot import Depot
from chargehand.workspace.hunks import LineRange
from chargehand.workspace.rollback import Drop, PathPlan, RollbackPlan, drops_of, plan_rollback, write_rollback
from chargehand.workspace.workspace import Workspace

DRIVERS: tuple[DriverName, ...] = ("overlay", "worktree")
PROGRAM = "def one():\n    return 1\n\n\ndef two():\n    return 2\n\n\ndef three():\n    return 3\n"
GOOD = PROGRAM.replace("return 1", "return 10")
MIXED = GOOD.replace("return 3", "import os; return os.system('x')")


def lines(first: int, last: int | None = None) -> tuple[LineRange, ...]:
    return (LineRange(first=first, last=last or first),)


def plan_for(
    kit: WorkspaceKit, workspace: Workspace, target: str, drops: Sequence[Drop] | None = None
) -> RollbackPlan:
    return plan_rollback(kit.depot(), workspace.scan().tree, target, drops=drops)


def carry_out(kit: WorkspaceKit, workspace: Workspace, plan: RollbackPlan) -> Checkpoint:
    return workspace.reset(write_rollback(kit.depot(), plan), "rollback")


def by_path(plan: RollbackPlan) -> dict[str, PathPlan]:
    return {path.path: path for path in plan.paths}


def actions(plan: RollbackPlan) -> dict[str, str]:
    return {path.path: path.action for path in plan.paths}


def state_of(workspace: Workspace, depot: Depot) -> tuple[object, ...]:
    files = sorted((str(p), p.lstat().st_mtime_ns) for p in workspace.directory.rglob("*"))
    objects = sorted(str(path) for path in depot.reader.objects.rglob("*"))
    return depot.read_ref(workspace.ref), files, objects


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_rollback_plan_changes_no_state_and_is_carried_out_as_planned(
    kit: WorkspaceKit, driver: DriverName
) -> None:
    workspace, depot = kit.workspace(driver), kit.depot()
    agent(
        workspace,
        "echo one >> README.md; rm docs/a.md; echo new > src/new.py; mkdir build; echo old > build/x.pyc",
    )
    first = workspace.checkpoint("first")
    agent(
        workspace, "echo two >> README.md; echo two > docs/b.md; mv src/app.py src/moved.py; chmod +x src/new.py"
    )
    last = workspace.checkpoint("last")
    before = state_of(workspace, depot)
    for drops in (None, [Drop(path="docs"), Drop(path="README.md")], [Drop(path="README.md", lines=lines(3))]):
        assert plan_for(kit, workspace, first.tree, drops=drops).source == last.tree
    assert state_of(workspace, depot) == before
    plan = plan_for(kit, workspace, first.tree, drops=[Drop(path="docs"), Drop(path="README.md")])
    assert plan.kind == "files"
    assert actions(plan) == {
        "README.md": "restored",
        "docs/b.md": "restored",
        "src/app.py": "kept",
        "src/moved.py": "kept",
        "src/new.py": "kept",
    }
    assert by_path(plan)["src/moved.py"].renamed_from == "src/app.py"
    made = carry_out(kit, workspace, plan)
    assert (made.tree, workspace.scan(trust_cache=False).tree) == (plan.result, plan.result)
    assert agent(workspace, "cat README.md docs/b.md; ls src") == "hello\none\nb\nlib\nmoved.py\nnew.py\n"
    assert "gone" in agent(workspace, "test -e build/x.pyc || echo gone")


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_rollback_keeps_unsaved_work_as_a_checkpoint(kit: WorkspaceKit, driver: DriverName) -> None:
    workspace, depot = kit.workspace(driver), kit.depot()
    agent(workspace, "echo one >> README.md")
    first = workspace.checkpoint("first")
    agent(workspace, "echo two >> README.md")
    second = workspace.checkpoint("second")
    agent(workspace, "echo unsaved > unsaved; echo x > ignored.log")
    unsaved = workspace.scan().tree
    back = workspace.reset(first.tree, "rollback")
    assert back.tree == first.tree  # the content of the named checkpoint is not reverted with the rest
    assert files_of(depot, back.tree)["README.md"] == (FILE, b"hello\none\n")
    assert "ignored.log" not in agent(workspace, "ls -A")
    assert workspace.reset(unsaved, "back").tree == unsaved
    assert [point.tree for point in workspace.checkpoints()] == [
        *(unsaved, first.tree, unsaved, second.tree, first.tree)
    ]


def test_only_changed_paths_are_reported_as_reverted(kit: WorkspaceKit) -> None:
    workspace = kit.workspace("worktree")
    agent(workspace, "echo x >> docs/a.md")
    point = workspace.checkpoint("edit")
    same = plan_for(kit, workspace, point.tree)
    assert (same.paths, same.reverted, same.result) == ((), (), point.tree)
    plan = plan_for(kit, workspace, workspace.base.tree, drops=[Drop(path="README.md"), Drop(path="src")])
    assert (plan.reverted, plan.unchanged, plan.result) == ((), ("README.md", "src"), point.tree)
    assert carry_out(kit, workspace, plan) == point
    with pytest.raises(NotFoundError):
        plan_for(kit, workspace, workspace.base.tree, drops=[Drop(path="nosuch")])
    with pytest.raises(NotFoundError) as caught:
        plan_for(kit, workspace, "0" * 40)
    assert caught.value.code == "tree_not_found"


@pytest.mark.parametrize("driver", DRIVERS)
def test_smart_keeps_the_valid_hunks_and_their_tests_pass(kit: WorkspaceKit, driver: DriverName) -> None:
    (kit.repository / "program.py").write_text(PROGRAM)
    (kit.repository / ".gitignore").write_text("__pycache__/\n")
    kit.commit()
    workspace = kit.workspace(driver)
    operate(workspace, [write("program.py", MIXED), write("__pycache__/program.cpython-311.pyc", "planted")])
    workspace.checkpoint("edit")
    finding = Finding(rule="no_system", severity="error", path="program.py", message="", line=10)
    harmless = Finding(rule="hint", severity="warning", path="program.py", message="", line=2)
    plan = plan_for(kit, workspace, workspace.base.tree, drops=drops_of([finding, harmless]))
    assert plan.kind == "smart"
    (path,) = plan.paths
    assert (path.action, [hunk.kept for hunk in path.hunks]) == ("partly", [True, False])
    carry_out(kit, workspace, plan)
    assert agent(workspace, "cat program.py") == GOOD
    test = "from program import one, two, three; assert (one(), two(), three()) == (10, 2, 3)"
    agent(workspace, f"python3 -B -c '{test}'; test ! -e __pycache__")


@pytest.mark.parametrize(
    ("past", "present", "why"),
    [
        ((FILE, b"a\0b\n"), (FILE, b"a\0c\n"), "is binary"),
        ((FILE, b"a\n"), (LINK, b"a"), "is not a file in both"),
        ((LINK, b"a"), (LINK, b"b"), "is not a file in both"),
        (None, (FILE, b"a\n"), "is new, which is one hunk"),
        ((FILE, b"a\n"), None, "is deleted, which is one hunk"),
        ((FILE, b"\n" * 200_001), (FILE, b"a\n"), "is too large to compare by lines"),
    ],
)
def test_a_file_without_hunks_is_reverted_whole_with_a_reason(
    kit: WorkspaceKit, past: File | None, present: File | None, why: str
) -> None:
    depot = kit.depot()
    source = make_tree(depot, {"kept": b"x"} | ({"f": present} if present else {}))
    target = make_tree(depot, {"f": past} if past else {})
    plan = plan_rollback(depot, source, target, drops=[Drop(path="f", lines=lines(1))])
    planned = by_path(plan)["f"]
    assert (planned.action, planned.why) == ("restored" if past else "deleted", why)
    assert plan.result == make_tree(depot, {"kept": b"x"} | ({"f": past} if past else {}))


def test_lines_that_no_hunk_holds(kit: WorkspaceKit) -> None:
    depot = kit.depot()
    source, target = make_tree(depot, {"f": b"1\nX\n3\n4\n5\n"}), make_tree(depot, {"f": b"1\n2\n3\n4\n5\n"})
    with pytest.raises(UsageError) as caught:
        plan_rollback(depot, source, target, drops=[Drop(path="f", lines=lines(4))])
    assert "line 2" in caught.value.hint
    of_a_rule = Drop(path="f", lines=lines(4), because="some_rule")
    plan = plan_rollback(depot, source, target, drops=[of_a_rule])
    assert (plan.result, by_path(plan)["f"].why) == (target, "breaks a rule in line 4, which is in no hunk")
    whole = [Drop(path="f", lines=lines(2)), Drop(path="f")]
    assert plan_rollback(depot, source, target, drops=whole).result == target


def test_line_ends_modes_and_renames_by_hunk(kit: WorkspaceKit) -> None:
    depot = kit.depot()
    past = b"".join(b"%d\r\n" % n for n in range(20)) + b"last"
    present = past.replace(b"3\r\n", b"3\n", 1).replace(b"last", b"last\n")
    target = make_tree(depot, {"f": past, "gone": b"g"})
    source = make_tree(depot, {"sub/new": (EXECUTABLE, present), "gone": b"g"})
    ends = plan_rollback(depot, source, target, drops=[Drop(path="sub/new", lines=lines(4))])
    assert by_path(ends)["sub/new"].renamed_from == "f"
    assert actions(ends) == {"f": "kept", "sub/new": "partly"}
    expected = {"sub/new": (EXECUTABLE, past.replace(b"last", b"last\n")), "gone": (FILE, b"g")}
    assert ends.result == make_tree(depot, expected)
    newline = plan_rollback(depot, source, target, drops=[Drop(path="sub/new", lines=lines(21))])
    assert newline.result == make_tree(depot, {"sub/new": (EXECUTABLE, present[:-1]), "gone": b"g"})
    of_a_rule = Drop(path="sub/new", lines=lines(10), because="some_rule")
    whole = plan_rollback(depot, source, target, drops=[of_a_rule])
    assert whole.result == target  # a rename is reverted together with its source: nothing is lost
    only_mode = make_tree(depot, {"f": (EXECUTABLE, past), "gone": b"g"})
    assert plan_rollback(depot, only_mode, target, drops=[Drop(path="f")]).result == target
    with pytest.raises(UsageError):
        plan_rollback(depot, only_mode, target, drops=[Drop(path="f", lines=lines(1))])


def test_names_are_paths_and_not_beginnings_of_names(kit: WorkspaceKit) -> None:
    depot = kit.depot()
    source = make_tree(depot, {"repo/a": b"1", "repo-evil/a": b"1", "repo\udcff": b"1"})
    target = make_tree(depot, {"repo/a": b"0", "repo-evil/a": b"0", "repo\udcff": b"0"})
    plan = plan_rollback(depot, source, target, drops=[Drop(path="repo/")])
    assert actions(plan) == {"repo-evil/a": "kept", "repo/a": "restored", "repo\udcff": "kept"}
    odd = plan_rollback(depot, source, target, drops=[Drop(path="repo\udcff")])
    assert files_of(depot, target)["repo\udcff"] == (FILE, b"0")
    assert [path.path for path in odd.reverted] == ["repo\udcff"]


_EDITS = st.one_of(
    st.builds(
        write, st.sampled_from(["README.md", "n/a", "docs/a.md", "x.log"]), st.sampled_from(["1\n", "2\n", ""])
    ),
    st.tuples(st.just("remove"), st.sampled_from(["docs", "src/app.py", "README.md", "n"])),
    st.tuples(st.just("move"), st.just("src"), st.just("moved")),
    st.tuples(st.just("mode"), st.just("run.sh"), st.just(0o755)),
    st.tuples(st.just("link"), st.sampled_from(["l", "docs"]), st.just("README.md")),
)


@given(rounds=st.lists(st.lists(_EDITS, min_size=8, max_size=12), min_size=3, max_size=3), to=st.integers(0, 2))
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_after_any_edits_every_checkpoint_can_be_gone_back_to(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[Operation]], to: int
) -> None:
    kit = WorkspaceKit(tmp_path_factory.mktemp("kit"))
    workspace = kit.workspace("overlay")
    points: list[Checkpoint] = []
    for edits in rounds:
        operate(workspace, edits, strict=False)
        points.append(workspace.checkpoint("edit"))
    plan = plan_for(kit, workspace, points[to].tree)
    assert plan.source == points[-1].tree
    assert carry_out(kit, workspace, plan).tree == points[to].tree
    assert workspace.scan(trust_cache=False).tree == points[to].tree
    assert points[-1] in workspace.checkpoints()
    workspace.discard()
