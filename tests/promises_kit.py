"""All parts of an attempt at once, in any order: live sandboxes, workspaces, branches, a person.

A `World` knows what must be true at every moment and can check it (`examine`): the state of the person's
repository after the person's last change, every reported checkpoint, the tree of each quiet workspace, and the
closed sandboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chargehand.core.errors import SandboxDiedError
from chargehand.core.ports import DriverName
from chargehand.core.records import Checkpoint, MissionRequest
from chargehand.missions.journal import MissionSubmission, create_mission
from chargehand.missions.reading import mission_ref
from chargehand.sandbox.contract import SandboxLimits, SandboxSpec
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.sandbox.toolchain import Toolchain, discover
from chargehand.store.audit import verify
from chargehand.store.store import Store, open_store
from chargehand.workspace.depot import Depot
from chargehand.workspace.workspace import Workspace
from tests.conftest import EXPORTED, git, repository_state
from tests.crash_kit import descendants, survivors, wait_until
from tests.promises_side import MissionPromoter, passes
from tests.promises_tools import EDITOR, WRITER, Seam, Side, bearing, cgroups_of
from tests.workspace_kit import WorkspaceKit, oracle

MISSIONS = ("one", "two")
_LIMITS = SandboxLimits(memory_mb=512, tmp_mb=8)


@dataclass(slots=True, kw_only=True)
class Lane:
    """One workspace and the sandbox on it; `tree` is its current tree, `None` while a program writes there."""

    workspace: Workspace
    tree: str | None
    sandbox: Any = None
    mark: str = ""
    told: list[Checkpoint] = field(default_factory=list)


class World:
    """A person's repository, its depot and store, workspaces with sandboxes, and two missions that promote."""

    def __init__(self, driver: DriverName, side: Side, *, place: Path | None = None) -> None:
        self._scratch = tempfile.TemporaryDirectory(dir=place, prefix="promises-")
        self.side = side
        self.place = Path(self._scratch.name)
        self.kit = WorkspaceKit(self.place)
        for key, value in (("user.name", "Ada"), ("user.email", "ada@example.org")):
            git(self.kit.repository, "config", key, value)
        self.seam = Seam()
        self.loop = asyncio.new_event_loop()
        self._toolchain: Toolchain = discover(search=os.environ["PATH"])
        self.tier: ProcessTier | None = None
        self._opened = 0
        self._ended: list[tuple[str, str, dict[int, str]]] = []
        self._depot: Depot | None = None
        self.store: Store = open_store(self.place / "log")
        self.base = self.depot.resolve_base(None)
        self.missions = {slug: self._mission(slug) for slug in MISSIONS}
        self.lanes = [Lane(workspace=Workspace.create(self.depot, self.base, driver=driver), tree=self.base.tree)]
        self.told: dict[str, str] = {}
        self.hands: set[str] = set()
        self.look()

    @property
    def depot(self) -> Depot:
        """The depot, as opened by the current life of the program."""
        if self._depot is None:
            self._depot = self.kit.open(fault=self.seam)
        return self._depot

    def run(self, what: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end."""
        return self.loop.run_until_complete(what)

    def _mission(self, slug: str) -> str:
        request = MissionRequest(text=f"do {slug}", agent="a", command=(), slug=slug)
        place = str(self.kit.repository)
        return create_mission(
            self.store,
            MissionSubmission(project="p", request=request, repository=place, base=self.base, config={}),
        )

    def promoter(self, slug: str) -> MissionPromoter:
        """Return the promoter of a mission, loaded from disk."""
        return MissionPromoter(self.depot, self.store, self.missions[slug], fault=self.seam)

    # --- sandboxes

    def sandbox(self, lane: Lane) -> Any:
        """Return a lane's sandbox, opening it if needed."""
        if lane.sandbox is None:
            lane.sandbox = self.run(self._open(lane))
            self._opened += 1
            lane.mark = f"MARK-{os.getpid()}-{id(self)}-{self._opened}"
        return lane.sandbox

    async def _open(self, lane: Lane) -> Any:
        if self.tier is None:
            self.tier = ProcessTier(self._toolchain)
            await self.tier.__aenter__()
        return await self.tier.open(SandboxSpec(mounts=lane.workspace.mount_plan(), limits=_LIMITS))

    def inside(self, lane: Lane, program: str, *, stdin: bytes = b"") -> None:
        """Run a Python program in a lane's sandbox."""
        sandbox = self.sandbox(lane)
        done = self.run(sandbox.exec(["python3", "-I", "-c", program, lane.mark], stdin=stdin))
        assert done.exit_code == 0, done.stderr

    def edit(self, lane: Lane, operations: Sequence[Sequence[Any]]) -> None:
        """Change files inside the sandbox."""
        self.inside(lane, EDITOR, stdin=json.dumps(operations).encode())

    def close(self, lane: Lane) -> None:
        """Close a lane's sandbox, and remember its processes to check that they end."""
        if lane.sandbox is not None:
            pid = self.tier._pids.get(lane.sandbox.id)
            self._ended.append((lane.sandbox.id, lane.mark, {} if pid is None else descendants(pid)))
            self.run(lane.sandbox.close())
            lane.sandbox = None
            if lane.tree is None:
                lane.tree = lane.workspace.scan().tree

    def keep_writing(self, lane: Lane) -> None:
        """Leave a program in a lane's sandbox that writes without end."""
        self.inside(lane, WRITER)
        lane.tree = None

    def kill_sandbox(self, lane: Lane) -> None:
        """Kill a lane's sandbox from outside, then close it."""
        self._killed(self.tier._pids.get(lane.sandbox.id), [lane])

    def kill_launcher(self) -> None:
        """Kill the launcher of sandboxes, and so all of them; the next sandbox starts a new launcher."""
        if self.tier is not None:
            self._killed(self.tier._launcher_pid, [lane for lane in self.lanes if lane.sandbox is not None])
            self.end_tier()

    def _killed(self, pid: int, lanes: Sequence[Lane]) -> None:
        below = {lane.workspace.id: descendants(self.tier._pids.get(lane.sandbox.id)) for lane in lanes}
        os.kill(pid, signal.SIGKILL)
        for lane in lanes:
            if lane.sandbox._thawed.is_set():  # a frozen sandbox would wait to be thawed
                with contextlib.suppress(SandboxDiedError):
                    self.run(lane.sandbox.exec(["sleep", "100"]))
                    raise AssertionError("a killed sandbox still runs programs")
            self.close(lane)
            self._ended[-1][2].update(below[lane.workspace.id])

    def end_tier(self) -> None:
        """Close all sandboxes and their launcher."""
        for lane in self.lanes:
            self.close(lane)
        if self.tier is not None:
            self.run(self.tier.close())
            self.tier = None

    # --- lives of the program

    def reopen(self) -> None:
        """Reload everything from disk, as the next process does."""
        self.end_tier()
        self.store.close()
        self.store = open_store(self.place / "log")
        self.seam.plan.clear()
        self._depot = None
        for lane in self.lanes:
            lane.workspace = Workspace.load(self.depot, lane.workspace.id)

    def die_at(self, point: str, act: str, **words: Any) -> int:
        """Perform an act in a process that is killed at a point, together with the launcher and all sandboxes."""
        for lane in self.lanes:
            if lane.sandbox is not None:
                self.run(lane.sandbox.freeze())
        root, repository = str(self.kit.root), str(self.kit.repository)
        code = self.side.act({"act": act, "point": point, "root": root, "repository": repository, **words})
        self.kill_launcher()
        self.reopen()
        return code

    # --- the person

    def person(self, *words: str) -> None:
        """Let the person run git; a command that git refuses does not matter here."""
        before = self.branches
        with contextlib.suppress(subprocess.CalledProcessError):
            git(self.kit.repository, *words)
        self.look()
        self.hands |= {
            name for name in before.keys() | self.branches if before.get(name) != self.branches.get(name)
        }

    def write(self, path: str, text: str) -> None:
        """Let the person write a file."""
        (self.kit.repository / path).write_text(text)
        self.look()

    def look(self) -> None:
        """Take the current state of the person's repository as the state that the person wants."""
        self.wanted, self.branches = self._seen(), self._exported()

    def _seen(self) -> str:
        stash = self.kit.repository / ".git/logs/refs/stash"
        return repository_state(self.kit.repository) + (stash.read_text() if stash.exists() else "")

    def _exported(self) -> dict[str, str]:
        lines = git(self.kit.repository, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        refs = dict(line.split() for line in lines)
        return {name: commit for name, commit in refs.items() if re.search(EXPORTED, name) and "/heads/" in name}

    # --- checks

    def tell(self, lane: Lane, made: Checkpoint) -> None:
        """Record a reported checkpoint: it must stay."""
        if made not in lane.told:
            lane.told.append(made)
        self.told[made.commit] = made.tree

    def shows(self, lane: Lane, tree: str) -> None:
        """Assert that a workspace has a tree, byte for byte as git reads it, and record it."""
        seen = lane.workspace.scan(trust_cache=False).tree
        assert seen == tree == oracle(lane.workspace, self.depot, live=lane.sandbox is not None), (seen, tree)
        lane.tree = tree

    def examine(self) -> None:
        """Check the world against the promises."""
        self.person_is_undisturbed()
        self._checkpoints_are_kept()
        self._branches_pass()
        for lane in self.lanes:
            assert lane.tree in (None, lane.workspace.scan().tree), "a workspace changed that nobody touched"
        self._nothing_is_left()

    def person_is_undisturbed(self) -> None:
        assert self._seen() == self.wanted
        now = self._exported()
        for name in now.keys() | self.branches:
            if now.get(name) != self.branches.get(name):
                assert name in now, f"{name} is gone"
                assert self.branches.get(name) is None or name not in self.hands, f"{name} was the person's"
                assert passes(self.depot, git(self.kit.repository, "rev-parse", f"{now[name]}^{{tree}}"))
                assert now[name] in self._promoted(), f"{name} is at {now[name]}, which nobody promoted"
        self.branches = now

    def _promoted(self) -> set[str]:
        """Return the commits on the missions' branches in the depot."""
        refs = [mission_ref(mission) for mission in self.missions.values()]
        there = [commit for commit in map(self.depot.read_ref, refs) if commit]
        if not there:
            return set()
        return set(self.depot.git("rev-list", "--first-parent", *there, f"^{self.base.commit}").text.split())

    def _branches_pass(self) -> None:
        for commit in self._promoted():
            assert passes(self.depot, self.depot.tree_of(commit)), commit

    def _checkpoints_are_kept(self) -> None:
        kept = set(self.depot.git("rev-list", "--glob=refs/chargehand/workspaces/*").text.split())
        for commit, tree in self.told.items():
            assert commit in kept
            assert self.depot.tree_of(commit) == tree

    def _nothing_is_left(self) -> None:
        while self._ended:
            name, mark, below = self._ended.pop()
            wait_until(lambda below=below, mark=mark: not survivors(below) and not bearing(mark))
            wait_until(lambda name=name: not cgroups_of(name))
        mounted = Path("/proc/self/mountinfo").read_text()
        assert str(self.place) not in mounted

    def end(self) -> None:
        """Close everything, and check that everything promised to be kept is complete, down to each byte."""
        try:
            self.reopen()
            self.examine()
            self.depot.git("fsck", "--full", "--strict", "--no-dangling")
            git(self.kit.repository, "fsck", "--full", "--no-dangling")
            assert verify(self.store).ok
            self._restore_some()
        finally:
            self.end_tier()
            self.store.close()
            self.run(self.loop.shutdown_default_executor())
            self.loop.close()
            for lane in self.lanes:
                lane.workspace.discard()
            self._scratch.cleanup()

    def fork(self, tree: str) -> Workspace:
        """Create another workspace on the same base, as a forked mission gets it."""
        shown = self.lanes[0].workspace
        return Workspace.create(self.depot, shown.base, driver=shown.driver, tree=tree)

    def _restore_some(self) -> None:
        """Restore the first and the last checkpoints, as git reads them; fsck has checked all of them."""
        trees = list(dict.fromkeys(self.told.values()))
        for tree in {*trees[:1], *trees[-2:]}:
            again = self.fork(tree)
            assert again.scan().tree == tree == oracle(again, self.depot)
            again.discard()
