"""Damage anywhere in a state directory is named, costs at most its own mission, and a backup restores it."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.conftest import git
from tests.integration.command_line import MEND, Cli, repository
from tests.saved_state import ask

from chargehand.app.composition import App
from chargehand.app.runs import record_mission
from chargehand.cli.main import chargehand
from chargehand.configuration.run_options import RunRequest
from chargehand.core.errors import InfrastructureError
from chargehand.store.audit import verify
from chargehand.store.store import open_store
from chargehand.workspace.tree.objects import ObjectReader, ObjectWriter

WAITING, PAUSED = "m-1m8455nrdyh2yn", "m-1m8456575ep42y"
HURTS = int(os.environ.get("CHARGEHAND_SOAK_HURTS", "1000"))
SEED = int(os.environ.get("CHARGEHAND_SOAK_SEED", "7"))
# Columns that a line's hash covers or whose order is checked: damage to any of them is found.
PROVEN = {"mission", "seq", "time", "type", "payload", "digest", "prev", "hash"}
TABLES = (
    "events",
    "missions",
    "mission_summaries",
    "artifacts",
    "projects",
    "spending",
    "erasures",
    "mission_calls",
)
OTHER_VALUES = (None, 7, 2.5, -1, 10**12, "abc", "", b"\xff", b"")


@dataclass(frozen=True)
class Hurt:
    """Damage done to a column of a table, or to a file."""

    told: str
    mission: str | None = None
    column: str | None = None
    file: Path | None = None


def hurt_bytes(chance: random.Random, content: bytes) -> bytes:
    """Return the bytes with a changed bit or byte, a missing line or end, a zeroed part, or an insertion."""
    if not content:
        return b"x"
    at = chance.randrange(len(content))
    other = bytes([content[at] ^ 1 << chance.randrange(8)])
    lines = content.splitlines(keepends=True)
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: content[:at] + other + content[at + 1 :],
        lambda: content[:at] + b"\xff" + content[at + 1 :],
        lambda: content[:at],
        lambda: b"".join(lines[: at % len(lines)] + lines[at % len(lines) + 1 :]),
        lambda: content[:at] + bytes(min(len(content) - at, chance.randrange(1, 5000))) + content[at + 5000 :],
        lambda: content[:at] + chance.randbytes(9) + content[at:],
    )
    while (made := chance.choice(ways)()) == content:
        pass
    return made


def hurt_row(chance: random.Random, database: Path) -> Hurt | None:
    """Damage one value of one row, or delete the row; return `None` if the database refuses or nothing changed."""
    with closing(sqlite3.connect(database)) as connection:
        connection.text_factory = lambda kept: kept.decode(errors="surrogateescape")
        table = chance.choice(TABLES)
        described = connection.execute(f"PRAGMA table_info({table})").fetchall()
        keys = [name for _, name, _, _, _, key in described if key]
        column = chance.choice([name for _, name, *_ in described])
        rows = connection.execute(f"SELECT {', '.join(keys)} FROM {table}").fetchall()
        if not rows:
            return None
        row = chance.choice(rows)
        where = " AND ".join(f"{key} IS ?" for key in keys)
        (kept,) = connection.execute(f"SELECT {column} FROM {table} WHERE {where}", row).fetchone()
        new: Any = chance.choice(OTHER_VALUES)
        if isinstance(kept, bytes) and chance.random() < 0.8:
            new = hurt_bytes(chance, kept)
        elif isinstance(kept, str) and chance.random() < 0.8:
            new = hurt_bytes(chance, kept.encode())
        connection.execute("PRAGMA foreign_keys=OFF")
        as_text = isinstance(kept, str) and isinstance(new, bytes)
        try:
            if chance.random() < 0.05:
                connection.execute(f"DELETE FROM {table} WHERE {where}", row)
                column = "*"
            else:
                value = "CAST(? AS TEXT)" if as_text else "?"
                connection.execute(f"UPDATE {table} SET {column} = {value} WHERE {where}", (new, *row))
            after = connection.execute(f"SELECT {column} FROM {table} WHERE {where}", row).fetchone()
            if after is not None and after[0] == kept and type(after[0]) is type(kept):
                return None  # the column's type converted it back to the old value
            connection.commit()
        except sqlite3.Error:
            return None
        named = row[0] if table in ("events", "missions") and isinstance(row[0], str) else None
        return Hurt(f"{table}.{column} of {row!r}: {new!r}", mission=named, column=f"{table}.{column}")


def hurt_file(chance: random.Random, state: Path) -> Hurt:
    """Damage or remove one file of a state directory."""
    files = [path for path in sorted(state.rglob("*")) if path.is_file() and not path.is_symlink()]
    path = chance.choice([state / "store.db"] * (len(files) // 20) + files)
    if chance.random() < 0.1:
        path.unlink()
        return Hurt(f"{path.relative_to(state)} removed", file=path)
    content = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(hurt_bytes(chance, content))
    return Hurt(f"{path.relative_to(state)} of {len(content)} bytes", file=path)


def hurt_state(chance: random.Random, state: Path) -> Hurt:
    """Damage a state directory in one place, most often a row of its database."""
    while chance.random() < 0.6:
        done = hurt_row(chance, state / "store.db")
        if done is not None:
            return done
    return hurt_file(chance, state)


def look(*words: str) -> tuple[int, str]:
    """Run a command; whatever is damaged, it must not report an internal error."""
    done = CliRunner().invoke(chargehand, list(words))
    assert "internal" not in done.stderr, (words, done.output)
    assert done.exit_code in (0, 1, 2, 3, 4, 6), (words, done.output)
    assert done.exit_code not in (2, 6) or "hint" in done.stderr, (words, done.output)
    return done.exit_code, done.output


@pytest.mark.parametrize("hurts", [6, pytest.param(HURTS, marks=[pytest.mark.soak, pytest.mark.timeout(14_400)])])
def test_damage_is_reported_and_affects_only_its_own_mission(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurts: int
) -> None:
    names = {mission["mission"] for mission in ask("mission", "list")["missions"]}
    whole = saved / "state"
    for number in range(hurts):
        chance = random.Random(f"{SEED}-{number}")
        state = tmp_path / "state"
        shutil.copytree(whole, state, symlinks=True)
        monkeypatch.setenv("CHARGEHAND_HOME", str(state))
        done = hurt_state(chance, state)
        print(number, done.told)
        code, listed = look("mission", "list", "--json")
        audited = look("audit", "verify", "--json")
        # Damage that SQLite cannot read belongs to no single mission: a backup restores it.
        if done.file is None or done.file.name != "store.db":
            assert code == 0, (done, listed)
            row_lost = done.column in ("missions.*", "missions.id", "missions.project")
            assert all(name in listed for name in names - {done.mission if row_lost else None}), done
        table, _, column = (done.column or "").partition(".")
        if table == "events" and column in PROVEN | {"*"}:
            assert (audited[0], (done.mission or "") in audited[1]) == (1, True), (done, audited)
        if done.file is not None and "artifacts" in done.file.parts:
            checked = look("store", "check", "--json")
            assert (checked[0], done.file.stem in checked[1]) == (1, True), (done, checked)
        for name in {*chance.sample(sorted(names), 2), *((done.mission,) if done.mission in names else ())}:
            look("mission", "show", name)
            look("mission", "show", name, "--json")
            look("mission", "log", name)
            look("mission", "log", name, "--transcript")
            look("artifact", "list", name)
            look("checkpoint", "list", name)
            look("mission", "diff", name)
        for words in (
            ("stats",),
            ("gc", "--dry-run"),
            ("store", "check"),
            ("store", "rebuild"),
            ("mission", "list"),
        ):
            look(*words)
        shutil.rmtree(state)


def hurt_line(state: Path, mission: str, column: str, value: bytes) -> None:
    """Put these bytes into a column of the second line of a mission's log."""
    with closing(sqlite3.connect(state / "store.db")) as connection:
        connection.execute(
            f"UPDATE events SET {column} = {'?' if column == 'payload' else 'CAST(? AS TEXT)'}"
            " WHERE mission = ? AND seq = 2",
            (value, mission),
        )
        connection.commit()


