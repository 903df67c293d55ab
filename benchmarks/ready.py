"""A workspace with a sandbox over it, until the first command has answered."""

from __future__ import annotations

from benchmarks.measure import Result, Side, compare, settle, spend, timed
from benchmarks.mission_kit import MANY, MissionKit, Opened
from benchmarks.repositories import ENVIRONMENT, git

AIM = 0.050


async def run(kit: MissionKit, opened: Opened, *, rounds: int) -> list[Result]:
    """Compare with the two usual ways to give an agent a separate copy of the files, which isolate nothing."""
    target = kit.place / "peer"

    async def ours() -> float:
        settle()
        with timed() as seconds:
            workspace = opened.workspace()
            sandbox = await opened.sandbox(workspace)
            await sandbox.exec(["true"])
        await sandbox.close()
        workspace.discard()
        return seconds[0]

    async def worktree() -> float:
        settle()
        command = ["git", "-C", str(kit.repository), "worktree", "add", "--quiet", "--detach", str(target)]
        spent = spend(command, environment=ENVIRONMENT)
        git(kit.repository, "worktree", "remove", "--force", str(target))
        return spent.wall

    async def copy() -> float:
        settle()
        spent = spend(["cp", "-a", str(kit.repository), str(target)])
        spend(["rm", "-rf", str(target)])
        return spent.wall

    most = None if kit.files < MANY else 2
    sides = [Side(name="workspace and sandbox", sample=ours, repeat=5)]
    if kit.peers:
        sides.append(Side(name="git worktree add", sample=worktree, most=most))
        sides.append(Side(name="cp -a", sample=copy, most=most))
    result = await compare(
        "ready", "first command answered", sides, rounds=rounds, files=kit.files, aim=AIM, seconds=90
    )
    return [result]
