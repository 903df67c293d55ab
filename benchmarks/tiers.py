"""Each tier against other sandboxes: time to the first answer, one command, streamed output, memory."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.command import bubblewrap_argv
from benchmarks.measure import Result, Sample, Side, compare, timed
from benchmarks.memory import held
from benchmarks.mission_kit import MissionKit, Opened
from benchmarks.tiers_peers import Containers, PeerMissingError, containers, runtime
from chargehand.core.errors import TierUnavailableError
from chargehand.sandbox.container_tier import ContainerTier
from chargehand.sandbox.contract import Sandbox, SandboxSpec

AIM_COMMAND = 0.001
_OUTPUT = 64 << 20
_LIVE = 5
_Open = Callable[[SandboxSpec], Coroutine[Any, Any, Sandbox]]


async def run(kit: MissionKit, opened: Opened, *, rounds: int) -> list[Result]:
    """Measure every tier that this machine has; the row names the missing ones."""
    async with contextlib.AsyncExitStack() as stack:
        tiers: dict[str, _Open] = {"process": opened.tier.open}
        absent: list[str] = []
        engine: Containers | None = None
        try:
            container = await stack.enter_async_context(ContainerTier(opened.toolchain))
        except TierUnavailableError as error:
            absent.append(f"container: {error.message}")
        else:
            tiers["container"] = container.open
            with _reason(absent, container.engine.kind):
                peer = containers(container.engine.kind, container.engine.argv, kit.place)
                engine = stack.enter_context(peer)
        srt: tuple[str, ...] = ()
        with _reason(absent, "sandbox-runtime"):
            srt = await asyncio.to_thread(runtime, kit.place / "sandbox-runtime")
        place = _Place(kit, opened, tiers, engine, srt)
        results = [
            await place.start(rounds=rounds),
            await place.command(rounds=rounds),
            await place.streaming(rounds=max(3, rounds // 4)),
        ]
        return [*results[:-1], replace(results[-1], note="; ".join([results[-1].note, *absent]))]


@contextlib.contextmanager
def _reason(absent: list[str], name: str) -> Iterator[None]:
    """Note why a peer is not available."""
    try:
        yield
    except PeerMissingError as error:
        absent.append(f"{name}: {error}")


class _Place:
    """The open tiers, and the available peers."""

    def __init__(
        self,
        kit: MissionKit,
        opened: Opened,
        tiers: dict[str, _Open],
        engine: Containers | None,
        srt: Sequence[str],
    ) -> None:
        self._kit = kit
        self._opened = opened
        self._tiers = tiers
        self._engine = engine
        self._srt = srt

    @contextlib.asynccontextmanager
    async def _sandbox(self, tier: str) -> AsyncIterator[Sandbox]:
        workspace = await asyncio.to_thread(self._opened.workspace)
        sandbox = await self._tiers[tier](SandboxSpec(mounts=workspace.mount_plan()))
        try:
            yield sandbox
        finally:
            await sandbox.close()
            workspace.discard()

    def _peers(self, *command: str, fresh: bool) -> list[Side]:
        """Return the peers' ways to run a command; those without an open sandbox start one each time."""
        sides = [Side(name="new bubblewrap", sample=_spent(bubblewrap_argv(self._kit.repository, command)))]
        if self._engine is not None:
            argv = self._engine.fresh(*command) if fresh else self._engine.inside(*command)
            name = f"{self._engine.name} {'run' if fresh else 'exec'}"
            sides.append(Side(name=name, sample=_spent(argv)))
        if self._srt:
            sides.append(Side(name="sandbox-runtime", sample=_spent([*self._srt, *command])))
        return sides

    async def start(self, *, rounds: int) -> Result:
        """Workspace and sandbox until the first command has answered; memory of each open one."""

        def first(tier: str) -> Sample:
            async def sample() -> float:
                with timed() as seconds:
                    workspace = await asyncio.to_thread(self._opened.workspace)
                    sandbox = await self._tiers[tier](SandboxSpec(mounts=workspace.mount_plan()))
                    await sandbox.exec(["true"])
                await sandbox.close()
                workspace.discard()
                return seconds[0]

            return sample

        sides = [Side(name=f"{tier} tier", sample=first(tier), repeat=2) for tier in self._tiers]
        sides += self._peers("true", fresh=True)
        result = await compare("tiers", "start to first answer", sides, rounds=rounds, seconds=90)
        memory = [f"{tier} tier {await self._memory(tier):.1f} MiB" for tier in self._tiers]
        if self._engine is not None:
            beside = (held(self._engine.open) - held()) / 1024
            memory.append(f"{self._engine.name} container of `sleep` {beside:.1f} MiB")
        return replace(result, note=f"memory of each that is open, shared pages in parts: {', '.join(memory)}")

    async def _memory(self, tier: str) -> float:
        """Return the MiB that one more open sandbox takes, including its processes on the host."""
        before = held()
        async with contextlib.AsyncExitStack() as stack:
            made = [await stack.enter_async_context(self._sandbox(tier)) for _ in range(_LIVE)]
            for sandbox in made:
                await sandbox.exec(["true"])
            return (held(*(sandbox.id for sandbox in made)) - before) / _LIVE / 1024

    async def command(self, *, rounds: int) -> Result:
        """One command in an open sandbox; for peers that keep none open, in a new one."""

        def one(sandbox: Sandbox) -> Sample:
            async def sample() -> float:
                with timed() as seconds:
                    await sandbox.exec(["true"])
                return seconds[0]

            return sample

        async with contextlib.AsyncExitStack() as stack:
            sides = []
            for tier in self._tiers:
                sandbox = await stack.enter_async_context(self._sandbox(tier))
                sides.append(Side(name=f"{tier} tier", sample=one(sandbox), repeat=20))
            sides += [Side(name="plain process", sample=_spent(["true"]), repeat=20)]
            sides += self._peers("true", fresh=False)
            return await compare("tiers", "true", sides, rounds=rounds, aim=AIM_COMMAND, seconds=90)

    async def streaming(self, *, rounds: int) -> Result:
        """64 MiB of output, streamed and kept."""
        words = ("head", "-c", str(_OUTPUT), "/dev/zero")

        def stream(sandbox: Sandbox) -> Sample:
            async def sample() -> float:
                pieces: list[int] = []
                with timed() as seconds:
                    await sandbox.exec(
                        words, output_limit=2 * _OUTPUT, on_output=lambda _, data: pieces.append(len(data))
                    )
                assert sum(pieces) == _OUTPUT
                return seconds[0]

            return sample

        async with contextlib.AsyncExitStack() as stack:
            sides = [
                Side(name=f"{tier} tier", sample=stream(await stack.enter_async_context(self._sandbox(tier))))
                for tier in self._tiers
            ]
            sides += [Side(name="plain process", sample=_spent(words, size=_OUTPUT))]
            peers = [bubblewrap_argv(self._kit.repository, words)]
            names = ["new bubblewrap"]
            if self._engine is not None:
                peers.append(self._engine.inside(*words))
                names.append(f"{self._engine.name} exec")
            sides += [
                Side(name=name, sample=_spent(argv, size=_OUTPUT)) for name, argv in zip(names, peers, strict=True)
            ]
            result = await compare("tiers", "64 MiB of output", sides, rounds=rounds, seconds=120)
        rates = "; ".join(f"{side.name} {_OUTPUT / 1e6 / side.median:,.0f} MB/s" for side in result.sides)
        return replace(result, note=rates)


def _spent(argv: Sequence[str], *, size: int | None = None) -> Sample:
    """Sample a program run to its end; with `size` its output is read and must have that length."""

    async def sample() -> float:
        with timed() as seconds:
            if size is None:
                subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            else:
                done = subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
                assert len(done.stdout) == size
        return seconds[0]

    return sample
