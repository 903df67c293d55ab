"""Every delivery target keeps the contract, and the list delivers to one after the other."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.conftest import git
from tests.promises_side import services, verdict
from tests.workspace_kit import WorkspaceKit

from chargehand.app.forge.claims import ClaimMark, with_mark
from chargehand.app.forge.request_target import RequestTarget
from chargehand.core.errors import FencedError, RefusedError
from chargehand.core.events import read_payload
from chargehand.core.mission_events import (
    ApplyChanged,
    DeliveryChanged,
    ExportChanged,
    HeadSigned,
    MissionFinished,
)
from chargehand.core.records import IssueLink, MissionRequest, TargetDelivery, Verdict
from chargehand.core.state import MissionState
from chargehand.forges.local import LocalForge
from chargehand.forges.local_directory import LocalDirectory, create_repository
from chargehand.missions.delivery.apply import ApplyTarget
from chargehand.missions.delivery.export import ExportTarget
from chargehand.missions.delivery.signature import SignTarget
from chargehand.missions.journal import Journal, MissionSubmission, create_mission
from chargehand.missions.promotion.promoter import Promoter
from chargehand.missions.reading import is_undelivered
from chargehand.missions.services import OpenTarget, Services
from chargehand.reports.progress.event_text import describe
from chargehand.reports.reading import StateReader
from chargehand.store.store import Store, open_store
from chargehand.testing.delivery.fake_target import FakePlace, FakeTarget
from chargehand.testing.delivery.suite import CrashError, DeliveryCase, DeliveryTargetContract
from chargehand.workspace.errors import Fault, no_fault


class Place:
    """A person's repository and a mission that changed `README.md`, promoted but not delivered."""

    def __init__(self, directory: Path, issue: IssueLink | None = None) -> None:
        self.kit = WorkspaceKit(directory)
        self.repository = self.kit.repository
        for key, value in (("user.name", "Ada"), ("user.email", "ada@example.org")):
            git(self.repository, "config", key, value)
        self.depot = self.kit.depot()
        base = self.depot.resolve_base(None)
        git(self.repository, "checkout", "-q", "-b", "side")
        self.write("changed\n")
        git(self.repository, "commit", "-q", "-a", "-m", "side")
        self.tree = self.depot.resolve_base("side").tree
        git(self.repository, "checkout", "-q", "main")
        git(self.repository, "branch", "-q", "-D", "side")
        self.store: Store = open_store(directory / "log")
        self.services: Services = services(self.depot, self.store)
        request = MissionRequest(text="do one", agent="a", command=(), slug="one", apply=True, issue=issue)
        self.mission = create_mission(
            self.store,
            MissionSubmission(project="p", request=request, repository=str(self.repository), base=base, config={}),
        )

    def write(self, text: str) -> None:
        (self.repository / "README.md").write_text(text)

    def journal(self) -> Journal:
        return Journal(self.store, self.mission, clock=self.services.clock)

    def promoter(self, *targets: OpenTarget, fault: Fault = no_fault) -> Promoter:
        """Return a promoter that reads the log as the next worker does, with further targets."""
        return Promoter(replace(self.services, targets=targets), self.journal(), fault=fault)

    async def promote(self) -> str:
        async def validate(merged: str) -> Verdict:
            raise AssertionError("there is nothing to merge with")

        base = self.journal().state.base
        assert base is not None
        return await self.promoter().promote(base, self.tree, verdict(self.depot, self.tree), validate=validate)

    def case(self, open_target: OpenTarget, *acts: Callable[[], object]) -> DeliveryCase:
        effects, block, unblock = acts
        return DeliveryCase(
            services=self.services,
            mission=self.mission,
            open_target=open_target,
            effects=effects,
            block=block,
            unblock=unblock,
        )

    @property
    def state(self) -> MissionState:
        return self.journal().state

    def told(self) -> list[str]:
        """Return the recorded deliveries in order, as target and state."""
        found = []
        for event in map(read_payload, self.store.log.read(self.mission)):
            match event:
                case HeadSigned():
                    found.append("sign blocked" if event.problem else "sign done")
                case ExportChanged():
                    found.append(f"export {event.export.state}")
                case ApplyChanged():
                    found.append(f"apply {event.export.state}")
                case DeliveryChanged():
                    found.append(f"{event.delivery.target} {event.delivery.state}")
        return found

    def settle(self) -> None:
        """Record the end of the mission, as after a delivery."""
        self.journal().record(MissionFinished(status="promoted"))


@pytest.fixture
async def place(tmp_path: Path) -> Any:
    made = Place(tmp_path)
    await made.promote()
    yield made
    made.store.close()


class TestSign(DeliveryTargetContract):
    @pytest.fixture
    def case(self, place: Place) -> DeliveryCase:
        key = place.store.home / "keys/audit.key"

        def effects() -> object:
            commit = place.journal().state.commit or ""
            return place.depot.annotation(commit), place.depot.provenance(commit)

        def block() -> None:
            place.store.sign_envelope(b"first use makes the key", kind="text/plain")
            key.rename(key.with_suffix(".away"))

        return place.case(SignTarget, effects, block, lambda: key.with_suffix(".away").rename(key))


