"""Sandbox tiers and workspace drivers: chosen, probed, opened; the pool for snippets."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from chargehand.configuration.records import ResolvedConfig
from chargehand.core.config import SandboxConfig, Strategy
from chargehand.core.errors import TierUnavailableError
from chargehand.core.ports import DriverName
from chargehand.core.records import TierCandidate, TierChoice, TierFacts
from chargehand.policy.tiers import AUTO, choose_tier, in_question, only_documentation
from chargehand.sandbox.probe import ProbeReport
from chargehand.sandbox.tiers import TIERS, TierPlace
from chargehand.sandbox.toolchain import Toolchain

if TYPE_CHECKING:
    from chargehand.missions.services import Tier
    from chargehand.sandbox.snippet_pool import SnippetPool


def require_tier(tier: str) -> None:
    """Raise `TierUnavailableError` unless this version has the tier, or it is `auto`."""
    if tier != AUTO and tier not in TIERS:
        *others, last = TIERS.names()
        raise TierUnavailableError(
            f"the sandbox tier {tier!r} is not available in this version",
            hint=TIERS.explain(tier) or f"use --sandbox {', '.join(others)} or {last}",
        )


async def settle_tier(
    resolved: ResolvedConfig, *, trusted: bool, home: Path, toolchain: Toolchain, environ: Mapping[str, str]
) -> TierChoice:
    """Return the tier to use: the requested one, or the weakest sufficient one, probed for real.

    `trusted` says that a person trusts the repository's own file in its exact content. Raises
    `TierUnavailableError` if no sufficient tier is available.
    """
    config = resolved.config
    facts = TierFacts(
        wish=config.sandbox.tier,
        trusted=trusted,
        network=bool(config.sandbox.network),
        documentation=only_documentation(config.project.allow),
        origin=resolved.origins.get("sandbox.tier", ""),
    )
    tried: list[TierCandidate] = []
    for name in in_question(facts) if facts.wish == AUTO else ():
        if any(each.offered for each in tried):
            tried.append(TierCandidate(tier=name, offered=None, detail="not tried: a weaker tier is enough"))
            continue
        if name == "none":
            tried.append(TierCandidate(tier=name, offered=False, detail="never chosen automatically"))
            continue
        wanted = replace(config.sandbox, tier=name)
        strategy = config.project.strategy
        try:
            driver = await choose_driver(home, toolchain, strategy=strategy, config=wanted, environ=environ)
        except TierUnavailableError as error:
            tried.append(TierCandidate(tier=name, offered=False, detail=error.message, mend=error.hint))
        else:
            tried.append(TierCandidate(tier=name, offered=True, detail=f"works, with {driver} workspaces"))
    return choose_tier(facts, tried)


def with_tier(resolved: ResolvedConfig, choice: TierChoice) -> ResolvedConfig:
    """Return the configuration in force with `auto` replaced by the chosen tier."""
    if resolved.config.sandbox.tier == choice.tier:
        return resolved
    sandbox = replace(resolved.config.sandbox, tier=choice.tier)
    return replace(resolved, config=replace(resolved.config, sandbox=sandbox))


class OpenTiers:
    """The tiers of one process: its sessions share one `process` tier, and so its launcher.

    A worker opens a session for each turn of a mission, and starting a launcher takes longer than many turns.
    Other tiers belong to one session: engine and images may change between two sessions.
    """

    def __init__(self) -> None:
        self._shared: dict[tuple[str, Toolchain], Any] = {}
        self._opened = AsyncExitStack()

    @asynccontextmanager
    async def use(
        self, config: SandboxConfig, toolchain: Toolchain, *, scratch: Path, alive: int, environ: Mapping[str, str]
    ) -> AsyncIterator[Tier]:
        """Provide the configured tier for the block; a shared one stays open until `close`.

        `scratch` is the state directory; the tier's last sandbox keeps `alive` open.
        """
        adapter = TIERS.find(_tier_name(config))
        place = TierPlace(config=config, toolchain=toolchain, home=scratch, environ=environ, alive=alive)
        if not adapter.shared:
            async with adapter.open(place) as own:
                yield own
            return
        key = (config.tier, toolchain)
        tier = self._shared.get(key)
        if tier is None:
            tier = self._shared[key] = await self._opened.enter_async_context(adapter.open(place))
        else:
            await asyncio.to_thread(tier.sweep)
        yield tier

    async def close(self) -> None:
        """Close shared tiers, once no session uses them."""
        self._shared.clear()
        # A session that begins while these close opens a new tier.
        await self._opened.pop_all().aclose()


async def try_tier(
    config: SandboxConfig, toolchain: Toolchain, *, home: Path, environ: Mapping[str, str]
) -> ProbeReport:
    """Probe what the configured tier can offer on this machine, by real tries."""
    place = TierPlace(config=config, toolchain=toolchain, home=home, environ=environ)
    return await TIERS.find(_tier_name(config)).probe(place)


def _tier_name(config: SandboxConfig) -> str:
    # A machine is also tried before a tier is chosen: then, and for `none`, by the weakest.
    return "process" if config.tier in ("none", AUTO) else config.tier


async def choose_driver(
    home: Path,
    toolchain: Toolchain,
    *,
    strategy: Strategy,
    config: SandboxConfig | None = None,
    environ: Mapping[str, str] | None = None,
) -> DriverName:
    """Return a strategy's workspace driver on this machine, probed unless a stored probe is valid.

    Raises `TierUnavailableError` with a remedy if no sandbox is available.
    """
    config = config or SandboxConfig()
    environ = environ or {}
    tier = _tier_name(config)
    asked = TierPlace(config=config, toolchain=toolchain, home=home, environ=environ)
    key = [*_machine(home, toolchain), *TIERS.find(tier).fingerprint(asked)]
    place = home / ("probe.json" if tier == "process" else f"probe-{tier}.json")
    try:
        kept = json.loads(place.read_text())
    except (OSError, ValueError):
        kept = {}
    known: dict[Strategy, DriverName] = kept.get("drivers", {}) if kept.get("machine") == key else {}
    if known.get(strategy) is not None:
        return known[strategy]
    report = await try_tier(config, toolchain, home=home, environ=environ)
    driver = report.require(strategy)
    # Several processes may probe at once: each writes its own file, and the last one is kept.
    fresh = place.with_name(f"{place.name}.{os.getpid()}")
    drivers = {"shadow": report.driver, "direct": report.direct}
    fresh.write_text(json.dumps({"machine": key, "drivers": drivers}))
    fresh.replace(place)
    return driver


# The key of a stored probe: kernel, user, file system, bubblewrap and toolchain. A change requires a new probe.
def _machine(home: Path, toolchain: Toolchain) -> list[object]:
    bwrap = shutil.which("bwrap")
    stamp = os.stat(bwrap).st_mtime if bwrap else 0
    system = os.uname()
    return [system.release, system.version, os.geteuid(), os.stat(home).st_dev, bwrap, stamp, toolchain.id]


class SessionSnippets:
    """The snippet pool of one session, an async context manager; a call opens the pool, or raises the reason."""

    def __init__(self) -> None:
        self._pool: SnippetPool | None = None
        self._missing: TierUnavailableError | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> SessionSnippets:
        return self

    async def __aexit__(self, *_: object) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def __call__(self) -> SnippetPool:
        """Return the pool; raise `TierUnavailableError` if this machine cannot run it, probed once."""
        async with self._opening:
            if self._missing is not None:
                raise self._missing
            if self._pool is None:
                try:
                    self._pool = await _open_proven_pool()
                except TierUnavailableError as error:
                    self._missing = error
                    raise
            return self._pool


async def _open_proven_pool() -> SnippetPool:
    from chargehand.sandbox.snippet_pool import SnippetPool

    pool = await SnippetPool(size=2).__aenter__()
    try:
        part = await pool.probe("python")
    # Entered without `async with`, so it has to be closed here.
    except BaseException:
        await pool.close()
        raise
    if not part.ok:
        await pool.close()
        raise TierUnavailableError(
            f"the tier isolate does not run snippets correctly: {part.detail}",
            hint=part.mend or "chargehand doctor tries each language",
        )
    return pool
