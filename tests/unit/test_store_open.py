from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from chargehand.core.errors import StoreError
from chargehand.core.mission_events import MissionCreated, StepFinished
from chargehand.core.records import MissionRequest
from chargehand.store.database import migrate as _migrate
from chargehand.store.database.connection import SingleFlight
from chargehand.store.store import Store, open_store

CREATED = MissionCreated(
    project="p", repository="/r", request=MissionRequest(text="x", agent="a", command=(), slug="x")
)
STEP = StepFinished(step="s", input="i", output="o" * 500, seconds=1.0)


PRAGMAS = {"synchronous": 0, "foreign_keys": 1, "journal_mode": "wal", "busy_timeout": 30_000, "secure_delete": 1}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "state" / "chargehand"


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    with open_store(home) as opened:
        yield opened


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def fails(home: Path, *, read_only: bool = False) -> StoreError:
    with pytest.raises(StoreError) as caught:
        open_store(home, read_only=read_only)
    assert caught.value.hint
    assert repr(str(home)) in caught.value.message
    return caught.value


def test_the_directory_and_its_files_are_for_the_owner_alone(store: Store, home: Path) -> None:
    store.log.append("m-1", CREATED, durable=True)
    store.artifacts.put(b"x", kind="output")
    assert mode(home) == 0o700
    files = [path for path in home.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"store.db", "store.db-wal", "m-1"}
    assert {mode(path) & 0o077 for path in files} == {0}


def test_events_persist_after_reopening(home: Path) -> None:
    with open_store(home) as store:
        lines = store.log.append("m-1", CREATED, STEP)
    with open_store(home) as store:
        assert store.log.read("m-1") == lines


def test_every_connection_is_set_up_as_promised(store: Store) -> None:
    with store.database.read() as normal, store.database.write(durable=True) as full:
        for connection, synchronous in ((normal, 1), (full, 2)):
            connection.execute("SELECT * FROM missions").fetchall()
            found = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in PRAGMAS}
            assert found == {**PRAGMAS, "synchronous": synchronous}


def by_the_scripts(home: Path) -> Store:
    """Open a store whose tables were made by running all migration scripts, as for one of the first version."""
    home.mkdir(parents=True)
    (home / "store.db").touch()
    engine = sa.create_engine(f"sqlite+pysqlite:///{home / 'store.db'}")
    with engine.begin() as connection:
        _migrate.run_scripts(connection)
    engine.dispose()
    return open_store(home)


def shape(store: Store) -> dict[str, object]:
    """Return the structure of a database, independent of the wording of its statements."""
    with store.database.read() as connection:
        listed = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
        tables = {name for kind, name, _, _ in listed if kind == "table"}
        about = ("table_xinfo", "foreign_key_list")
        found: dict[str, object] = {
            f"{each} {name}": [tuple(row) for row in connection.execute(f"PRAGMA {each}('{name}')")]
            for name in tables
            for each in about
        }
        kinds = connection.execute("SELECT name, type, wr, strict FROM pragma_table_list").fetchall()
    rest = sorted(tuple(row) for row in listed if row[0] != "table")
    return {**found, "rest": rest, "kinds": sorted(tuple(row) for row in kinds)}


def test_a_new_store_has_the_schema_of_the_migration_scripts(store: Store, tmp_path: Path) -> None:
    made = shape(store)
    with by_the_scripts(tmp_path / "scripts") as other:
        assert shape(other) == made
        with other.database.write() as connection:
            connection.execute("DROP INDEX missions_to_wake")
        assert shape(other) != made


def test_a_new_and_a_current_store_open_without_the_migration_machinery(home: Path) -> None:
    script = (
        "import sys, pathlib; from chargehand.store.store import open_store\n"
        "for _ in range(2): open_store(pathlib.Path(sys.argv[1])).close()\n"
        "print({'alembic', 'sqlalchemy', 'cryptography'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", script, home], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


