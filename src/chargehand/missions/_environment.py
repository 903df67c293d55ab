"""The environment layer: what `setup` makes, built once per key and shared by every workspace on it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from chargehand.core import Base, ChangesReverted, CommandFinished, RefusedError, Reverted, printable
from chargehand.missions._journal import Notes
from chargehand.missions._places import SETUP, VENV, Ground, Places
from chargehand.missions._services import Services
from chargehand.sandbox import ExecResult, Sandbox
from chargehand.workspace import EnvironmentLayers

_PYTHON_COMMAND = re.compile(r"\b(pip3?|python3?)\b")
_PYTHON_SIGNS = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "Pipfile")
_VENV_SECONDS = 120.0
_TAIL = 2000


async def environment_layer(
    services: Services, journal: Notes, base: Base, *, places: Places | None = None
) -> Path | None:
    """Return the layer for a base, made by running `setup` where it is not there; `None` without a setup.

    What setup wrote to tracked paths is dropped and noted as set back by the rule `setup_tracked`.
    Raises `RefusedError` (`setup_failed`) with the end of the output when the command fails.
    """
    setup = services.config.project.setup
    if not setup:
        return None
    layers = EnvironmentLayers(services.depot)
    key = layers.key(
        base,
        command=setup,
        inputs=services.config.project.setup_inputs,
        toolchain=services.toolchain,
        tier=services.tier_name,
    )
    found = layers.find(key)
    if found is not None:
        return found
    places = places or Places(services, journal)
    return await _build(services, journal, layers, places, Ground(base=base), setup, key)


async def _build(
    services: Services,
    journal: Notes,
    layers: EnvironmentLayers,
    places: Places,
    ground: Ground,
    setup: str,
    key: str,
) -> Path:
    signs = (services.depot.lookup(ground.base.tree, name) for name in _PYTHON_SIGNS)
    python = bool(_PYTHON_COMMAND.search(setup)) or any(signs)
    path = (f"{VENV}/bin",) if python else ()
    async with services.open_registries() as registries, places.workspace(ground, purpose=SETUP) as workspace:
        async with places.sandbox(
            workspace,
            ground,
            purpose=SETUP,
            registries=registries,
            path=path,
            environment=registries.environment(),
        ) as sandbox:
            if python:
                await _run(services, journal, sandbox, f"python3 -m venv {VENV}", _VENV_SECONDS)
            await _run(services, journal, sandbox, setup, services.config.limits.check_time)
        frozen = await asyncio.to_thread(layers.freeze, workspace, key)
    if frozen.dropped:
        dropped = tuple(Reverted(path=path, rule="setup_tracked") for path in frozen.dropped)
        journal.note(ChangesReverted(attempt="", reverted=dropped))
    return frozen.path


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
    return f"setup failed: {command!r} ended with exit code {result.exit_code}"


def _last(output: bytes) -> str:
    tail = printable(output[-_TAIL:].decode(errors="replace")).strip()
    return f"its last output was:\n{tail}" if tail else "it printed nothing"