@pytest.mark.parametrize("column", ["payload", "time", "type", "hash"])
def test_an_undecodable_event_does_not_prevent_listing_other_missions(saved: Path, column: str) -> None:
    hurt_line(saved / "state", WAITING, column, b'{"a": "\xff')
    listed = {mission["mission"]: mission["damaged"] for mission in ask("mission", "list")["missions"]}
    assert len(listed) == 17
    assert [name for name, damaged in listed.items() if damaged] == (
        [WAITING] if column in ("payload", "type") else []
    )
    shown = ask("mission", "show", WAITING)
    assert [line["seq"] for line in shown["damaged"]][:1] == [2]
    result = CliRunner().invoke(chargehand, ["mission", "show", WAITING]).stdout
    assert "Its log is damaged" in result
    assert "store restore" in result
    problems = ask("audit", "verify", code=1)["problems"]
    assert {(problem["mission"], problem["seq"]) for problem in problems} <= {(WAITING, 2), (WAITING, 3)}
    # A mission with a damaged log cannot continue; all others can.
    refused = CliRunner().invoke(chargehand, ["--json", "mission", "promote", WAITING])
    assert (refused.exit_code, '"mission_damaged"' in refused.stderr) == (6, True), refused.output
    assert ask("mission", "cancel", PAUSED)["status"] == "cancelled"


