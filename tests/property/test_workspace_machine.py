"""Random work on a mounted workspace: a scan reports what git would report, and nothing kept is ever lost."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.workspace_kit import Operation, WorkspaceKit, cloning_disk, operate, oracle, write

from chargehand.core.ports import DriverName
from chargehand.core.records import Checkpoint
from chargehand.workspace.workspace import Workspace

_NAMES = [
    "a",
    "b",
    "src",
    "docs",
    "README.md",
    "util.py",
    "x.log",
    "build",
    "keep.log",
    "é",
    "raw name",
    "-x",
    "vendor",
]
_KNOWN = [
    "src/app.py",
    "src/lib/util.py",
    "src/lib/deep/data.txt",
    "docs/a.md",
    "run.sh",
    "src/lib",
    "src",
    "docs",
]
_PATHS = st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3).map("/".join) | st.sampled_from(_KNOWN)
_CONTENT = st.sampled_from([b"", b"hello\n", b"print('app')\n", b"other\n", b"\0binary\xff", b"--- a/x\n"])
_OPERATIONS = st.one_of(
    st.builds(write, _PATHS, _CONTENT),
    st.builds(write, _PATHS, _CONTENT),
    st.tuples(st.just("append"), _PATHS, st.just(b"more\n".hex())),
    st.tuples(st.just("remove"), _PATHS),
    st.tuples(st.just("mkdir"), _PATHS),
    st.tuples(st.just("mode"), _PATHS, st.sampled_from([0o755, 0o644])),
    st.tuples(st.just("link"), _PATHS, st.sampled_from(["a", "README.md", "nowhere", "."])),
    st.tuples(st.just("move"), _PATHS, _PATHS),
)


class Work(RuleBasedStateMachine):
    """A workspace that is edited, checkpointed, rolled back and reopened in any order."""

    driver: ClassVar[DriverName]
    place: ClassVar[Path | None] = None

    def __init__(self) -> None:
        super().__init__()
        self._scratch = tempfile.TemporaryDirectory(dir=self.place)
        self.kept: dict[str, Checkpoint] = {}

    @initialize()
    def begin(self) -> None:
        self.kit = WorkspaceKit(Path(self._scratch.name))
        self.workspace = self.kit.workspace(self.driver)

    def teardown(self) -> None:
        if hasattr(self, "workspace"):
            self._all_can_be_restored()
            self.workspace.discard()
        self._scratch.cleanup()

    @rule(operations=st.lists(_OPERATIONS, min_size=1, max_size=8))
    def work(self, operations: list[Operation]) -> None:
        operate(self.workspace, [_off_the_rules(operation) for operation in operations], strict=False)

    @rule()
    def checkpoint(self) -> None:
        tree = self.workspace.scan().tree
        made = self.workspace.checkpoint("work")
        assert made.tree == tree == oracle(self.workspace, self.kit.depot())
        self.kept[made.commit] = made

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def roll_back(self, data: Any) -> None:
        target = data.draw(st.sampled_from(list(self.kept)))
        before = self.workspace.scan().tree
        tree = self.kept[target].tree
        back = self.workspace.reset(tree, "rollback")
        assert self.workspace.scan().tree == back.tree == tree == oracle(self.workspace, self.kit.depot())
        assert before in {checkpoint.tree for checkpoint in self.workspace.checkpoints()}
        self.kept[back.commit] = back

    @precondition(lambda self: self.kept)
    @rule(data=st.data(), paths=st.lists(_PATHS, min_size=1, max_size=3))
    def roll_back_files(self, data: Any, paths: list[str]) -> None:
        target = data.draw(st.sampled_from(list(self.kept)))
        depot, source = self.kit.depot(), self.kept[target].tree
        before = self.workspace.scan().tree
        expected = depot.replace_paths(before, paths, source)
        back = self.workspace.reset_paths(paths, source)
        assert self.workspace.scan().tree == back.tree == expected
        for change in depot.diff(before, expected):
            assert any(_is_at_or_beside(change.path, path) for path in paths)

    @rule()
    def reopen(self) -> None:
        self.workspace = Workspace.load(self.kit.open(), self.workspace.id)

    @rule()
    def tidy(self) -> None:
        self.workspace.tidy()

    @invariant()
    def scans_agree(self) -> None:
        if hasattr(self, "workspace"):
            found = self.workspace.scan()
            assert self.workspace.scan(trust_cache=False) == found
            assert found.changes == self.kit.depot().diff(self.workspace.base.tree, found.tree)
            assert not [f for f in found.findings if f.severity in ("critical", "error")]

    def _all_can_be_restored(self) -> None:
        for checkpoint in list(self.kept.values())[-3:]:
            again = self.kit.workspace(self.driver, tree=checkpoint.tree)
            assert again.scan().tree == checkpoint.tree
            again.discard()


def _off_the_rules(operation: Operation) -> Operation:
    """Leave out links that lead out of the workspace once moved (another test's); keep the ignore file."""
    if operation[0] == "link" and "/" in operation[1]:
        return ("link", operation[1], "a")
    return operation


def _is_at_or_beside(path: str, named: str) -> bool:
    return path == named or path.startswith(f"{named}/") or named.startswith(f"{path}/")


def _settings(*, examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=8,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=False,
    )


class OverlayWork(Work):
    driver = "overlay"


class WorktreeWork(Work):
    driver = "worktree"


class ReflinkWork(Work):
    driver = "reflink"


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with cloning_disk("btrfs", tmp_path_factory.mktemp("disk")) as place:
        ReflinkWork.place = place
        yield
    ReflinkWork.place = None


TestOverlay = OverlayWork.TestCase
TestOverlay.settings = _settings(examples=12)
TestWorktree = WorktreeWork.TestCase
TestWorktree.settings = _settings(examples=10)  # it shares most code with the driver that clones
TestReflink = pytest.mark.needs_root(pytest.mark.usefixtures("clones")(ReflinkWork.TestCase))
TestReflink.settings = _settings(examples=6)
