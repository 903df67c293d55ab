"""Stored belief networks: versions, use cases, the access log, damage, and concurrent changes."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.older_stores import as_of_version_14

from chargehand.app import knowledge
from chargehand.app.upkeep import back_up, check_store, restore
from chargehand.core.clock import SteppedClock
from chargehand.core.errors import InfrastructureError, NotFoundError, RefusedError, UsageError
from chargehand.decisions.belief_networks import shipped_network
from chargehand.identity import accounts
from chargehand.identity.accounts import Caller
from chargehand.reports.reading import StateReader
from chargehand.store.access_log import Actor

RAIN = """{"note": "Rain wets the grass."}
{"node": "rain", "states": ["yes", "no"], "counts": [[1, 3]]}
{"node": "wet", "states": ["yes", "no"], "parents": ["rain"], "table": [[0.9, 0.1], [0.2, 0.8]]}
"""
RAINY = '{"rain": "yes", "wet": "yes"}\n'


def opened(place: Path) -> StateReader:
    environ = {"CHARGEHAND_HOME": str(place / "state"), "XDG_CONFIG_HOME": str(place), "HOME": str(place)}
    return StateReader(environ=environ, cwd=place, clock=SteppedClock())


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[StateReader]:
    made = opened(tmp_path)
    yield made
    made.close()


@pytest.fixture
def owner(reader: StateReader) -> Caller:
    return accounts.owner(reader)


def change(reader: StateReader, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(reader.home / "store.db")) as raw:
        raw.execute(statement, values)
        raw.commit()


def probability(reader: StateReader, *given: str, number: int | None = None) -> float:
    posterior = knowledge.query_posterior(reader, "rain", ["rain"], given, number=number)
    assert [each.states for each in posterior.outcomes] == [("yes",), ("no",)]
    return posterior.outcomes[0].probability


def test_versions_are_numbered_and_never_change(reader: StateReader, owner: Caller) -> None:
    first = knowledge.import_network(reader, "rain", RAIN, by=owner)
    learned = knowledge.update_network(reader, "rain", RAINY, by=owner)
    second = learned.network
    assert (first.number, second.number, learned.cases, learned.incomplete) == (1, 2, 1, 0)
    assert second.parent == first.version != second.version
    assert first.author == second.author == owner.user
    assert first.created <= second.created
    assert probability(reader) == pytest.approx(2 / 5)
    assert probability(reader, number=1) == pytest.approx(1 / 4)
    shown = knowledge.show_network(reader, "rain", number=1)
    assert shown.network == first
    assert shown.versions == (first, second)
    assert shown.note == "Rain wets the grass."
    assert [node.name for node in shown.nodes] == ["rain", "wet"]
    # The export of an earlier version brings it back, as a new version with the same content.
    old = knowledge.export_network(reader, "rain", number=1)
    again = knowledge.import_network(reader, "rain", old.content, by=owner)
    assert (again.number, again.version) == (3, first.version)
    assert probability(reader) == pytest.approx(1 / 4)


def test_the_same_content_again_is_no_new_version(reader: StateReader, owner: Caller) -> None:
    first = knowledge.import_network(reader, "rain", RAIN, by=owner)
    assert knowledge.import_network(reader, "rain", f"\n{RAIN}\n", by=owner) == first
    assert [row.action for row in reader.store.access_log.list(limit=10)] == ["knowledge.import"]


def test_every_change_is_a_line_of_the_access_log(reader: StateReader, owner: Caller) -> None:
    first = knowledge.import_network(reader, "rain", RAIN, by=owner)
    second = knowledge.update_network(reader, "rain", RAINY, by=owner).network
    removed = knowledge.remove_network(reader, "rain", by=owner)
    assert (removed.versions, removed.shipped) == (2, False)
    entries = accounts.list_access(reader, by=owner).entries
    assert [(row.action, row.subject) for row in reversed(entries)] == [
        ("knowledge.import", f"rain (version 1, {first.version})"),
        ("knowledge.update", f"rain (version 2, {second.version})"),
        ("knowledge.remove", "rain (2 versions)"),
    ]
    assert {row.actor for row in entries} == {owner.user}
    with pytest.raises(NotFoundError):
        knowledge.remove_network(reader, "rain", by=owner)


def test_a_refused_file_changes_nothing(reader: StateReader, owner: Caller) -> None:
    knowledge.import_network(reader, "rain", RAIN, by=owner)
    with pytest.raises(UsageError, match="line 4: "):
        knowledge.import_network(reader, "rain", RAIN + '{"node": "a"}', by=owner)
    with pytest.raises(UsageError, match="line 2: "):
        knowledge.update_network(reader, "rain", RAINY + '{"rain": "maybe"}', by=owner)
    assert len(reader.store.networks.versions("rain")) == 1
    for name in ("", "Rain", "a/b", "-a", "a" * 65, "é"):
        with pytest.raises(UsageError, match="is not a network's name"):
            knowledge.import_network(reader, name, RAIN, by=owner)


def test_soft_evidence_and_joint_queries(reader: StateReader, owner: Caller) -> None:
    knowledge.import_network(reader, "rain", RAIN, by=owner)
    yes, no = 0.25 * (0.9 * 0.8 + 0.1 * 0.3), 0.75 * (0.2 * 0.8 + 0.8 * 0.3)
    assert probability(reader, "wet=yes:0.8,no:0.3") == pytest.approx(yes / (yes + no))
    joint = knowledge.query_posterior(reader, "rain", ["wet", "rain"], [])
    assert [each.states for each in joint.outcomes] == [("yes", "yes"), ("yes", "no"), ("no", "yes"), ("no", "no")]
    assert [each.probability for each in joint.outcomes] == pytest.approx([0.225, 0.15, 0.025, 0.6])


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["wet"], "'wet' does not begin with a node"),
        (["snow=yes"], "'snow=yes' does not begin with a node"),
        (["wet=maybe"], "'wet=maybe': 'maybe' does not begin with another state of 'wet': 'yes', 'no'"),
        (["wet=yes:0.7"], "the likelihood of 'no' is missing"),
        (["wet=yes:0.7,no:x"], "'x' is not a number"),
        (["wet=yes:0.7,yes:0.3"], "'yes:0.3' does not begin with another state"),
        (["wet=yes:-1,no:1"], "is not a number from 0 on"),
        (["wet=yes:0,no:0"], "one of them positive"),
        (["wet=yes:nan,no:1"], "is not a number from 0 on"),
        (["wet=yes", "wet=no"], "'wet' is given twice"),
    ],
)
def test_wrong_evidence_is_refused(reader: StateReader, owner: Caller, given: list[str], error: str) -> None:
    knowledge.import_network(reader, "rain", RAIN, by=owner)
    with pytest.raises(UsageError, match=error) as refused:
        probability(reader, *given)
    assert refused.value.code == "evidence_invalid"


def test_names_with_separators_can_be_given(reader: StateReader, owner: Caller) -> None:
    text = '{"node": "a=b", "states": ["x:1,y", "z"], "table": [[0.5, 0.5]]}\n'
    text += '{"node": "a", "states": ["b=z", "z"], "table": [[0.5, 0.5]]}\n'
    knowledge.import_network(reader, "odd", text, by=owner)
    for given, expected in (("a=b=x:1,y", 1), ("a=b=z", 0), ("a=b=x:1,y:3,z:1", 0.75)):
        outcome = knowledge.query_posterior(reader, "odd", ["a=b"], [given]).outcomes[0]
        assert (outcome.states, outcome.probability) == (("x:1,y",), pytest.approx(expected))


def test_shipped_networks_are_version_0_until_they_learn(reader: StateReader, owner: Caller) -> None:
    listed = knowledge.list_networks(reader).networks
    assert [(each.name, each.number) for each in listed] == [("failure-cause", 0), ("promotion-risk", 0)]
    case = '{"cause": "provider", "end": "crashed"}\n'
    learned = knowledge.update_network(reader, "failure-cause", case, by=owner).network
    assert (learned.number, learned.parent) == (1, shipped_network("failure-cause").version)
    shown = knowledge.show_network(reader, "failure-cause")
    assert [each.number for each in shown.versions] == [0, 1]
    before, after = (
        knowledge.query_posterior(reader, "failure-cause", ["cause"], ["end=crashed"], number=number).outcomes
        for number in (0, None)
    )
    assert after[4].states == ("provider",)
    assert after[4].probability > before[4].probability
    assert knowledge.remove_network(reader, "failure-cause", by=owner).shipped
    assert knowledge.show_network(reader, "failure-cause").network.number == 0
    with pytest.raises(NotFoundError):
        knowledge.remove_network(reader, "failure-cause", by=owner)


def test_unknown_networks_and_versions_are_named(reader: StateReader, owner: Caller) -> None:
    knowledge.import_network(reader, "rain", RAIN, by=owner)
    with pytest.raises(NotFoundError, match="there is no network 'rian'") as unknown:
        knowledge.show_network(reader, "rian")
    assert "rain" in unknown.value.hint
    for number in (0, 2):
        with pytest.raises(NotFoundError, match=f"'rain' has no version {number}"):
            knowledge.export_network(reader, "rain", number=number)


def test_a_version_based_on_an_older_one_is_refused(reader: StateReader, owner: Caller) -> None:
    knowledge.import_network(reader, "rain", RAIN, by=owner)
    with pytest.raises(RefusedError) as refused:
        reader.store.networks.add(
            "rain", b"x", version="v", parent="", action="knowledge.update", actor=Actor(user="me"), newest=0
        )
    assert refused.value.code == "network_changed"
    assert len(reader.store.networks.versions("rain")) == 1


class Concurrency:
    """Threads with their own connections, as separate processes would have; `seen` collects readers' answers."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.done = threading.Event()
        self.seen: set[tuple[int, float, float]] = set()
        self.errors: list[BaseException] = []

    def start(self, work: Callable[[StateReader], None]) -> threading.Thread:
        def run() -> None:
            reader = opened(self.place)
            try:
                work(reader)
            except BaseException as error:
                self.errors.append(error)
            finally:
                reader.close()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def read(self, reader: StateReader) -> None:
        last = False
        while not last:  # once more after the last update
            last = self.done.is_set()
            joint = knowledge.query_posterior(reader, "rain", ["rain", "wet"], [])
            number = joint.network.number
            alone = knowledge.query_posterior(reader, "rain", ["rain"], ["wet=yes"], number=number)
            assert alone.network == joint.network
            self.seen.add((number, joint.outcomes[0].probability, alone.outcomes[0].probability))

    @staticmethod
    def write(reader: StateReader) -> None:
        for _ in range(10):
            knowledge.update_network(reader, "rain", RAINY, by=accounts.owner(reader))


