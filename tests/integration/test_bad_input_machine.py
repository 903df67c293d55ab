"""Machine failures during a run: full disks, missing programs, killed processes, concurrent runs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import MEND, PASSES, Cli, Completed, finish, repository, shell
from test_crashes import descendants, survivors, wait_until
from tests import forked
from tests.conftest import git, repository_state, write_files
from tests.crash_kit import MARK, sleepers, wake

pytestmark = pytest.mark.needs_bwrap

NO_NAMESPACES = (
    "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged "
    "user namespaces. On e.g. debian this can be enabled with 'sysctl kernel.unprivileged_userns_clone=1'."
)


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


def run_words(*words: str, agent: str = MEND) -> tuple[str, ...]:
    return ("run", "mend", "--agent", agent, *PASSES, *words)


class TestStateDirectory:
    """An unusable state directory is named and left unchanged."""

    def test_of_a_newer_version(self, tmp_path: Path) -> None:
        cli, repo = Cli(tmp_path / "person"), repository(tmp_path / "repo")
        assert cli.missions(repo) == []
        with sqlite3.connect(cli.home / "store.db") as connection:
            connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.close()
        before = (cli.home / "store.db").read_bytes(), repository_state(repo)
        error = cli.refused("store_newer", 6, *run_words(), cwd=repo)
        assert "CHARGEHAND_HOME" in error["hint"]
        assert ((cli.home / "store.db").read_bytes(), repository_state(repo)) == before

    def test_not_writable(self, cli: Cli, tmp_path: Path) -> None:
        repo = repository(tmp_path / "repo")
        before = repository_state(repo)
        write_files(tmp_path, {"file": ""})
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o500)
        places = [tmp_path / "file/state", Path("/proc/chargehand")]
        places += [closed / "state"] if os.geteuid() else []
        for place in places:
            result = cli.say(*run_words(), cwd=repo, environ={"CHARGEHAND_HOME": str(place)})
            assert (result.code, result.stdout, result.error["code"]) == (6, "", "store_not_writable"), result
            assert "CHARGEHAND_HOME" in result.error["hint"]
        relative = cli.say(*run_words(), cwd=repo, environ={"CHARGEHAND_HOME": "here"})
        assert (relative.code, relative.error["code"]) == (2, "config_invalid")
        assert repository_state(repo) == before


class TestSandboxMissing:
    """If no sandbox is available, nothing runs and the error names the fix."""

    @pytest.fixture
    def tools(self, tmp_path: Path) -> Path:
        place = tmp_path / "bin"
        place.mkdir()
        for name in ("git", "python3", "sh"):
            found = shutil.which(name)
            assert found is not None
            (place / name).symlink_to(found)
        return place

    def test_bubblewrap_is_not_installed(self, tools: Path, tmp_path: Path) -> None:
        cli, repo = Cli(tmp_path / "person", PATH=str(tools)), repository(tmp_path / "repo")
        before = repository_state(repo)
        error = cli.refused("sandbox_unavailable", 5, *run_words(), cwd=repo)
        assert "install bubblewrap" in error["hint"]
        assert cli.missions(repo) == []
        assert cli.say("doctor", cwd=repo).code == 5
        assert repository_state(repo) == before

    def test_user_namespaces_are_denied(self, tools: Path, tmp_path: Path) -> None:
        (tools / "bwrap").write_text(f'#!/bin/sh\necho "{NO_NAMESPACES}" >&2\nexit 1\n')
        (tools / "bwrap").chmod(0o755)
        cli, repo = Cli(tmp_path / "person", PATH=str(tools)), repository(tmp_path / "repo")
        before = repository_state(repo)
        error = cli.refused("sandbox_unavailable", 5, *run_words(), cwd=repo)
        assert "namespace" in error["message"]
        assert cli.missions(repo) == []
        assert repository_state(repo) == before


class TestKilled:
    """A sandbox killed from outside is not the agent's fault: the mission resumes in another sandbox."""

    @pytest.mark.parametrize("victim", ["bwrap", "launcher"])
    @pytest.mark.parametrize("where", ["agent", "check"])
    def test_a_mission_resumes_after_its_sandbox_is_killed(
        self, cli: Cli, tmp_path: Path, victim: str, where: str
    ) -> None:
        repo = repository(tmp_path / "repo")
        # grep skips the wait on the base. No pipe: a pipe fails if its reader ends first.
        wait = f"grep -qs aaa *.txt || sleep {MARK} || true"
        agent = shell(f"sed -i s/a/b/ f.txt; {wait if where == 'agent' else 'true'}")
        check = "true" if where == "agent" else wait
        process = cli.start("run", "mend", "--agent", agent, "--only-check", check, cwd=repo)
        wait_until(sleepers)
        below = descendants(process.pid)
        sandboxes = [pid for pid in below if is_bubblewrap(pid)]
        (outer,) = [pid for pid in sandboxes if parent(pid) not in sandboxes]
        target = outer if victim == "bwrap" else parent(outer)
        assert target in below
        os.kill(target, signal.SIGKILL)
        wait_until(lambda: not sleepers())
        wait_until(wake)
        result = finish(process)
        assert (result.code, result.document["status"]) == (0, "promoted"), result
        shown = cli.say("mission", "log", result.document["mission"], cwd=repo)
        log = [json.loads(line) for line in shown.stdout.splitlines()]
        assert [seen["payload"]["code"] for seen in log if seen["type"] == "mission.interrupted"] == [
            "sandbox_died"
        ]
        # One attempt: the interrupted run does not count as another.
        assert [attempt["status"] for attempt in result.document["attempts"]] == ["succeeded"]
        assert [seen["type"] for seen in log].count("attempt.resumed") == (where == "agent")
        wait_until(lambda: not survivors(below))

    def test_again_and_again(self, cli: Cli, tmp_path: Path) -> None:
        """A mission whose sandbox dies each time is given up; it can be resumed once the machine works again."""
        repo = repository(tmp_path / "repo")
        before = repository_state(repo, without="\0")
        agent = shell("sed -i s/a/b/ f.txt; sleep 301")
        process = cli.start("run", "mend", "--agent", agent, *PASSES, cwd=repo)
        killed = set[int]()
        while process.poll() is None:
            found = [pid for pid in descendants(process.pid) if words(pid)[:2] == ["sleep", "301"]]
            for pid in descendants(process.pid) if found else ():
                if is_bubblewrap(pid):
                    killed.add(pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        result = finish(process)
        assert (result.code, result.document["status"], result.reasons) == (6, "failed", {"sandbox_died"}), result
        assert len(killed) >= 5
        assert repository_state(repo, without="\0") == before


def words(pid: int) -> list[str]:
    """Return the command line of a process, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def is_bubblewrap(pid: int) -> bool:
    """Return whether a living process is a sandbox."""
    return words(pid)[:1] == ["bwrap"] or "".join(words(pid)[:1]).endswith("/bwrap")


def parent(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class TestAtOnce:
    """Several runs on one repository share its base and take different branches."""

    @pytest.mark.parametrize("count", [3, pytest.param(6, marks=pytest.mark.soak)])
    def test_all_succeed_from_the_very_first_on(self, tmp_path: Path, count: int) -> None:
        cli, repo = Cli(tmp_path / "person", fresh=True), repository(tmp_path / "repo")
        before = repository_state(repo)
        processes = [cli.start(*run_words(), cwd=repo) for _ in range(count)]
        result = [finish(process) for process in processes]
        assert [one.code for one in result] == [0] * count, result
        branches = {one.document["branch"] for one in result}
        assert len(branches) == count
        for one in result:
            assert git(repo, "rev-parse", one.document["branch"]) == one.document["commit"]
        assert repository_state(repo) == before
        assert cli.say("audit", "verify", cwd=repo).code == 0
        project = cli.state(result[0]).project
        bases = [place.name for place in (cli.home / "projects" / project / "bases").iterdir() if place.is_dir()]
        assert [name for name in bases if not name.startswith(".")] == [git(repo, "rev-parse", "main")]


class FullCli(Cli):
    """A command line whose state is on a separate small disk, in a mount namespace that a process keeps open."""

    def __init__(self, place: Path, holder: int) -> None:
        super().__init__(place, fresh=True)
        self._holder = holder

    def with_spare(self, spare: int | None, repo: Path, agent: str, *words: str) -> Completed:
        """Run a mission while the disk has only `spare` KiB free, then free the space again."""
        return self.say_with_spare(spare, repo, *run_words(*words, agent=agent))

    def say_with_spare(self, spare: int | None, repo: Path, *words: str) -> Completed:
        """Run a command while the disk has only `spare` KiB free, then free the space again."""
        seen = Path(f"/proc/{self._holder}/root{self.home}")
        ballast = seen / "ballast"
        if spare is not None:
            free = os.statvfs(seen)
            # A worker of the previous mission may write meanwhile; the disk is just as full.
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                file.write(bytes(max(0, free.f_bavail * free.f_bsize - spare * 1024)))
        try:
            return self.within("--json", *words, cwd=repo)
        finally:
            if spare is not None:
                ballast.unlink()

    def age_bases(self) -> None:
        """Make all bases look unused for years: `gc` never collects a base used within the last minute."""
        self._inside("sh", "-c", f"touch -d @1 {self.home}/projects/*/bases/*/meta.json")

    def lock(self) -> None:
        """Make the disk read-only."""
        self._inside("mount", "-o", "remount,ro", str(self.home))

    def within(self, *words: str, cwd: Path | None = None) -> Completed:
        """Run the program to its end in the namespace that sees the small disk."""
        where = cwd or self.place
        code, stdout, stderr = forked.run(words, cwd=where, environ=self.environ, mounts=self._holder)
        return Completed(code=code, stdout=stdout, stderr=stderr)

    def go_on(self) -> str:
        """Resume the only unfinished mission, now that there is room, and return its status."""
        (mission,) = [
            one["mission"]
            for one in json.loads(self.within("mission", "list", "--json").stdout)["missions"]
            if one["status"] in ("waiting", "paused", "planned")
        ]
        resumed = self.within("mission", "resume", mission, "--json")
        assert resumed.code == 0, resumed
        watched = self.within("mission", "watch", mission, "--json")
        assert watched.code in (0, 1), watched
        status: str = json.loads(self.within("mission", "show", mission, "--json").stdout)["status"]
        return status

    def grow(self) -> None:
        """Enlarge the disk and make it writable."""
        self._inside("mount", "-o", "remount,rw,size=64m,nr_inodes=100000", str(self.home))

    def _inside(self, *words: str) -> str:
        enter = ["nsenter", f"--mount=/proc/{self._holder}/ns/mnt", *words]
        return subprocess.run(enter, env=self.environ, capture_output=True, text=True, check=True).stdout


@contextmanager
def small_disk(place: Path, *, kib: int, inodes: int = 100_000) -> Iterator[FullCli]:
    """Mount a small disk for a command line's state, visible to no other process."""
    (place / "state").mkdir(parents=True)
    mount = f'mount -t tmpfs -o size={kib}k,nr_inodes={inodes} none "$0" && echo ready && exec sleep 600'
    with subprocess.Popen(
        ["unshare", "-m", "sh", "-c", mount, str(place / "state")], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        try:
            yield FullCli(place, holder.pid)
        finally:
            holder.kill()


FULL = {"store_full", "no_space"}
WRITES_2_MB = shell("head -c 2000000 /dev/urandom > big")
SAYS_900_KB = shell("head -c 900000 /dev/urandom; touch said")


def refused_for_space(result: Completed) -> None:
    """Assert that a run stopped and reported a full disk; it waits if there was room to record that."""
    if result.code == 3 and result.document["status"] == "waiting":
        assert result.reasons == {"no_space"}, result
        return
    if result.code == 3:
        # The mission had started, and there was no room to record that it waits: any worker resumes it.
        assert (result.document["status"], result.reasons) == ("paused", {"worker_lost"}), result
        assert result.error["code"] in FULL, result
        assert "free some space" in result.error["hint"]
        return
    assert result.code == 6, result
    assert result.error["code"] in FULL, result
    assert "free some space" in result.error["hint"]
    if result.stdout:
        # Planned: there was room to record the mission but not to start it.
        assert result.document["status"] in ("planned", "failed", "paused")
        assert result.document["branch"] is None


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("kib", "inodes"),
    [
        (8, 1000),
        (9000, 35),
        *(pytest.param(*full, marks=pytest.mark.soak) for full in [(100, 1000), (9000, 3), (9000, 80)]),
    ],
)
def test_a_disk_that_is_full_from_the_start(tmp_path: Path, kib: int, inodes: int) -> None:
    repo = repository(tmp_path / "repo")
    before = repository_state(repo, without="\0")
    with small_disk(tmp_path / "person", kib=kib, inodes=inodes) as cli:
        refused_for_space(cli.with_spare(None, repo, MEND))
        assert repository_state(repo, without="\0") == before
        cli.grow()
        assert cli.with_spare(None, repo, MEND).code == 0


@pytest.mark.needs_root
def test_a_disk_that_fills_up_at_each_step(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    with small_disk(tmp_path / "person", kib=65536) as cli:
        assert cli.with_spare(None, repo, MEND).code == 0
        before = repository_state(repo, without="\0")
        shortages = {
            "opening the store": (0, MEND),
            "recording the mission": (128, MEND),
            "checkpoint": (3000, WRITES_2_MB),
            "artifact": (600, SAYS_900_KB),
        }
        for step, (spare, agent) in shortages.items():
            refused_for_space(cli.with_spare(spare, repo, agent))
            assert repository_state(repo, without="\0") == before, step
        (repo / "big.bin").write_bytes(os.urandom(1 << 21))
        git(repo, "add", "-A")
        git(repo, "commit", "-qm", "big")
        for spare in (1000, 3500):  # the depot's copy, the base's files and objects
            refused_for_space(cli.with_spare(spare, repo, MEND))
        done = cli.with_spare(None, repo, WRITES_2_MB)
        assert done.code == 0, done
        assert git(repo, "diff", "--name-only", "main", done.document["branch"]) == "big"


READING = (
    ("mission", "list"),
    ("mission", "show", "last"),
    ("mission", "log", "last"),
    ("mission", "diff", "last"),
    ("stats",),
    ("audit", "verify", "--deep"),
    ("gc", "--dry-run"),
    ("config", "show"),
    ("agent", "list"),
    ("role", "show", "developer"),
    ("project", "show"),
    ("policy", "show"),
)


@pytest.mark.needs_root
def test_reading_commands_work_on_a_full_disk_and_gc_frees_space(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    with small_disk(tmp_path / "person", kib=65536) as cli:
        assert cli.with_spare(None, repo, MEND).code == 0
        # SQLite's copy is here while it is read. The next reader removes the copy of a killed process.
        temporary = tmp_path / "temporary"
        left = temporary / "chargehand-snapshot-4194305-left"
        left.mkdir(parents=True)
        os.utime(left, (1, 1))
        cli.environ["TMPDIR"] = str(temporary)
        # No depot has this commit: its configuration and rules are read from the repository.
        git(repo, "commit", "-q", "--allow-empty", "-m", "a commit that no mission started from")
        before = {words: cli.say_with_spare(None, repo, *words) for words in READING}
        assert {result.code for result in before.values()} == {0}, before
        # SQLite has to create files next to the database to read it: without room it reads a copy in memory.
        assert {words: cli.say_with_spare(0, repo, *words) for words in READING} == before
        cli.lock()
        assert {words: cli.say_with_spare(None, repo, *words) for words in READING} == before
        assert list(temporary.iterdir()) == []
        cli.grow()
        cli.age_bases()
        freed = cli.say_with_spare(0, repo, "gc", "--max-age", "0s").document
        assert sum(len(project["bases"]) for project in freed["projects"]) == 1
        refused_for_space(cli.with_spare(0, repo, MEND))
        assert cli.with_spare(None, repo, WRITES_2_MB).code == 0
