"""The verdict of one exact tree: new workspace, new sandbox, the gates, and the base's own tests over it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from chargehand.checks.execution import CheckOutput, CheckPlan, judge, run_checks
from chargehand.checks.inspection import base_tests_tree_plan
from chargehand.core.codec import convert_to
from chargehand.core.mission_events import VerdictGiven
from chargehand.core.ports import Bind, sandbox_ids
from chargehand.core.records import Change, CheckResult, Finding, Verdict, VerdictScope, VerdictStatus
from chargehand.missions._environment import CandidateLayers
from chargehand.missions._journal import Journal
from chargehand.missions._places import CHECKS, Ground, Places, acceptance_place
from chargehand.missions._policy import admit
from chargehand.missions._queue import Queue
from chargehand.missions._reader import DepotReader
from chargehand.missions._services import Services
from chargehand.policy.actions import Run
from chargehand.sandbox.contract import WORKSPACE

_BASE_TESTS = "base's tests: "
_NO_TESTS = "no_tests_ran"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """What a tree must pass: commands, acceptance files (artifact id, path), and whether none was the wish.

    `typed` are the commands that a person gave with the mission.
    """

    plan: CheckPlan
    acceptance: tuple[tuple[str, str], ...]
    explicit_none: bool
    typed: frozenset[str] = frozenset()


class Validator:
    """Gives verdicts for one mission."""

    def __init__(
        self,
        services: Services,
        journal: Journal,
        *,
        ground: Ground,
        gates: Gates,
        places: Places,
        queue: Queue,
    ) -> None:
        self._services = services
        self._journal = journal
        self._ground = ground
        self.gates = gates
        self._places = places
        self._queue = queue
        self._untested: frozenset[str] = frozenset()
        self.outputs: dict[str, CheckOutput] = {}

    async def base(self) -> Verdict:
        """Return how the checks end on the base itself: recorded, from the cache, or by running them.

        Raises `RefusedError` (`policy_denied`) where a rule is against any of them.
        """
        for command in self.gates.plan.commands:
            action = Run(kind="check", run=command, trusted=self._vouched(command))
            await admit(self._services, self._journal, action, purpose="check")
        tree = self._ground.base.tree

        async def judged() -> object:
            kept = self._services.store.verdicts.get(self._services.project, tree, plan_digest=self._base_key)
            return {"verdict": kept or await self._base(tree), "reused": kept is not None}

        def told(output: Any) -> tuple[VerdictGiven, ...]:
            return (VerdictGiven(verdict=output["verdict"], reused=output["reused"]),)

        output = await self._journal.step("verdict/base", [tree, self._base_key], judged, notes=told)
        verdict = convert_to(output["verdict"], Verdict)
        self._untested = frozenset(check.name for check in verdict.checks if check.reason == _NO_TESTS)
        return verdict

    def _vouched(self, command: str) -> bool:
        return command in self.gates.typed or self._services.vouched(command)

    async def _base(self, tree: str) -> Verdict:
        checks = await self._run(tree, self._ground, acceptance=())
        verdict = Verdict(tree=tree, scope="base", status=self._judge(checks, ()), checks=checks)
        self._services.store.verdicts.put(self._services.project, verdict, plan_digest=self._base_key)
        return verdict

    async def candidate(
        self,
        tree: str,
        *,
        scope: VerdictScope,
        changes: Sequence[Change],
        findings: Sequence[Finding],
        degraded: bool = False,
    ) -> Verdict:
        """Return the verdict of a tree: all gates on it, and on it with the base's tests and check surface.

        `degraded` says that `findings` are not all that inspection should have looked for.
        """
        async with CandidateLayers(self._services, self._journal, self._places, self._ground) as layers:
            checks = await self._run(tree, await layers.ground(tree), acceptance=self.gates.acceptance)
            if all(check.status == "passed" for check in checks):
                checks += await self._with_base_tests(tree, changes, layers)
        told = (*findings, *layers.notes)
        status = self._judge(checks, told, degraded=degraded)
        return Verdict(tree=tree, scope=scope, status=status, checks=checks, findings=told)

    async def _with_base_tests(
        self, tree: str, changes: Sequence[Change], layers: CandidateLayers
    ) -> tuple[CheckResult, ...]:
        depot = self._services.depot
        overrides = base_tests_tree_plan(
            changes, DepotReader(depot), self._ground.base.tree, commands=self.gates.plan.commands
        )
        if not overrides:
            return ()
        mixed = await asyncio.to_thread(depot.replace_paths, tree, tuple(overrides), self._ground.base.tree)
        if mixed == tree:
            return ()
        checks = await self._run(mixed, await layers.ground(mixed), acceptance=self.gates.acceptance)
        for check in checks:
            self.outputs[f"{_BASE_TESTS}{check.name}"] = self.outputs.pop(check.name)
        # Where the base has no tests, it has none to be judged by: a project's first tests may land.
        told = (check for check in checks if not (check.reason == _NO_TESTS and check.name in self._untested))
        return tuple(replace(check, name=f"{_BASE_TESTS}{check.name}", base_tests=True) for check in told)

    def _judge(
        self, checks: Sequence[CheckResult], findings: Sequence[Finding], *, degraded: bool = False
    ) -> VerdictStatus:
        return judge(checks, findings, explicit_none=self.gates.explicit_none, degraded=degraded)

    async def _run(
        self, tree: str, ground: Ground, *, acceptance: Sequence[tuple[str, str]]
    ) -> tuple[CheckResult, ...]:
        if not self.gates.plan.commands:
            return ()
        with self._acceptance_files(acceptance) as binds:
            async with (
                self._queue.turn("checks"),
                self._places.workspace(ground, purpose=CHECKS, tree=tree) as workspace,
                self._places.egress(purpose=CHECKS) as egress,
                self._places.sandbox(workspace, ground, purpose=CHECKS, binds=binds, egress=egress) as sandbox,
            ):
                return await run_checks(
                    self.gates.plan,
                    sandbox,
                    keep=self._services.store.artifacts,
                    mission=self._journal.mission,
                    on_result=self._remember,
                )

    def _remember(self, result: CheckResult, output: CheckOutput) -> None:
        self.outputs[result.name] = output

    @contextlib.contextmanager
    def _acceptance_files(self, files: Sequence[tuple[str, str]]) -> Iterator[tuple[Bind, ...]]:
        """Lay the acceptance files out as they were when the mission was created, read-only to the sandbox."""
        if not files:
            yield ()
            return
        directory = acceptance_place(self._services, self._journal)
        directory.mkdir(mode=0o700)
        try:
            binds = []
            for number, (artifact, path) in enumerate(files):
                source = directory / str(number)
                source.write_bytes(self._services.store.artifacts.get(artifact))
                binds.append(Bind(source=source, target=f"{WORKSPACE}/{path}"))
            _show_to_sandbox(directory)
            yield tuple(binds)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    @property
    def _base_key(self) -> str:
        layer = self._ground.environment.name if self._ground.environment else "-"
        return "/".join(("base", self.gates.plan.digest(), layer, self._services.toolchain))


def _show_to_sandbox(directory: Path) -> None:
    """Let the user of the sandbox read the files, and nobody change them."""
    for path in (directory, *directory.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o444)
        os.chown(path, *sandbox_ids())
