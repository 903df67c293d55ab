"""A workspace at a commit of its tree: truncated histories, merged trees, files left by setup, resets."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.conftest import git
from tests.trees_kit import make_commit, make_tree
from tests.workspace_kit import FILES, WorkspaceKit, agent

from chargehand.core.ports import DriverName
from chargehand.workspace.head import Head
from chargehand.workspace.workspace import Workspace

CHANGED = {**{path: text.encode() for path, text in FILES.items()}, "README.md": b"hullo\n", "new.py": b"1\n"}


@pytest.fixture(params=["overlay", "worktree"])
def driver(request: pytest.FixtureRequest) -> DriverName:
    name: DriverName = request.param
    return name


def at_head(kit: WorkspaceKit, driver: DriverName, *parents: str, **options: object) -> Workspace:
    """Make a workspace of the changed files, at a commit with these parents (by default the base)."""
    depot, base = kit.depot(), kit.base()
    commit = make_commit(depot, CHANGED, *(parents or (base.commit,)))
    head = Head(commit=commit, branch="chargehand/x")
    tree = depot.tree_of(commit)
    return Workspace.create(depot, base, driver=driver, tree=tree, head=head, **options)  # type: ignore[arg-type]


def test_a_shallow_history_keeps_its_end(tmp_path: Path, driver: DriverName) -> None:
    kit = WorkspaceKit(tmp_path)
    for number in range(3):
        (kit.repository / "docs/a.md").write_text(f"{number}\n")
        kit.commit(f"c{number}")
    git(tmp_path, "clone", "-q", "--depth=2", f"file://{kit.repository}", "shallow")
    kit.repository = tmp_path / "shallow"
    workspace = at_head(kit, driver)
    assert (
        agent(workspace, "git log --format=%s; git status --porcelain -- README.md; git fsck") == "made\nc2\nc1\n"
    )


def test_a_history_with_holes_ends_at_the_base(tmp_path: Path, driver: DriverName) -> None:
    kit = WorkspaceKit(tmp_path)
    (kit.repository / "docs/a.md").write_text("later\n")
    kit.commit("later")
    depot, base = kit.depot(), kit.base()
    lost = git(kit.repository, "rev-parse", "HEAD^^{tree}")
    (depot.path / "objects" / lost[:2] / lost[2:]).unlink()
    workspace = at_head(kit, driver)
    assert agent(workspace, "git log --format=%s; git diff --stat HEAD; git fsck") == "made\nlater\n"
    assert agent(workspace, "git diff --name-only HEAD^ HEAD").split() == ["README.md", "docs/a.md", "new.py"]
    assert depot.tree_of(base.commit) == base.tree


def test_a_merged_tree_has_the_tip_of_its_branch_as_parent(tmp_path: Path, driver: DriverName) -> None:
    kit = WorkspaceKit(tmp_path)
    depot, base = kit.depot(), kit.base()
    before = make_commit(depot, {**CHANGED, "tip.txt": b"only in between\n"}, base.commit)
    tip = make_commit(depot, {**CHANGED, "README.md": b"tip\n"}, before)
    workspace = at_head(kit, driver, tip)
    assert agent(workspace, "git diff --name-only HEAD^ HEAD; git fsck") == "README.md\n"
    assert agent(workspace, "git show HEAD~2:tip.txt; git rev-list --count HEAD") == "only in between\n4\n"
    # A rebase onto another commit leaves two parents.
    other = at_head(kit, driver, tip, base.commit)
    assert agent(other, "git rev-list --parents -1 HEAD").split()[1:] == [tip, base.commit]


def test_files_made_by_setup_are_not_reported_as_untracked(tmp_path: Path, driver: DriverName) -> None:
    kit = WorkspaceKit(tmp_path)
    layer = tmp_path / "layer"
    for name in ("calc.egg-info/PKG-INFO", "src/b ü[i]lt*.txt", "src/lib/deep/x", ".venv/x", "new.py", "-#x\\"):
        path = layer / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("made by setup\n")
    workspace = at_head(kit, driver, environment=layer)
    assert agent(workspace, "test -f calc.egg-info/PKG-INFO; cat new.py; git status --porcelain") == "1\n"
    assert agent(workspace, "touch built.txt src/lib/y; git status --porcelain").split() == [
        *("??", "built.txt"),
        *("??", "src/lib/y"),
    ]


def test_files_overlaid_by_the_sandbox_are_not_reported_as_changes(tmp_path: Path, driver: DriverName) -> None:
    kit = WorkspaceKit(tmp_path)
    depot, base = kit.depot(), kit.base()
    commit = make_commit(depot, CHANGED, base.commit)
    shown = ("README.md", "new.py", "docs/a.md", "tests/new [1].py")
    head = Head(commit=commit, branch="chargehand/x", overlaid=shown)
    workspace = Workspace.create(depot, base, driver=driver, tree=depot.tree_of(commit), head=head)
    lay = "mkdir tests; for each in README.md new.py docs/a.md 'tests/new [1].py'; do echo own > \"$each\"; done"
    assert agent(workspace, f"{lay}; git status --porcelain; git diff HEAD --stat; git ls-files | wc -l") == "9\n"
    assert agent(workspace, "echo x > docs/b.md; git status --porcelain").split() == ["M", "docs/b.md"]


def test_a_file_written_again_at_once_is_noticed(tmp_path: Path, driver: DriverName) -> None:
    workspace = at_head(WorkspaceKit(tmp_path), driver)
    script = "printf 'hallo\\n' > README.md; git diff --name-only; git checkout -q README.md; git diff --exit-code"
    assert agent(workspace, script) == "README.md\n"


def test_a_branch_that_no_other_can_be_named_below_keeps_its_name(tmp_path: Path, driver: DriverName) -> None:
    kit = WorkspaceKit(tmp_path)
    for name in ("chargehand", "chargehand/x/y"):
        base = replace(kit.base(), branch=name)
        depot = kit.depot()
        tree = make_tree(depot, CHANGED)
        head = Head(commit=depot.commit(tree, (base.commit,), "x"), branch="chargehand/x")
        depot.bases.directory.rename(
            tmp_path / f"bases of {name.replace('/', ' ')}"
        ) if name != "chargehand" else None
        workspace = Workspace.create(depot, base, driver=driver, tree=tree, head=head)
        assert agent(workspace, "git branch --show-current; git rev-list --count HEAD").split() == [name, "2"]


def test_head_is_the_base_in_a_new_attempt_and_after_a_reset(tmp_path: Path, driver: DriverName) -> None:
    kit = WorkspaceKit(tmp_path)
    workspace = at_head(kit, driver)
    attempt = kit.workspace(driver, tree=workspace.scan().tree)
    assert agent(attempt, "git rev-parse HEAD; git status --porcelain").split() == [
        kit.base().commit,
        *("M", "README.md"),
        *("??", "new.py"),
    ]
    workspace.reset(kit.base().tree, "rollback")
    assert agent(workspace, "git rev-parse HEAD; git status --porcelain").split() == [kit.base().commit]
    found = Workspace.load(kit.open(), at_head(kit, driver).id)
    assert agent(found, "git log -1 --format=%s").strip() == "made"
