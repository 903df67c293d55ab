"""The environment layer: what `setup` makes, built once per key and shared by every workspace on it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

from chargehand.core.attempt_events import CommandFinished
from chargehand.core.errors import RefusedError
from chargehand.core.mission_events import ChangesReverted
from chargehand.core.records import Base, Finding, Reverted
from chargehand.core.text import printable
from chargehand.missions._journal import Notes
from chargehand.missions._network import NetworkLog, as_egress
from chargehand.missions._packages import CARGO_SIGNS, GO_SIGNS, point_cargo, setup_variables
from chargehand.missions._places import SETUP, VENV, Ground, Places
from chargehand.missions._policy import admit
from chargehand.missions._services import Registries, Services
from chargehand.policy.actions import Run
from chargehand.sandbox.contract import ExecResult, Sandbox
from chargehand.workspace.environment import EnvironmentLayers, FrozenLayer

_PYTHON_COMMAND = re.compile(r"\b(pip3?|python3?)\b")
_PYTHON_SIGNS = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "Pipfile")
_VENV_SECONDS = 120.0
_TAIL = 2000
OFFLINE = "setup without network"


async def environment_layer(
    services: Services, journal: Notes, base: Base, *, places: Places | None = None
) -> Path | None:
    """Return the layer for a base, made by running `setup` where it is not there; `None` without a setup.

    What setup wrote to tracked paths is dropped and noted as set back by the rule `setup_tracked`.
    Raises `RefusedError` (`setup_failed`) with the end of the output when the command fails, `policy_denied` where
    a rule is against it.
    """
    setup = services.config.project.setup
    if not setup:
        return None
    layers = EnvironmentLayers(services.depot)
    key = _key(services, layers, base, setup)
    found = layers.find(key)
    if found is not None:
        return found
    places = places or Places(services, journal)
    return (await _build(services, journal, layers, places, Ground(base=base), setup, key)).path


class CandidateLayers:
    """The environments of candidate trees: the base's, or one of its own where a tree changes the inputs.

    Such a layer is made without network, since nobody let the candidate's inputs reach one, and removed at the
    end of the block. Where its setup fails that way, the base's layer is used and `notes` says so.
    """

    def __init__(self, services: Services, journal: Notes, places: Places, ground: Ground) -> None:
        self._services = services
        self._journal = journal
        self._places = places
        self._ground = ground
        self._layers = EnvironmentLayers(services.depot)
        self._made: dict[str, Ground] = {}
        self._own: list[FrozenLayer] = []
        self.notes: list[Finding] = []

    async def __aenter__(self) -> CandidateLayers:
        return self

    async def __aexit__(self, *error: object) -> None:
        for layer in self._own:
            await asyncio.to_thread(self._layers.remove, layer)

    async def ground(self, tree: str) -> Ground:
        """Return what a workspace of `tree` stands on."""
        project = self._services.config.project
        if not project.setup:
            return self._ground
        changed = self._layers.changed(self._ground.base, tree, inputs=project.setup_inputs)
        if not changed:
            return self._ground
        key = _key(self._services, self._layers, self._ground.base, project.setup, tree=tree)
        if key not in self._made:
            self._made[key] = await self._make(key, project.setup, tree, changed[0])
        return self._made[key]

    async def _make(self, key: str, setup: str, tree: str, path: str) -> Ground:
        base = self._ground.base
        found = self._layers.find(key)
        if found is not None:  # of a base commit with the same inputs
            return Ground(base=base, environment=found)
        try:
            layer = await _build(
                self._services, self._journal, self._layers, self._places, Ground(base=base), setup, key, tree=tree
            )
        except RefusedError:
            message = "changes an input of setup, which failed without network: the base's environment was used"
            self.notes.append(Finding(rule="setup_offline", severity="warning", path=path, message=message))
            return self._ground
        self._own.append(layer)
        return Ground(base=base, environment=layer.path)


def _key(services: Services, layers: EnvironmentLayers, base: Base, setup: str, *, tree: str | None = None) -> str:
    return layers.key(
        base,
        command=setup,
        inputs=services.config.project.setup_inputs,
        toolchain=services.toolchain,
        tier=services.tier_name,
        tree=tree,
    )


async def _build(
    services: Services,
    journal: Notes,
    layers: EnvironmentLayers,
    places: Places,
    ground: Ground,
    setup: str,
    key: str,
    *,
    tree: str | None = None,
) -> FrozenLayer:
    """Make a layer by running setup on the base, or, without network, on a candidate's tree."""
    action = Run(kind="setup", run=setup, trusted=services.vouched(setup))
    await admit(services, journal, action, purpose="setup")
    signs = _signs(services, ground.base)
    python = bool(_PYTHON_COMMAND.search(setup) or signs.intersection(_PYTHON_SIGNS))
    path = (f"{VENV}/bin",) if python else ()
    async with contextlib.AsyncExitStack() as stack:
        registries = await stack.enter_async_context(_registries(services, journal)) if tree is None else None
        egress = await stack.enter_async_context(places.egress(purpose=SETUP)) if tree is None else None
        workspace = await stack.enter_async_context(places.workspace(ground, purpose=SETUP, tree=tree))
        async with places.sandbox(
            workspace,
            ground,
            purpose=SETUP if tree is None else OFFLINE,
            registries=registries,
            egress=egress,
            path=path,
            environment={**registries.environment(), **setup_variables(setup, signs)} if registries else None,
        ) as sandbox:
            if registries and "CARGO_HOME" in setup_variables(setup, signs):
                await point_cargo(sandbox, registries)
            if python:
                await _run(services, journal, sandbox, f"python3 -m venv {VENV}", _VENV_SECONDS)
            await _run(services, journal, sandbox, setup, services.config.limits.check_time)
        frozen = await asyncio.to_thread(layers.freeze, workspace, key, tree=tree)
    if frozen.dropped:
        dropped = tuple(Reverted(path=path, rule="setup_tracked") for path in frozen.dropped)
        journal.note(ChangesReverted(attempt="", reverted=dropped))
    return frozen


