"""Kill real missions at chosen and at random moments, and check the promises afterwards.

A `CrashKit` is one state directory with a repository per mission. A mission is killed (`kill_at`, `kill_after`),
other workers resume it (`go_on`), and `examine` compares its end with that of an undisturbed run of the same
`Scene`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shlex
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chargehand.app.composition import App
from chargehand.core.attempt_events import AttemptStarted, CheckpointMade
from chargehand.core.events import Event, Payload, decode
from chargehand.core.mission_events import AttemptFinished, MissionClaimed, StepFinished
from chargehand.core.state import MissionState
from chargehand.durable.workers import LocalWorkers
from chargehand.sandbox.process.cgroups import Cgroups
from chargehand.store.audit import verify
from tests import forked
from tests.conftest import git, make_repository, repository_state
from tests.forked import ForkedProcess
from tests.used_state import used_state

_PR_SET_CHILD_SUBREAPER = 36
_ROOT = Path(__file__).parents[1]
FILES = {"f.txt": "aaa\n", "g.txt": "ggg\n", ".gitignore": "ignored\n"}
CHECK = "grep -q b ?.txt"
SECOND_TRY = (
    'if test -z "$CHARGEHAND_REPORT"; then echo x >> f.txt; touch ignored; exit; fi; '
    'grep -q grep "$CHARGEHAND_REPORT" && sed -i s/a/b/ f.txt'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A mission that always ends the same way unless it is disturbed."""

    name: str
    script: str = "sed -i s/a/b/ f.txt"
    words: tuple[str, ...] = ()
    setup: str = ""


