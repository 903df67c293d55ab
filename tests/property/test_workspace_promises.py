"""P1, P2, P5 together: sandboxes, checkpoints, roll-backs, forks, promotions, crashes, a person; in any order.

After each step the person's repository is as the person left it, except for branches that hold promoted trees;
every reported checkpoint exists; workspaces show the last change made to them; and everything ended is gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.promises_kit import MISSIONS, Lane, World
from tests.promises_side import REFUSED
from tests.promises_tools import Side, settle
from tests.workspace_kit import cloning_disk

from chargehand.core.errors import ChargehandError, InfrastructureError
from chargehand.core.ports import DriverName
from chargehand.core.records import Checkpoint
from chargehand.workspace.workspace import Workspace

_PATHS = st.sampled_from(
    [
        "README.md",
        "docs/a.md",
        "docs",
        "src/app.py",
        "src/lib",
        "run.sh",
        "left",
        "right",
        "new/deep/x",
        "é",
        "x.log",
    ]
)
_TEXTS = st.sampled_from(["", "hello\n", "one\ntwo\nthree\n", "BAD\n", "--- a/x\n", "print('app')\n"])
_OPERATIONS = st.one_of(
    st.tuples(st.just("write"), _PATHS, _TEXTS),
    st.tuples(st.just("append"), _PATHS, st.just("more\n")),
    st.tuples(st.just("remove"), _PATHS),
    st.tuples(st.just("mkdir"), _PATHS),
    st.tuples(st.just("mode"), _PATHS, st.sampled_from([0o755, 0o644])),
    st.tuples(st.just("link"), st.sampled_from(["a", "b"]), st.sampled_from(["README.md", "nowhere"])),
    st.tuples(st.just("move"), _PATHS, _PATHS),
)
_FIRST = (
    [("write", "src/app.py", "1\n2\n3\n"), ("write", "left", "x\n")],
    [("move", "left", "right")],  # passes alone, but not when merged with the one before
    [("append", "docs/a.md", "BAD\n")],
)
_EDITS = st.lists(_OPERATIONS, min_size=1, max_size=6)
_GIT_INSIDE = st.sampled_from(
    [
        "git add -A && git commit -qm mine --allow-empty && git branch -f other && git tag -f t",
        "echo stashed >> README.md; git stash -q",
        "git update-ref refs/heads/chargehand/one HEAD; git config core.hooksPath hooks; echo x > .git/index",
        "git checkout -q -f HEAD -- . ; git clean -qfd",
    ]
)
_PERSON = st.sampled_from(
    [
        ("commit", "-qam", "mine", "--allow-empty"),
        ("add", "-A"),
        ("stash", "push", "-q", "-u"),
        ("stash", "pop", "-q"),
        ("switch", "-q", "-C", "topic"),
        ("switch", "-q", "main"),
        ("switch", "-q", "chargehand/one"),
        ("branch", "-f", "chargehand/one", "main"),
        ("branch", "-f", "chargehand/two", "chargehand/one"),
        ("branch", "-D", "chargehand/one"),
        ("branch", "-f", "chargehand", "main"),
        ("reset", "-q", "--hard"),
        ("gc", "-q", "--prune=now"),
    ]
)
_FILES = st.lists(_PATHS, min_size=1, max_size=2, unique=True)
_WAYS = ("reset", "reset_paths")
_ROLLBACK_POINTS = ("checkpoint:written", "checkpoint:made", "generation:filled", "reset:filled", "reset:switched")
_PROMOTION_POINTS = (
    *("before_commit", "prepared", "swapped", "promoted", "signed", "exported"),
    *("notes:written", "export:begin", "export:objects", "export:done"),
)
_WITHDRAWAL_POINTS = (
    "rollback_prepared",
    "rolled_back",
    "export:begin",
    "export:objects",
    "export:done",
    "exported",
)
_AT = ("work", "idle", "frozen")
_FORK_POINTS = ("generation:filled", "workspace:filled")


class Promises(RuleBasedStateMachine):
    """A world in which everything happens in any order."""

    driver: ClassVar[DriverName]
    place: ClassVar[Path | None] = None
    side: ClassVar[Side]

    @initialize()
    def begin(self) -> None:
        self.world = World(self.driver, self.side, place=self.place)
        (lane,) = self.world.lanes
        for operations in _FIRST:
            self.world.edit(lane, operations)
            self.noted(lane)
            self.world.tell(lane, lane.workspace.checkpoint("first"))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.end()

    @invariant()
    def promises_hold(self) -> None:
        if hasattr(self, "world"):
            self.world.examine()

    def lane(self, data: st.DataObject) -> Lane:
        return self.world.lanes[data.draw(st.integers(0, len(self.world.lanes) - 1), label="lane")]

    # --- inside

    @rule(data=st.data(), operations=_EDITS)
    def edit(self, data: st.DataObject, operations: list[Any]) -> None:
        lane = self.lane(data)
        self.world.edit(lane, operations)
        self.noted(lane)

    @rule(data=st.data(), script=st.just("") | _GIT_INSIDE)
    def use_git_or_keep_writing(self, data: st.DataObject, script: str) -> None:
        lane = self.lane(data)
        if script:
            self.world.run(self.world.sandbox(lane).exec(["sh", "-c", script]))
            self.noted(lane)
        else:
            self.world.keep_writing(lane)

    def noted(self, lane: Lane) -> None:
        """Note the tree of a quiet workspace after it changed itself."""
        if lane.tree is not None:
            lane.tree = lane.workspace.scan().tree

    # --- checkpoints

    @rule(data=st.data(), thaw=st.booleans())
    def checkpoint(self, data: st.DataObject, thaw: bool) -> None:
        lane = self.lane(data)
        frozen = self.frozen(lane)
        made = lane.workspace.checkpoint("work")
        assert made.tree == frozen
        self.world.tell(lane, made)
        if thaw and lane.sandbox is not None:
            self.world.run(lane.sandbox.thaw())
        else:
            self.world.close(lane)

    def frozen(self, lane: Lane) -> str:
        """Freeze a lane and return its tree: the same for every reader, however often it is read."""
        if lane.sandbox is not None:
            self.world.run(lane.sandbox.freeze())
        first = lane.workspace.scan().tree
        settle(0.005 if lane.tree is None else 0.0)
        quiet, lane.tree = lane.tree, first
        self.world.shows(lane, first)
        lane.tree = None if quiet is None and lane.sandbox is not None else first
        return first

    # --- roll-backs

    @rule(data=st.data(), way=st.sampled_from(_WAYS), paths=_FILES)
    def roll_back(self, data: st.DataObject, way: str, paths: list[str]) -> None:
        lane = self.lane(data)
        target = self.told(data)
        before = self.frozen(lane)
        expected = self.expected(way, target, paths, before)
        made = self.do(lane, way, target, paths)
        assert made.tree == expected
        self.rolled_back(lane, before)
        self.world.tell(lane, made)
        self.world.shows(lane, expected)

    @rule(
        data=st.data(),
        way=st.sampled_from(_WAYS),
        paths=_FILES,
        point=st.sampled_from(_ROLLBACK_POINTS),
        killed=st.booleans(),
        passing=st.sampled_from([1, 1, 2]),
        again=st.booleans(),
    )
    def roll_back_and_crash(
        self,
        data: st.DataObject,
        way: str,
        paths: list[str],
        point: str,
        killed: bool,
        passing: int,
        again: bool,
    ) -> None:
        lane = self.lane(data)
        target = self.told(data)
        before = self.frozen(lane)
        expected = self.expected(way, target, paths, before)
        if killed:
            words = {"workspace": lane.workspace.id, "tree": target, "paths": paths}
            event(f"{way} killed at {point}: {self.world.die_at(f'{point}#{passing}', way, **words)}")
        else:
            self.world.seam.plan[point] = _fail
            try:
                self.do(lane, way, target, paths)
            except InfrastructureError:
                event(f"{way} failed at {point}")
            self.world.seam.plan.clear()
        lane.workspace = Workspace.load(self.world.depot, lane.workspace.id)
        self.world.close(lane)
        shown = lane.workspace.scan().tree
        assert shown in (before, expected)
        self.world.shows(lane, shown)
        if again:
            made = self.do(lane, way, target, paths)
            assert made.tree == expected
            self.rolled_back(lane, before)
            self.world.shows(lane, expected)

    def told(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(list(dict.fromkeys(self.world.told.values()))), label="tree")

    def expected(self, way: str, target: str, paths: list[str], before: str) -> str:
        """Return the tree that a roll-back should leave."""
        return target if way == "reset" else self.world.depot.replace_paths(before, paths, target)

    def do(self, lane: Lane, way: str, target: str, paths: list[str]) -> Checkpoint:
        if way == "reset":
            return lane.workspace.reset(target, "rollback")
        return lane.workspace.reset_paths(paths, target)

    def rolled_back(self, lane: Lane, before: str) -> None:
        """Close the mounts that still show the old files; their checkpoints are kept."""
        assert before in {lane.workspace.base.tree} | {made.tree for made in lane.workspace.checkpoints()}
        self.world.close(lane)
        lane.workspace.tidy()

    # --- forks

    @rule(data=st.data(), point=st.sampled_from(["", *_FORK_POINTS]))
    def fork(self, data: st.DataObject, point: str) -> None:
        lane, tree = self.lane(data), self.told(data)
        if point:
            name = f"w-killed{len(self.world.told)}"
            self.world.die_at(f"{point}#1", "fork", workspace=lane.workspace.id, tree=tree, id=name)
            assert not (self.world.kit.root / "workspaces" / name).exists()
        made = Lane(workspace=self.world.fork(tree), tree=tree)
        self.world.lanes.append(made)
        self.world.shows(made, tree)
        if len(self.world.lanes) > 3:
            gone = self.world.lanes.pop(data.draw(st.integers(0, 2), label="discarded"))
            self.world.close(gone)
            gone.workspace.discard()

    # --- promotions

    @rule(data=st.data(), slug=st.sampled_from(MISSIONS))
    def promote(self, data: st.DataObject, slug: str) -> None:
        self.promote_while(slug, self.told(data))

    @rule(data=st.data(), slug=st.sampled_from(MISSIONS), point=st.sampled_from(_PROMOTION_POINTS), words=_PERSON)
    def promote_while_the_person_works(
        self, data: st.DataObject, slug: str, point: str, words: tuple[str, ...]
    ) -> None:
        def work() -> None:
            self.world.person_is_undisturbed()
            self.world.person(*words)

        self.world.seam.plan[point] = work
        self.promote_while(slug, self.told(data))

    @rule(data=st.data(), slug=st.sampled_from(MISSIONS), point=st.sampled_from(_PROMOTION_POINTS[:3]))
    def promote_while_another_does(self, data: st.DataObject, slug: str, point: str) -> None:
        tree, other, world = self.told(data), self.told(data), self.world
        roots = {"root": str(world.kit.root), "repository": str(world.kit.repository)}
        job = {"act": "promote", "point": "", "mission": world.missions[slug], "tree": other, **roots}
        world.seam.plan[point] = lambda: event(f"another at {point}: {world.side.act(job)}")
        self.promote_while(slug, tree)

    def promote_while(self, slug: str, tree: str) -> None:
        try:
            self.world.run(self.world.promoter(slug).promote(tree))
            event("promoted")
        except ChargehandError as error:
            event(f"refused: {error.code}")
        self.world.seam.plan.clear()

    @rule(data=st.data(), slug=st.sampled_from(MISSIONS), point=st.sampled_from(_PROMOTION_POINTS))
    def promote_and_crash(self, data: st.DataObject, slug: str, point: str) -> None:
        self.crash_promoting(slug, point, "promote", tree=self.told(data))

    @rule(slug=st.sampled_from(MISSIONS), point=st.sampled_from(["", *_WITHDRAWAL_POINTS]))
    def withdraw(self, slug: str, point: str) -> None:
        self.crash_promoting(slug, point, "withdraw")

    def crash_promoting(self, slug: str, point: str, act: str, **words: Any) -> None:
        """Be killed during a promotion: the branch is at one of the two commits, and the next process recovers."""
        world = self.world
        code = world.die_at(f"{point}#1", act, mission=world.missions[slug], **words)
        event(f"{act} killed at {point}: {code}")
        promoter = world.promoter(slug)
        there = world.depot.read_ref(f"refs/chargehand/missions/{world.missions[slug]}")
        prepared = promoter.state.prepared
        if prepared is not None:
            assert there in (prepared.old or None, prepared.new)
        world.examine()
        world.run(promoter.recover())
        assert promoter.state.commit == there
        if code == REFUSED and point == "":
            event(f"{act} refused")

    # --- a person, and ends

    @rule(words=_PERSON | st.tuples(st.sampled_from(["README.md", "mine", "left"]), _TEXTS))
    def person_works(self, words: tuple[str, ...]) -> None:
        if words[0] in ("README.md", "mine", "left"):
            self.world.write(*words)
        else:
            self.world.person(*words)

    @rule(data=st.data(), whom=st.sampled_from(["sandbox", "launcher", "nobody"]), at=st.sampled_from(_AT))
    def end(self, data: st.DataObject, whom: str, at: str) -> None:
        """Kill a sandbox or its launcher, at work, idle or frozen; or reopen everything."""
        lane = self.lane(data)
        if at == "work":
            self.world.keep_writing(lane)
        sandbox = self.world.sandbox(lane)
        if at == "frozen":
            self.world.run(sandbox.freeze())
        match whom:
            case "sandbox":
                self.world.kill_sandbox(lane)
            case "launcher":
                self.world.kill_launcher()
            case _:
                self.world.reopen()
        self.world.shows(lane, lane.workspace.scan().tree)


def _fail() -> None:
    raise InfrastructureError("the disk is full", code="no_space")


class OverlayPromises(Promises):
    driver = "overlay"


class WorktreePromises(Promises):
    driver = "worktree"


class ReflinkPromises(Promises):
    driver = "reflink"


@pytest.fixture(scope="module", autouse=True)
def side() -> Iterator[None]:
    with Side.begun() as begun:
        Promises.side = begun
        yield


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set up a disk that clones, and another process that sees it too."""
    with cloning_disk("btrfs", tmp_path_factory.mktemp("disk")) as place, Side.begun() as begun:
        ReflinkPromises.place, ReflinkPromises.side = place, begun
        yield


def _tests(machine: type[Promises], *marks: Any, examples: int, steps: int) -> Any:
    found = type(f"{machine.__name__}{examples}", (machine.TestCase,), {})
    found.settings = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.reuse, Phase.generate),  # finding a shorter example would take minutes
    )
    for mark in (pytest.mark.needs_bwrap, *marks):
        found = mark(found)
    return found


_SOAKED = int(os.environ.get("CHARGEHAND_SOAK_EXAMPLES", "100"))
_SOAK = (pytest.mark.soak, pytest.mark.timeout(4 * 3600))
_CLONES = (pytest.mark.needs_root, pytest.mark.usefixtures("clones"))
TestOverlay = _tests(OverlayPromises, examples=4, steps=10)
TestWorktree = _tests(WorktreePromises, examples=3, steps=10)
TestReflink = _tests(ReflinkPromises, *_CLONES, examples=3, steps=10)
TestOverlaySoak = _tests(OverlayPromises, *_SOAK, examples=_SOAKED, steps=40)
TestWorktreeSoak = _tests(WorktreePromises, *_SOAK, examples=_SOAKED, steps=40)
TestReflinkSoak = _tests(ReflinkPromises, *_SOAK, *_CLONES, examples=_SOAKED, steps=40)