def _signs(services: Services, base: Base) -> frozenset[str]:
    """Return the files at the top of a base that show which package clients it is for."""
    names = (*_PYTHON_SIGNS, *CARGO_SIGNS, *GO_SIGNS)
    return frozenset(name for name in names if services.depot.lookup(base.tree, name))


@contextlib.asynccontextmanager
async def _registries(services: Services, journal: Notes) -> AsyncIterator[Registries]:
    """Open the mirror for one setup; what it was asked for is noted as the requests of a sandbox are."""
    seen = NetworkLog(journal, clock=services.clock, purpose=SETUP, attempt=None)
    async with services.open_registries(log=lambda request: seen.see(as_egress(request))) as opened:
        try:
            yield opened
        finally:
            seen.end()


async def _run(services: Services, journal: Notes, sandbox: Sandbox, command: str, seconds: float) -> None:
    result = await sandbox.exec(["/bin/sh", "-c", command], timeout=seconds, output_limit=4_000_000)
    output = result.stdout + result.stderr
    artifact = services.store.artifacts.put(output, kind="setup", mission=journal.mission)
    journal.note(
        CommandFinished(
            sandbox=sandbox.id,
            argv=("/bin/sh", "-c", command),
            exit_code=result.exit_code,
            seconds=result.seconds,
            timed_out=result.timed_out,
            truncated=result.truncated,
            artifact=artifact,
            limit=result.limit,
        )
    )
    if result.exit_code != 0:
        message = f"{_failure(command, result)}; {_last(output)}"
        raise RefusedError(
            message, code="setup_failed", hint="mend project.setup; chargehand project setup tries it"
        )


def _failure(command: str, result: ExecResult) -> str:
    if result.timed_out:
        return f"setup was stopped at its time limit: {command!r} after {result.seconds:.0f} s"
    if result.limit is not None:
        return f"setup was ended by its limit of {result.limit}: {command!r}"
    return f"setup failed: {command!r} ended with exit code {result.exit_code}"


def _last(output: bytes) -> str:
    tail = printable(output[-_TAIL:].decode(errors="replace")).strip()
    return f"its last output was:\n{tail}" if tail else "it printed nothing"