class TestExport(DeliveryTargetContract):
    @pytest.fixture
    def case(self, place: Place) -> DeliveryCase:
        def block() -> None:
            git(place.repository, "branch", "chargehand")

        def unblock() -> None:
            git(place.repository, "branch", "-q", "-D", "chargehand")

        def effects() -> object:
            return git(place.repository, "for-each-ref", "refs/heads/chargehand/", "refs/notes/")

        return place.case(ExportTarget, effects, block, unblock)


class TestRequest(DeliveryTargetContract):
    """The request at the forge of the mission's issue."""

    @pytest.fixture
    async def place(self, tmp_path: Path) -> AsyncIterator[Place]:
        root = tmp_path / "forge"
        create_repository(root, "ada/demo", {"ada": "admin"})
        forge = LocalForge(root, "ada")
        number = forge.create_issue("ada/demo", "one", "do one")
        claim = forge.add_comment("ada/demo", number, with_mark("mine", ClaimMark(mission="m")))
        link = IssueLink(
            account="home",
            repository="ada/demo",
            number=number,
            url="",
            title="one",
            author="ada",
            claim=claim.id,
            branch="chargehand/issue-1",
            target="main",
        )
        made = Place(tmp_path, link)
        git(made.repository, "push", "-q", str(root / "ada/demo.git"), "main")
        await made.promote()
        made.services = replace(made.services, home=made.store.home)
        # The user's branch comes first; the contract is that of one target.
        await ExportTarget(made.services, made.journal(), no_fault).deliver(made.state.commit or "")
        yield made
        made.store.close()

    @pytest.fixture
    def case(self, place: Place, tmp_path: Path) -> DeliveryCase:
        forge = LocalForge(tmp_path / "forge", "ada")
        config = tmp_path / "config" / "chargehand" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(f'[forges.home]\nkind = "local"\nurl = "{(tmp_path / "forge").as_uri()}"\n')
        environ = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "CHARGEHAND_HOME": str(place.store.home)}
        reader = StateReader(environ=environ, cwd=tmp_path)

        def effects() -> object:
            requests = forge.find_requests("ada/demo", "chargehand/issue-1")
            commits = [forge.branch("ada/demo", "chargehand/issue-1")]
            statuses = [forge.statuses("ada/demo", each) for each in commits if each]
            files = sorted(str(each) for each in (tmp_path / "forge/ada/demo/files").rglob("*"))
            return requests, commits, [[each.context for each in found] for found in statuses], files

        def archive(is_archived: bool) -> Callable[[], object]:
            directory = LocalDirectory(tmp_path / "forge")
            settings = replace(directory.settings("ada/demo"), archived=is_archived)
            return lambda: directory.save("ada/demo", "settings.json", settings)

        return place.case(functools.partial(RequestTarget, reader), effects, archive(True), archive(False))


class TestApply(DeliveryTargetContract):
    @pytest.fixture
    def case(self, place: Place) -> DeliveryCase:
        def effects() -> object:
            return git(place.repository, "rev-parse", "main")

        def unblock() -> None:
            git(place.repository, "checkout", "-q", "README.md")

        return place.case(ApplyTarget, effects, lambda: place.write("mine\n"), unblock)


class TestFake(DeliveryTargetContract):
    @pytest.fixture
    def case(self, place: Place, tmp_path: Path) -> DeliveryCase:
        outside = FakePlace(tmp_path)

        def block() -> None:
            outside.blocked = "the place is closed"

        def unblock() -> None:
            outside.blocked = ""

        return place.case(outside.opens(), lambda: outside.commits, block, unblock)


OWN = ["sign done", "export done", "apply done"]


async def test_a_further_target_is_delivered_after_the_others_and_once(place: Place, tmp_path: Path) -> None:
    outside = FakePlace(tmp_path)
    await place.promoter(outside.opens()).deliver()
    assert place.told() == [*OWN, "fake done"]
    await place.promoter(outside.opens()).deliver()
    assert place.told() == [*OWN, "fake done"]
    assert outside.commits == [place.state.commit]
    place.settle()
    assert not is_undelivered(place.state)


@pytest.mark.parametrize("point", ["signed", "exported", "applied", "fake_delivered"])
async def test_after_a_crash_at_any_target_the_rest_is_delivered_once(
    place: Place, tmp_path: Path, point: str
) -> None:
    outside = FakePlace(tmp_path)

    def die(name: str) -> None:
        if name == point:
            raise CrashError(name)

    with pytest.raises(CrashError):
        await place.promoter(outside.opens(), fault=die).deliver()
    await place.promoter(outside.opens()).deliver()
    assert place.told() == [*OWN, "fake done"]
    assert outside.commits == [place.state.commit]