@pytest.mark.needs_bwrap
def test_a_worker_passes_over_a_damaged_mission_and_runs_the_others(tmp_path: Path) -> None:
    cli, repo = Cli(tmp_path), repository(tmp_path / "repo")
    with open_store(cli.home):
        pass
    request = RunRequest(text="mend", agent=MEND, only_checks=("true",))
    with App.open(environ=cli.environ, cwd=repo) as app:
        names = [record_mission(app, request) for _ in range(2)]
    hurt_line(cli.home, names[0], "payload", b'{"cut": ')
    assert cli.say("worker", "--until-idle", cwd=repo).code == 0
    shown = {name: cli.say("mission", "show", name, cwd=repo).document for name in names}
    assert shown[names[1]]["status"] == "promoted"
    assert shown[names[0]]["damaged"]
    assert shown[names[0]]["attempts"] == []


class TestGoingBack:
    """`store check`, `backup` and `restore`."""

    def test_lost_data_is_reported_and_restored_from_a_backup(self, saved: Path, tmp_path: Path) -> None:
        state, copy = saved / "state", tmp_path / "copy"
        before = ask("mission", "show", WAITING)
        assert ask("store", "check")["ok"] is True
        assert ask("store", "backup", str(copy))["missions"] == 17
        # Damage all objects of all depots, an artifact, the queue, and the log of one mission.
        for depot in state.glob("projects/*/depot.git/objects"):
            shutil.rmtree(depot)
            depot.mkdir()
        artifact = next(path for path in sorted(state.glob("artifacts/*/*")))
        artifact.write_bytes(b"other")
        (state / "engine.db").write_bytes(b"SQLite format 3\0 and nothing else")
        hurt_line(state, WAITING, "payload", b"{}")
        assert ask("audit", "verify", code=1)["problems"][0]["mission"] == WAITING
        kinds = {problem["kind"] for problem in ask("store", "check", code=1)["problems"]}
        assert kinds >= {"artifact_damaged", "depot_damaged", "engine_damaged", "payload_changed"}
        deep = ask("audit", "verify", "--deep", WAITING, code=1)["problems"]
        assert {problem["mission"] for problem in deep} == {WAITING}
        assert "depot_damaged" in {problem["kind"] for problem in deep}

        refused = CliRunner().invoke(chargehand, ["--json", "store", "restore", str(copy)])
        assert (refused.exit_code, "--yes" in refused.stderr) == (2, True)
        done = ask("store", "restore", str(copy), "--yes")
        assert ask("store", "check")["ok"] is True
        assert ask("mission", "show", WAITING) == before
        # The previous state is kept; a person can restore it by hand.
        assert Path(done["before"], "store.db").is_file()

    def test_damaged_notes_and_spending_are_named(self, saved: Path, tmp_path: Path) -> None:
        """Signed heads and provenance in the depot, and the costs of calls, are part of the record."""
        state = saved / "state"
        notes = [
            (depot, ref)
            for depot in sorted(state.glob("projects/*/depot.git"))
            for ref in ("chargehand", "chargehand-provenance")
            if git(depot, "for-each-ref", f"refs/notes/{ref}")
        ]
        assert notes
        for number, (depot, ref) in enumerate(notes[:2]):
            shutil.copytree(depot, tmp_path / str(number), symlinks=True)
            # Replace a blob that holds a note by another object; later delete the ref itself.
            (blob, _), *_ = [
                line.split()[2:] for line in git(depot, "ls-tree", "-r", f"refs/notes/{ref}").splitlines()
            ]
            path = depot / "objects" / blob[:2] / blob[2:]
            path.chmod(0o600)
            path.write_bytes(zlib.compress(b"blob 5\0other"))
            kinds = [(each["kind"], each["message"]) for each in ask("store", "check", code=1)["problems"]]
            assert any(kind == "depot_damaged" and "note" in told for kind, told in kinds), kinds
            shutil.rmtree(depot)
            shutil.copytree(tmp_path / str(number), depot, symlinks=True)
        depot, _ = notes[0]
        git(depot, "update-ref", "-d", "refs/notes/chargehand")
        told = [each["message"] for each in ask("store", "check", code=1)["problems"]]
        assert any("the head" in each and "it is missing" in each for each in told), told
        shutil.rmtree(depot)
        shutil.copytree(tmp_path / "0", depot, symlinks=True)
        assert ask("store", "check")["ok"] is True
        for hurt in (
            "UPDATE spending SET settled = settled + 1000000, reserved = reserved + 1000000",
            "UPDATE spending SET settled = 'abc'",
            "UPDATE spending SET known = 7",
            "DELETE FROM spending",
        ):
            shutil.copy(state / "store.db", tmp_path / "store.db")
            with closing(sqlite3.connect(state / "store.db")) as raw:
                raw.execute(hurt)
                raw.commit()
            assert "spending_damaged" in {each["kind"] for each in ask("store", "check", code=1)["problems"]}, hurt
            for path in state.glob("store.db*"):
                path.unlink()
            shutil.copy(tmp_path / "store.db", state / "store.db")
        assert ask("store", "check")["ok"] is True

    def test_damaged_pages_have_a_way_out(self, saved: Path) -> None:
        """If `store check` cannot read the store, the hint is `store restore` and not `store check`."""
        path = saved / "state" / "store.db"
        content = bytearray(path.read_bytes())
        content[4096 * 3 : 4096 * 40] = b"\xa5" * (4096 * 37)
        path.write_bytes(bytes(content))
        for words in (("store", "check"), ("mission", "list")):
            done = CliRunner().invoke(chargehand, ["--json", *words])
            assert done.exit_code in (1, 6), done.output
            assert "store restore" in done.output + done.stderr, done.output

    def test_a_backup_ignores_files_removed_during_the_copy(self, saved: Path, tmp_path: Path) -> None:
        state, copy = saved / "state", tmp_path / "copy"
        (state / "calls").mkdir(exist_ok=True)
        (state / "calls/a-1.jsonl").write_text("one\n")
        depot = next(state.glob("projects/*/depot.git"))
        # Simulates a file removed after the directory was listed: a name without a file.
        (state / "calls/a-2.jsonl").symlink_to("nowhere")
        assert ask("store", "backup", str(copy))["missions"] == 17
        assert [path.name for path in (copy / "calls").iterdir()] == ["a-1.jsonl"]
        assert sorted((copy / depot.relative_to(state) / "refs").rglob("w-*"))

    def test_a_missing_state_directory_is_restored_from_a_backup(self, saved: Path, tmp_path: Path) -> None:
        copy = tmp_path / "copy"
        ask("store", "backup", str(copy))
        shutil.rmtree(saved / "state")
        assert ask("store", "restore", str(copy), "--yes")["before"] is None
        assert ask("mission", "cancel", PAUSED)["status"] == "cancelled"
        assert ask("audit", "verify")["ok"] is True

    def test_a_directory_that_is_not_ours_is_not_replaced(
        self, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copy, home = tmp_path / "copy", tmp_path / "home"
        ask("store", "backup", str(copy))
        home.mkdir()
        (home / "letter").touch()
        monkeypatch.setenv("CHARGEHAND_HOME", str(home))
        refused = CliRunner().invoke(chargehand, ["store", "restore", str(copy), "--yes"])
        assert (refused.exit_code, sorted(os.listdir(tmp_path))) == (2, ["copy", "home"])

    def test_a_damaged_copy_is_not_gone_back_to(self, saved: Path, tmp_path: Path) -> None:
        copy = tmp_path / "copy"
        ask("store", "backup", str(copy))
        hurt_line(copy, WAITING, "payload", b"{}")
        refused = CliRunner().invoke(chargehand, ["--json", "store", "restore", str(copy), "--yes"])
        assert (refused.exit_code, '"backup_damaged"' in refused.stderr) == (6, True), refused.output
        assert ask("store", "check")["ok"] is True
        for place in (copy, saved / "state/copy", tmp_path):
            assert CliRunner().invoke(chargehand, ["store", "backup", str(place)]).exit_code == 2
        assert CliRunner().invoke(chargehand, ["store", "restore", str(tmp_path), "--yes"]).exit_code == 2

    @pytest.mark.needs_bwrap
    def test_restore_is_refused_while_a_worker_runs(self, tmp_path: Path) -> None:
        cli, repo = Cli(tmp_path), repository(tmp_path / "repo")
        assert cli.run(repo).code == 0
        copy = tmp_path / "copy"
        assert cli.say("store", "backup", str(copy), cwd=repo).code == 0
        worker = cli.start("worker", cwd=repo)
        try:
            while not any(cli.home.glob("workers/*.lock")):
                assert worker.poll() is None
            cli.refused("workers_alive", 1, "store", "restore", str(copy), "--yes", cwd=repo)
        finally:
            worker.kill()
            worker.communicate()
        assert cli.say("store", "restore", str(copy), "--yes", cwd=repo).code == 0
        assert cli.run(repo, agent="command:sed -i s/g/h/ g.txt").code == 0
        with open_store(cli.home) as store:
            assert verify(store).ok


@pytest.mark.needs_bwrap
def test_a_damaged_queue_is_recreated(tmp_path: Path) -> None:
    cli, repo = Cli(tmp_path), repository(tmp_path / "repo")
    assert cli.run(repo).code == 0
    for content in (b"", b"no database at all", b"SQLite format 3\0" + bytes(5000)):
        (cli.home / "engine.db").write_bytes(content)
        for suffix in ("-wal", "-shm"):
            (cli.home / f"engine.db{suffix}").unlink(missing_ok=True)
        result = cli.run(repo, agent="command:sh -c 'echo more >>g.txt'")
        assert (result.code, result.document["status"]) == (0, "promoted"), result


def test_a_truncated_object_is_an_error(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(3000)
    objects = tmp_path / "objects"
    objects.mkdir()
    with ObjectWriter(objects) as writer:
        name = writer.add("blob", content)
    file = objects / name.hex()[:2] / name.hex()[2:]
    whole = file.read_bytes()
    file.chmod(0o600)
    reader = ObjectReader(objects)
    assert reader.blob(name) == content
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        with pytest.raises(InfrastructureError, match="cannot be read"):
            reader.blob(name)
    for at in range(0, len(whole), 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        # A flipped bit that zlib ignores leaves the content unchanged.
        with suppress(InfrastructureError):
            assert reader.blob(name) == content