SCENES = {
    scene.name: scene
    for scene in (
        Scene(name="second try", script=SECOND_TRY, words=("--attempts", "2")),
        Scene(name="refused", script="echo x >> f.txt"),
        Scene(name="applied", words=("--apply",)),
        Scene(name="partly", script="sed -i s/a/b/ f.txt; rm g.txt", words=("--forbid", "g.txt", "--partial")),
        Scene(name="set up", script="test -e ignored && sed -i s/a/b/ f.txt", setup="touch ignored"),
        Scene(
            name="slow", script="for i in 1 2 3 4 5 6 7 8; do echo $i > n; sleep 0.1; done; sed -i s/a/b/ f.txt"
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The facts that must be the same however often a mission was disturbed: all except ids and times."""

    status: str
    reasons: tuple[str, ...]
    tree: str | None
    export: tuple[str, str] | None
    applied: str | None
    attempts: tuple[tuple[int, str, str | None], ...]
    last: str | None
    verdicts: frozenset[tuple[str, str, str]]
    reverted: tuple[tuple[str, str], ...]
    branch_tree: str | None
    head_tree: str
    head_moved: bool

    @classmethod
    def of(cls, state: MissionState, repository: Path) -> Outcome:
        """Return the outcome of a mission that has a repository to itself."""
        branches = git(repository, "for-each-ref", "--format=%(refname)", "refs/heads/chargehand/").split()
        assert len(branches) <= 1, branches
        assert state.base is not None
        return cls(
            status=state.status,
            reasons=tuple(reason.code for reason in state.reasons),
            tree=state.tree,
            export=(state.export.ref, state.export.state) if state.export else None,
            applied=state.applied.state if state.applied else None,
            attempts=tuple((each.number, each.status, each.verdict) for each in state.attempts),
            last=state.checkpoints[-1].tree if state.checkpoints else None,
            verdicts=frozenset((each.scope, each.tree, each.status) for each in state.verdicts),
            reverted=tuple((each.path, each.rule) for each in state.reverted),
            branch_tree=git(repository, "rev-parse", f"{branches[0]}^{{tree}}") if branches else None,
            head_tree=git(repository, "rev-parse", "HEAD^{tree}"),
            head_moved=git(repository, "rev-parse", "HEAD") != state.base.commit,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One mission's repository, and a digest of it before the mission began."""

    scene: Scene
    repository: Path
    before: str

    @property
    def head(self) -> str:
        """The commit that is checked out."""
        return git(self.repository, "rev-parse", "HEAD")


class CrashKit:
    """One state directory, the missions in it and every process started for them."""

    def __init__(self, place: Path, *, like: CrashKit | None = None) -> None:
        self.place = place
        self.home = used_state(place / "state")
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(place),
            "CHARGEHAND_HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(_ROOT),
        }
        self._sites = 0
        for name in ("probe.json", "toolchain.json"):
            if like is not None and (like.home / name).exists():
                shutil.copy(like.home / name, self.home / name)

    # --- starting

    def site(self, scene: Scene) -> Site:
        """Make a repository for one mission."""
        self._sites += 1
        files = dict(FILES)
        if scene.setup:
            config = self.place / ".config/chargehand/config.toml"
            config.parent.mkdir(parents=True, exist_ok=True)
            config.write_text(f'[project]\nsetup = "{scene.setup}"\n')
        repository = make_repository(self.place / f"repo-{self._sites}", files)
        return Site(scene=scene, repository=repository, before=repository_state(repository))

    def run(self, site: Site, *words: str, plan: str | None = None) -> ForkedProcess:
        """Start `chargehand run` for a site's mission; `plan` is that of tests/dying.py."""
        asked = ("run", "mend it", *self.agent(site), "--only-check", CHECK, *site.scene.words, *words)
        return self.start(*asked, cwd=site.repository, plan=plan)

    def agent(self, site: Site) -> tuple[str, ...]:
        """Return the options that choose the agent."""
        return ("--agent", f"command:sh -c {shlex.quote(site.scene.script)}")

    def detach(self, site: Site) -> str:
        """Record a site's mission for a worker that starts later; return its id."""
        code = self.run(site, "--detach", plan="-").wait()
        assert code == 0, self.output()
        return self.mission(site)

    def worker(self, *, plan: str | None = None) -> ForkedProcess:
        """Start a worker."""
        return self.start("worker", "--until-idle", cwd=self.place, plan=plan)

    def start(self, *words: str, cwd: Path, plan: str | None = None) -> ForkedProcess:
        """Start the program in a new session."""
        module, before = ("chargehand", ()) if plan is None else ("tests.dying", (plan,))
        with (self.place / "said").open("ab") as said:
            return ForkedProcess(
                (*before, *words),
                cwd=cwd,
                environ=self.environ,
                stdout=said,
                stderr=said,
                module=module,
                session=True,
            )

    def output(self) -> str:
        """Return all output of the programs."""
        return (self.place / "said").read_text(errors="replace")

    @contextlib.contextmanager
    def app(self) -> Iterator[App]:
        """Open the store as a command does."""
        with App.open(environ=self.environ, cwd=self.place) as app:
            yield app

    def mission(self, site: Site) -> str:
        """Return the id of a site's mission."""
        found = self.missions(site)
        assert len(found) == 1, found
        return found[0].id

    def missions(self, site: Site) -> list[MissionState]:
        """Return the missions of a site."""
        with self.app() as app:
            return [state for state in app.mission_reader.all() if state.repository == str(site.repository)]

    # --- disturbing

    def die_at(self, point: str, site: Site) -> None:
        """Run a site's mission in the foreground until it dies at a point."""
        code = self.run(site, plan=point).wait()
        assert code == -signal.SIGKILL, (point, code, self.output())
        self.undisturbed(site)

    def worker_dies_at(self, point: str, site: Site) -> None:
        """Leave a site's mission to a worker that dies at a point."""
        self.detach(site)
        code = self.worker(plan=point).wait()
        assert code == -signal.SIGKILL, (point, code, self.output())
        self.undisturbed(site)

    def let_go(self, site: Site) -> None:
        """Wait until no mission of a site is held: the launcher of a killed worker may end a moment after it.

        This opens the store, which ends its write-ahead log.
        """
        with self.app() as app:
            names = [state.id for state in app.mission_reader.all() if state.repository == str(site.repository)]
            wait_until(lambda: not any(app.mission_reader.live(app.store.log.get(name)) for name in names))

    def undisturbed(self, site: Site) -> None:
        """Assert that the person's repository is unchanged, except for a branch with the promoted commit."""
        if site.scene.name != "applied" or repository_state(site.repository) == site.before:
            assert repository_state(site.repository) == site.before, site
        else:
            assert git(site.repository, "status", "--porcelain") == "", site
        heads = git(site.repository, "for-each-ref", "--format=%(objectname)", "refs/heads/chargehand/").split()
        for head in heads:
            assert git(site.repository, "show", f"{head}:f.txt").startswith("b")

    def go_on(self, *, rounds: int = 3) -> None:
        """Run workers until no work is left."""
        for _ in range(rounds):
            assert self.worker().wait() == 0, self.output()
            with self.app() as app:
                if not app.has_work():
                    return
        raise AssertionError(f"still to do after {rounds} workers: {self.output()}")

    # --- checking

    def examine(self, site: Site, expected: Outcome | None = None) -> Outcome | None:
        """Check a settled mission against the promises and against the outcome of an undisturbed run.

        Returns its outcome, or `None` if the crash came before the mission existed.
        """
        found = self.missions(site)
        if not found:
            assert repository_state(site.repository) == site.before
            return None
        (state,) = found
        outcome = Outcome.of(state, site.repository)
        with self.app() as app:
            once_only(app.store.log.read(state.id))
            depot = app.projects.depot(app.projects.find(site.repository)).path
        for checkpoint in state.checkpoints:
            assert git(depot, "for-each-ref", "--count=1", "--contains", checkpoint.commit), checkpoint
            assert git(depot, "rev-parse", f"{checkpoint.commit}^{{tree}}") == checkpoint.tree
            git(depot, "ls-tree", "-r", checkpoint.tree)
        if expected is not None:
            differing = {
                name: (getattr(outcome, name), getattr(expected, name))
                for name in outcome.__slots__
                if getattr(outcome, name) != getattr(expected, name)
            }
            assert differing == {}, (differing, state.reasons, self.output())
        self.undisturbed(site)
        return outcome

    def at_rest(self) -> None:
        """Assert that the missions left no workspaces, worker files or directories, and an intact log."""
        with self.app() as app:
            found = verify(app.store)
            assert found.ok, found
            LocalWorkers(self.home, version="").sweep()
        left = [
            *self.home.glob("projects/*/workspaces/*"),
            *(
                path
                for name in ("workers/*", "acceptance-*", "registries-*", "probe-*")
                for path in self.home.glob(name)
            ),
        ]
        assert left == [], left


def once_only(lines: tuple[Event, ...]) -> None:
    """Assert that no step's effect is in a log twice, and that claims follow each other."""
    done: Counter[object] = Counter()
    epochs: list[int] = []
    for line in lines:
        assert line.payload is not None
        payload = decode(line.type, line.payload)
        done[_effect(payload)] += 1
        if isinstance(payload, MissionClaimed):
            epochs.append(payload.epoch)
        if payload.type == "mission.resumed":  # a person resumed it: its end no longer counts
            done = Counter({effect: times for effect, times in done.items() if not _is_end(effect)})
    done.pop(None, None)
    assert [effect for effect, times in done.items() if times > 1] == []
    assert epochs == sorted(set(epochs))


def _is_end(effect: object) -> bool:
    return effect == "mission.finished" or (isinstance(effect, tuple) and effect[0] == "attempt.finished")


def _effect(payload: Payload) -> object:
    """Return the effect of an event that must happen once; `None` if the event may repeat."""
    match payload:
        case StepFinished():
            return payload.type, payload.step, payload.input
        case AttemptStarted() | AttemptFinished():
            return payload.type, payload.attempt
        case CheckpointMade():
            return payload.type, payload.checkpoint.commit
    match payload.type:
        case (
            "promotion.done"
            | "head.signed"
            | "export.changed"
            | "apply.changed"
            | "mission.finished"
            | "mission.created"
        ):
            return payload.type
    return None


def undisturbed_run(place: Path, scene: Scene, *, by: str) -> tuple[Outcome, list[str], CrashKit]:
    """Run a scene to its end, by a `command` or a `worker`; return its outcome, passed points, and kit."""
    kit = CrashKit(place)
    site = kit.site(scene)
    trace = f"trace:{place / 'trace'}"
    if by == "worker":
        kit.detach(site)
        kit.worker(plan=trace).wait()
    else:
        kit.run(site, plan=trace).wait()
    outcome = kit.examine(site)
    assert outcome is not None, kit.output()
    kit.at_rest()
    return outcome, (place / "trace").read_text().splitlines(), kit


def sample(points: list[str], count: int) -> list[str]:
    """Return about `count` of the points, the same in each run, spread over the whole run."""
    if count >= len(points):
        return points
    return [points[number * len(points) // count] for number in range(count)]


# --- processes


@contextlib.contextmanager
def nothing_survives() -> Iterator[None]:
    """Assert that no process started by the block, however deep, and no mount of it outlives the block."""
    forked.warm_up()
    before, mounted, dead = descendants(os.getpid()), mounts(), _cgroups_of_dead()
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become our children, so that none of them escapes
    try:
        yield
        wait_until(lambda: not _new(before))
        wait_until(lambda: mounts() == mounted)  # parallel tests may mount for a moment
        left = _cgroups_of_dead() - dead
        ours = {group for group in left if _creator(group) in forked.STARTED}
        wait_until(lambda: not ours & _cgroups_of_dead())
        # Other groups may be those of a parallel test that killed their creator: the next start removes them.
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not left & _cgroups_of_dead(), seconds=20)
        Cgroups().sweep()
        wait_until(lambda: not left & _cgroups_of_dead())
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for pid in _new(before):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _new(before: dict[int, str]) -> list[int]:
    """Return our living descendants that did not exist before; reap the dead ones."""
    found = {pid: start for pid, start in descendants(os.getpid()).items() if before.get(pid) != start}
    living = survivors(found)
    for pid in set(found) - set(living):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return living


def mounts() -> list[str]:
    """Return all mount points except those of parallel tests: loop devices and container engines."""
    lines = [line.split(" ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [words[4] for words in lines if "/dev/loop" not in words[-2] and "/containers/" not in words[4]]


def _cgroups_of_dead() -> set[str]:
    """Return our control groups whose creators are dead; parallel tests see each other's for a moment."""
    # Not with glob: it fails if a directory disappears meanwhile.
    found = [(place, name) for place, names, _ in os.walk("/sys/fs/cgroup") for name in names]
    ours = [(place, name) for place, name in found if name.startswith("chargehand-")]
    groups = {f"{place}/{name}" for place, name in ours}
    return {group for group in groups if not Path("/proc", str(_creator(group))).exists()}


def _creator(group: str) -> int:
    """Return the process id of a control group's creator."""
    return int(Path(group).name.split("-")[1])


def descendants(root: int) -> dict[int, str]:
    """Return the processes below `root`, including those inside sandboxes, with their start times."""
    stats = {}
    # Polled while something ends: `Path` would take twice as long.
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", "rb", buffering=0) as file:
                fields = file.read(4096).rpartition(b")")[2].split(None, 20)
        except OSError:
            continue
        stats[int(entry)] = (int(fields[1]), fields[19].decode())
    found: dict[int, str] = {}
    fresh = {root}
    while fresh:
        fresh = {pid for pid, (parent, _) in stats.items() if parent in fresh and pid not in found}
        found |= {pid: stats[pid][1] for pid in fresh}
    return found


def survivors(processes: dict[int, str]) -> list[int]:
    """Return those of the processes that are still alive."""
    found = []
    for pid, started in processes.items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[19] == started and fields[0] not in "ZX":
            found.append(pid)
    return found


def command_line(pid: int) -> list[str]:
    """Return the command line of a process, or an empty list if it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            return b"".join(iter(file.read, b"")).decode(errors="replace").split("\0")
    except OSError:
        return []


MARK = str(10**8 + os.getpid())
"""Seconds that no other process on this machine sleeps: an agent sleeps for them until its test wakes it."""


def sleepers(mark: str = MARK) -> list[int]:
    """Return the processes of this machine that sleep for `mark` seconds."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in pids if command_line(pid)[:2] == ["sleep", mark]]


def wake(mark: str = MARK) -> bool:
    """Wake every process that sleeps for `mark` seconds, in any sandbox; return whether there was one."""
    found = sleepers(mark)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return bool(found)


def kill_some(root: int, chance: random.Random, *, spared: bool = False) -> str:
    """Kill a process that runs missions, and perhaps some of its descendants; return the kind of kill.

    If it is `spared`, kill only launcher, bubblewrap or exec server; return "" if none of these was running.
    """
    below = descendants(root)
    fates = ("launcher", "bwrap", "server", *(() if spared else ("alone", "some", "all")))
    fate = chance.choice(fates)
    chosen = [pid for pid in below if _falls(command_line(pid), fate, chance)]
    for pid in chosen if spared else (root, *chosen):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if spared:
        return f"{fate} without its owner ({len(chosen)} of {len(below)})" if chosen else ""
    return f"{fate} ({len(chosen)} of {len(below)})"


def _falls(words: list[str], fate: str, chance: random.Random) -> bool:
    name = os.path.basename(words[0]) if words else ""
    match fate:
        case "alone":
            return False
        case "launcher":
            return any(word.endswith("_launcher.py") for word in words)
        case "bwrap":
            return name == "bwrap"
        case "server":
            return name.startswith("python") and not any(word.endswith("_launcher.py") for word in words)
        case "some":
            return chance.random() < 0.5
    return True


@contextlib.contextmanager
def waking(mark: str = MARK) -> Iterator[None]:
    """Wake every process that sleeps for `mark` seconds, also those that start while the block runs."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(0.05):
            wake(mark)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def wait_until(holds: Callable[[], object], *, seconds: float = 120.0) -> None:
    """Wait until `holds()`; fail after `seconds`."""
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit, "it did not come to hold"
        time.sleep(0.02)