async def test_a_blocked_target_leaves_the_promotion_and_the_later_ones_and_is_retried(
    place: Place, tmp_path: Path
) -> None:
    (tmp_path / "b").mkdir()
    closed, other = FakePlace(tmp_path, blocked="closed for today"), FakePlace(tmp_path / "b")
    targets = (closed.opens(), other.opens("other"))
    commit = place.state.commit
    await place.promoter(*targets).deliver()
    assert place.told() == [*OWN, "fake blocked", "other done"]
    place.settle()
    assert (place.state.status, place.state.commit) == ("promoted", commit)
    assert is_undelivered(place.state), "a person's command delivers it"
    closed.blocked = ""
    await place.promoter(*targets).deliver()
    assert (closed.commits, other.commits) == ([commit], [commit])
    assert not is_undelivered(place.state)


@pytest.mark.parametrize(("tries", "end"), [(2, "done"), (5, "pending")])
async def test_a_busy_target_is_tried_again_a_few_times(
    place: Place, tmp_path: Path, tries: int, end: str
) -> None:
    outside = FakePlace(tmp_path, pending=tries)
    await place.promoter(outside.opens(retry_seconds=(0.0, 0.0))).deliver()
    assert outside.tries == 3
    assert place.told()[len(OWN) :] == ["fake pending", "fake pending", f"fake {end}"]
    place.settle()
    assert is_undelivered(place.state) == (end == "pending")


async def test_only_a_target_that_needs_a_blocked_one_waits_for_it(place: Place, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    waits, free = FakePlace(tmp_path), FakePlace(tmp_path / "b")
    targets = (waits.opens(needs=("export",)), free.opens("free"))
    git(place.repository, "branch", "chargehand")
    await place.promoter(*targets).deliver()
    assert place.told() == ["sign done", "export blocked", "apply done", "fake pending", "free done"]
    told = place.state.deliveries["fake"]
    assert "it needs export, which is blocked: " in told.reason
    assert told.remedy == f"chargehand mission promote {place.mission}"
    git(place.repository, "branch", "-q", "-D", "chargehand")
    await place.promoter(*targets).deliver()
    assert place.told()[5:] == ["export done", "fake done"]
    assert (waits.tries, waits.commits, free.commits) == (1, [place.state.commit], [place.state.commit])


async def test_a_target_that_fails_with_any_error_is_blocked_with_reason_and_remedy(
    place: Place, tmp_path: Path
) -> None:
    outside = FakePlace(tmp_path)

    class Broken(FakeTarget):
        name = "broken"

        async def deliver(self, commit: str) -> TargetDelivery:
            raise KeyError("number")

    class Refusing(FakeTarget):
        name = "refusing"

        async def deliver(self, commit: str) -> TargetDelivery:
            raise RefusedError("the token was refused", hint="make another token")

    def opens(kind: type[FakeTarget]) -> OpenTarget:
        return lambda services, journal, fault: kind(outside, journal, fault)

    await place.promoter(opens(Broken), opens(Refusing), outside.opens()).deliver()
    assert place.told() == [*OWN, "broken blocked", "refusing blocked", "fake done"]
    broken, refusing = place.state.deliveries["broken"], place.state.deliveries["refusing"]
    assert (broken.reason, broken.remedy) == ("KeyError('number')", f"chargehand mission promote {place.mission}")
    assert (refusing.reason, refusing.remedy) == ("the token was refused", "make another token")
    said = describe(DeliveryChanged(delivery=refusing))
    assert said == "refusing blocked: the token was refused; make another token"


async def test_a_roll_back_is_delivered_to_the_targets_that_got_the_change(place: Place, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    outside, added = FakePlace(tmp_path), FakePlace(tmp_path / "b")
    await place.promoter(outside.opens()).deliver()
    place.settle()
    promoted = place.state.commit
    outside.blocked = "closed for today"
    targets = (outside.opens(), added.opens("added"))
    undone = await place.promoter(*targets).roll_back()
    assert place.told() == [*OWN, "fake done", *OWN, "fake blocked"]
    outside.blocked = ""
    assert await place.promoter(*targets).roll_back() == undone, "the command delivers what was blocked"
    assert (outside.commits, added.commits) == ([promoted, undone], [])
    with pytest.raises(RefusedError) as raised:
        await place.promoter(*targets).roll_back()
    assert raised.value.code == "rolled_back"


async def test_names_are_unique_and_a_target_needs_only_earlier_ones(place: Place, tmp_path: Path) -> None:
    outside = FakePlace(tmp_path)
    for targets in (
        (outside.opens("export"),),
        (outside.opens(), outside.opens()),
        (outside.opens(needs=("later",)), outside.opens("later")),
    ):
        with pytest.raises(ValueError, match="is a duplicate or needs a later target"):
            place.promoter(*targets)


async def test_a_worker_that_lost_the_mission_stops_quietly(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = place.store.log
    await place.promoter().deliver()
    epoch = log.claim(place.mission, owner="before", epoch=log.get(place.mission).epoch)
    journal = Journal(place.store, place.mission, clock=place.services.clock, epoch=epoch)
    log.claim(place.mission, owner="after", epoch=epoch)
    outside = FakePlace(tmp_path)
    with pytest.raises(FencedError):
        await Promoter(replace(place.services, targets=(outside.opens(),)), journal).deliver()
    assert place.told() == OWN
    assert not caplog.records