def test_readers_never_see_half_an_update_and_writers_lose_none(
    reader: StateReader, owner: Caller, tmp_path: Path
) -> None:
    knowledge.import_network(reader, "rain", RAIN, by=owner)
    beside = Concurrency(tmp_path)
    readers = [beside.start(beside.read) for _ in range(8)]
    writers = [beside.start(beside.write) for _ in range(2)]
    for thread in writers:
        thread.join(timeout=120)
    beside.done.set()
    for thread in readers:
        thread.join(timeout=120)
    assert beside.errors == []
    rows = reader.store.networks.versions("rain")
    assert [row.number for row in rows] == list(range(1, 22))
    assert [row.parent for row in rows[1:]] == [row.version for row in rows[:-1]]
    assert knowledge.show_network(reader, "rain").nodes[0].counts == ((21, 3),)
    assert max(number for number, *_ in beside.seen) == 21
    for number, joint, alone in beside.seen:
        learned = number - 1  # each update adds a rainy, wet day
        rain, wet = (1 + learned) / (4 + learned), (9 + learned) / (10 + learned)
        assert joint == pytest.approx(rain * wet)
        assert alone == pytest.approx(rain * wet / (rain * wet + (1 - rain) * 0.2))


@pytest.mark.parametrize(
    ("statement", "value", "error"),
    [
        ("UPDATE network_versions SET content = ?", b"{", "damaged: line 1"),
        (
            "UPDATE network_versions SET content = ?",
            RAIN.replace("0.9, 0.1", "0.8, 0.2").encode(),
            "its digest is",
        ),
        ("UPDATE network_versions SET version = ?", "0", "its digest is"),
    ],
)
def test_a_damaged_version_is_not_used(
    reader: StateReader, owner: Caller, statement: str, value: object, error: str
) -> None:
    knowledge.import_network(reader, "rain", RAIN, by=owner)
    change(reader, statement, value)
    with pytest.raises(InfrastructureError, match=error) as refused:
        knowledge.show_network(reader, "rain")
    assert refused.value.code == "store_corrupt"