def test_the_migrations_make_the_schema_that_the_program_uses(tmp_path: Path) -> None:
    with by_the_scripts(tmp_path / "scripts") as store, store.database.read() as connection:
        clustered = connection.execute("SELECT wr FROM pragma_table_list('events')").fetchone()
    assert clustered == (1,)
    assert ScriptDirectory(str(_migrate._SCRIPTS)).get_current_head() == _migrate.VERSION


def test_a_store_of_a_newer_version_is_refused_and_left_alone(home: Path) -> None:
    open_store(home).close()
    with sqlite3.connect(home / "store.db") as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    for read_only in (False, True):
        error = fails(home, read_only=read_only)
        assert error.code == "store_newer"
        assert "upgrade" in error.hint
        assert "9999" in error.message


def test_an_unknown_version_is_corrupt(home: Path) -> None:
    open_store(home).close()
    with sqlite3.connect(home / "store.db") as raw:
        raw.execute("UPDATE alembic_version SET version_num = 'abc'")
    raw.close()
    assert fails(home).code == "store_corrupt"


@pytest.mark.parametrize(
    "content", [b"garbage, surely not a database " * 200, b"SQLite format 3\0" + b"\xff" * 8000]
)
def test_a_file_that_is_no_database_is_corrupt(home: Path, content: bytes) -> None:
    open_store(home).close()
    (home / "store.db").write_bytes(content)
    assert fails(home).code == "store_corrupt"
    assert (home / "store.db").read_bytes() == content


def test_an_emptied_file_does_not_pass_for_a_fresh_start(home: Path) -> None:
    with open_store(home) as store:
        store.log.append("m-1", CREATED, durable=True)
    (home / "store.db").write_bytes(b"")
    assert fails(home).code == "store_corrupt"


def test_an_empty_database_file_is_migrated_on_open(home: Path) -> None:
    home.mkdir(parents=True)
    (home / "store.db").touch()
    with open_store(home) as store:
        assert store.log.missions() == ()


def test_a_home_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert fails(tmp_path / "file" / "home").code == "store_not_writable"
    assert fails(tmp_path / "file").code == "store_not_writable"


def test_a_full_disk_raises_store_full_and_keeps_committed_events(store: Store) -> None:
    lines = store.log.append("m-1", CREATED)
    with store.database.write(durable=True) as writer:
        writer.execute("PRAGMA max_page_count=40")
    error = None
    while error is None:
        try:
            lines += store.log.append("m-1", STEP, durable=True)
        except StoreError as caught:
            error = caught
    assert error.code == "store_full"
    assert len(lines) > 1
    assert store.log.read("m-1") == lines


def test_a_table_that_is_gone_is_a_typed_error(store: Store, home: Path) -> None:
    with sqlite3.connect(home / "store.db") as raw:
        raw.execute("DROP TABLE verdicts")
    raw.close()
    with pytest.raises(StoreError, match="verdicts"):
        store.verdicts.get("p", "t", plan_digest="d")


def test_read_only_reads_and_does_not_write(home: Path) -> None:
    assert fails(home, read_only=True).code == "store_missing"
    assert not home.exists()
    with open_store(home) as store:
        lines = store.log.append("m-1", CREATED)
        with open_store(home, read_only=True) as reader:
            assert reader.log.read("m-1") == lines
            with pytest.raises(StoreError) as caught:
                reader.log.append("m-1", STEP)
            assert caught.value.code == "store_not_writable"
            assert store.log.append("m-1", STEP) == reader.log.read("m-1", after=1)


def test_read_only_does_not_migrate(home: Path) -> None:
    home.mkdir(parents=True)
    (home / "store.db").touch()
    assert fails(home, read_only=True).code == "store_older"


def test_a_failed_migration_is_rolled_back(home: Path, tmp_path: Path) -> None:
    home.mkdir(parents=True)
    with sqlite3.connect(home / "store.db") as raw:
        raw.execute("CREATE TABLE verdicts (theirs)")  # clashes after other tables were made
    raw.close()
    assert fails(home).code == "store"
    with sqlite3.connect(home / "store.db") as raw:
        assert raw.execute("SELECT name FROM sqlite_master").fetchall() == [("verdicts",)]
    raw.close()


