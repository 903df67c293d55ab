"""Promoting a validated tree to the mission branch and exporting it to the person's repository."""

from __future__ import annotations

from itertools import count
from typing import Any

from benchmarks.measure import Result, Sample, Side, compare, spend, timed
from benchmarks.mission_kit import MissionKit, Opened
from benchmarks.repositories import ENVIRONMENT, git, paths
from chargehand.core.config import Config
from chargehand.core.ids import new_id
from chargehand.core.mission_events import MissionCreated
from chargehand.core.records import MissionRequest, Verdict
from chargehand.missions.journal import Journal
from chargehand.missions.promotion.promoter import Promoter
from chargehand.missions.reading import mission_ref
from chargehand.missions.services import Services
from chargehand.workspace.export import export_branch as export_branch

_numbers = count(1)


async def run(kit: MissionKit, opened: Opened, *, rounds: int) -> list[Result]:
    """Compare with `git merge --no-ff` in a worktree and with `git push` to a bare repository.

    Both sides merge one changed file with a tip that changed another one.
    """
    opened.depot.base_layers(opened.base)
    ours, theirs = _commit(kit, 0), _commit(kit, 1)
    for commit in (ours, theirs):
        opened.depot.resolve_base(commit)
    copy = kit.copy("merging") if kit.peers else None
    bare = kit.place / "bare.git"
    spend(["git", "clone", "--quiet", "--bare", str(kit.repository), str(bare)], environment=ENVIRONMENT)

    async def merge() -> float:
        assert copy is not None
        git(copy, "reset", "--quiet", "--hard", ours)
        with timed() as seconds:
            git(copy, "merge", "--quiet", "--no-ff", "-m", "merged", theirs)
        return seconds[0]

    async def durable_merge() -> float:
        assert copy is not None
        git(copy, "reset", "--quiet", "--hard", ours)
        with timed() as seconds:
            git(copy, "-c", "core.fsync=all", "merge", "--quiet", "--no-ff", "-m", "merged", theirs)
        return seconds[0]

    async def push() -> float:
        commit = _merged(kit, ours, theirs)
        with timed() as seconds:
            git(kit.repository, "push", "--quiet", str(bare), f"{commit}:refs/heads/pushed-{next(_numbers)}")
        return seconds[0]

    promote = [Side(name="merge, journal, swap", sample=_promote(opened, kit, ours, theirs))]
    if copy is not None:
        promote.append(Side(name="git merge --no-ff", sample=merge))
        promote.append(Side(name="git merge --no-ff, core.fsync=all", sample=durable_merge))
    note = "ours is on the disk when it returns: the journal of events, the objects, the ref"
    results = [await compare("promotion", "merge", promote, rounds=rounds, files=kit.files, note=note)]
    out = [
        Side(name="export", sample=_export(opened, ours, theirs)),
        Side(name="git push to a bare repository", sample=push),
    ]
    results.append(await compare("promotion", "export", out, rounds=rounds, files=kit.files))
    if copy is not None:
        kit.take_down(copy)
    return results


def _commit(kit: MissionKit, which: int) -> str:
    """Return a commit on top of the repository's that changes one file."""
    path = paths(kit.files)[which * 7 + 3]
    content = git(kit.repository, "hash-object", "-w", "--stdin", input=b"changed\n")
    index = {"GIT_INDEX_FILE": str(kit.place / f"commit-{which}.index")}
    git(kit.repository, "read-tree", "main", environment=index)
    git(kit.repository, "update-index", "--cacheinfo", f"100644,{content},{path}", environment=index)
    tree = git(kit.repository, "write-tree", environment=index)
    return git(kit.repository, "commit-tree", tree, "-p", "main", "-m", f"change {which}")


def _merged(kit: MissionKit, ours: str, theirs: str) -> str:
    """Return a merge that no repository has yet."""
    tree = git(kit.repository, "rev-parse", f"{theirs}^{{tree}}")
    message = f"merged {next(_numbers)}"
    return git(kit.repository, "commit-tree", tree, "-p", ours, "-p", theirs, "-m", message)


def _promote(opened: Opened, kit: MissionKit, ours: str, theirs: str) -> Sample:
    services = _services(opened)
    tree = opened.depot.tree_of(theirs)

    async def validate(merged: str) -> Verdict:
        return Verdict(tree=merged, scope="merged", status="green")

    async def sample() -> float:
        journal = _journal(services, kit)
        opened.depot.swap(mission_ref(journal.mission), ours, None)
        promoter = Promoter(services, journal)
        verdict = Verdict(tree=tree, scope="attempt", status="green")
        with timed() as seconds:
            await promoter.promote(opened.base, tree, verdict, validate=validate)
        return seconds[0]

    return sample


def _export(opened: Opened, ours: str, theirs: str) -> Sample:
    tree = opened.depot.tree_of(theirs)

    async def sample() -> float:
        number = next(_numbers)
        commit = opened.depot.commit(tree, (ours, theirs), f"merged {number}")
        with timed() as seconds:
            export = export_branch(opened.depot, commit, branch=f"chargehand/m-{number}", expected_old=None)
        assert export.state == "done", export.reason
        return seconds[0]

    return sample


def _journal(services: Services, kit: MissionKit) -> Journal:
    mission = new_id("mission")
    request = MissionRequest(text="change one file", agent="command:true", command=("true",), slug=mission)
    created = MissionCreated(project=services.project, repository=str(kit.repository), request=request, config={})
    services.store.log.append(mission, created)
    return Journal(services.store, mission, clock=services.clock)


def _services(opened: Opened) -> Services:
    def unused(*_: object, **__: object) -> Any:
        raise AssertionError("a promotion opens nothing")

    return Services(
        home=opened.app.home,
        project=opened.app.projects.find().id,
        store=opened.app.store,
        depot=opened.depot,
        tier=opened.tier,
        tier_name="process",
        driver=opened.driver,
        toolchain=opened.toolchain.id,
        config=Config(),
        workers=opened.app.workers,
        worker=(opened.app.member.id, "command"),
        version="benchmark",
        open_agent=unused,
        open_gateway=unused,
        open_registries=unused,
        open_egress=unused,
    )