def test_the_check_of_the_store_finds_damaged_rows(reader: StateReader, owner: Caller) -> None:
    knowledge.import_network(reader, "rain", RAIN, by=owner)
    assert check_store(reader).ok
    change(reader, "UPDATE network_versions SET created = 'yesterday'")
    (problem,) = check_store(reader).problems
    assert "network_versions ('rain')" in problem.message
    change(reader, "UPDATE network_versions SET content = 'text'")
    with pytest.raises(InfrastructureError, match="not bytes"):
        knowledge.show_network(reader, "rain")


def test_an_older_store_opens_without_networks(tmp_path: Path) -> None:
    reader = opened(tmp_path)
    project = reader.store.projects.register(tmp_path)
    reader.close()
    with closing(sqlite3.connect(tmp_path / "state/store.db")) as raw:
        as_of_version_14(raw)
        raw.commit()
    reader = opened(tmp_path)
    assert reader.store.projects.list() == (project,)
    assert reader.store.networks.list() == ()
    assert knowledge.import_network(reader, "rain", RAIN, by=accounts.owner(reader)).number == 1
    reader.close()


def test_a_restored_backup_has_its_networks(reader: StateReader, owner: Caller, tmp_path: Path) -> None:
    first = knowledge.import_network(reader, "rain", RAIN, by=owner)
    back_up(reader, tmp_path / "backup")
    knowledge.remove_network(reader, "rain", by=owner)
    restore(reader, tmp_path / "backup", confirm=lambda told: None)
    assert knowledge.show_network(reader, "rain").network == first


def test_files_are_bounded_and_text(tmp_path: Path) -> None:
    file = tmp_path / "network.ndjson"
    file.write_text(RAIN)
    assert knowledge.read_file(file) == RAIN
    file.write_bytes(b"a\xff")
    with pytest.raises(UsageError, match="byte 1 is not UTF-8"):
        knowledge.read_file(file)
    file.write_bytes(b"a" * (knowledge.LARGEST_FILE + 1))
    with pytest.raises(UsageError, match="more than 1000000 bytes"):
        knowledge.read_file(file)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError) as refused:
            knowledge.read_file(missing)
        assert refused.value.code == "network_file"