def test_a_process_can_open_several_stores_of_the_same_home(home: Path) -> None:
    with open_store(home) as one, open_store(home) as other:
        lines = one.log.append("m-1", CREATED)
        lines += other.log.append("m-1", STEP)
        assert one.log.read("m-1") == other.log.read("m-1") == lines


def test_a_strange_path_is_a_path_like_any_other(tmp_path: Path) -> None:
    home = tmp_path / os.fsdecode("a b?mode=ro#%41é".encode())
    with open_store(home) as store:
        store.log.append("m-1", CREATED)
    assert (home / "store.db").stat().st_size > 0
    with open_store(home) as store, store.database.read() as connection:
        assert connection.execute("SELECT id FROM missions").fetchall() == [("m-1",)]


def test_a_directory_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    home = tmp_path / "state"
    home.mkdir()
    home.chmod(0o755)
    for mode in (0o755, 0o750, 0o777):
        home.chmod(mode)
        with open_store(home):
            assert stat.S_IMODE(home.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "left",
    [
        ("workers", "last-worked", "engine.db", "engine.db-wal", "engine.lock"),
        ("toolchain.json", "toolchain.json.123", "probe-abc_1", "probe.json", "workers"),
        ("mcp",),
        ("slots", "logs", "actions"),
    ],
)
def test_opening_a_store_restricts_a_home_left_by_a_killed_command(tmp_path: Path, left: tuple[str, ...]) -> None:
    home = tmp_path / "state"
    home.mkdir(mode=0o755)
    for name in left:
        (home / name).touch()
    with open_store(home):
        assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_place_that_is_no_state_directory_keeps_its_rights(tmp_path: Path) -> None:
    """By mistake it may be /tmp, a home, or a device: closing those harms all users of the machine."""
    for name, mode in (("shared", 0o1777), ("home", 0o755)):
        place = tmp_path / name
        place.mkdir()
        (place / "somebody's").touch()
        place.chmod(mode)
        with pytest.raises(StoreError, match="has files that are not") as caught, open_store(place):
            pass
        assert caught.value.code == "store_exposed"
        assert stat.S_IMODE(place.stat().st_mode) == mode
        assert [path.name for path in place.iterdir()] == ["somebody's"]
    file = tmp_path / "file"
    file.touch(mode=0o644)
    link = tmp_path / "link"
    link.symlink_to(file)
    for place in (file, link):
        with pytest.raises(StoreError, match="Not a directory"), open_store(place):
            pass
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_a_directory_that_cannot_be_closed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "state"
    home.mkdir()
    home.chmod(0o755)
    # As on a file system without modes: the call does nothing, or the directory belongs to another user.
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    with pytest.raises(StoreError, match="other users may read") as caught, open_store(home):
        pass
    assert caught.value.code == "store_exposed"
    assert list(home.iterdir()) == []


def test_callers_waiting_during_a_run_share_the_next_run() -> None:
    runs: list[float] = []
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        runs.append(time.monotonic())
        begun.set()
        assert go_on.wait(30)

    together = SingleFlight(work)

    def waited() -> tuple[float, int]:
        asked = time.monotonic()
        together.wait()
        return asked, len(runs)

    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(waited)
        assert begun.wait(30)
        others = [pool.submit(waited) for _ in range(8)]
        while together._asked < 9:
            time.sleep(0.001)
        go_on.set()
        assert first.result()[1] >= 1
        for asked, seen in (each.result() for each in others):
            assert runs[seen - 1] >= asked, "the run that it waited for began after it asked"
    assert len(runs) == 2


def test_a_failed_run_raises_and_the_next_wait_runs_again() -> None:
    outcomes = iter([OSError(5, "no"), None])

    def work() -> None:
        if (error := next(outcomes)) is not None:
            raise error

    together = SingleFlight(work)
    with pytest.raises(OSError, match="no"):
        together.wait()
    together.wait()
    with pytest.raises(StopIteration):  # each needs a separate run
        together.wait()
