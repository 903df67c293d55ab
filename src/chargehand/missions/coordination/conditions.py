"""Conditions of a plan: commands that run on the merged tree, in a sandbox like that of the checks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from chargehand.core.errors import RefusedError
from chargehand.core.plan_events import PlanProgress, TaskMerged, TaskOutcome
from chargehand.core.plans import Task
from chargehand.core.records import Base, Reason
from chargehand.core.text import format_seconds, printable
from chargehand.missions.journal import Journal
from chargehand.missions.results.tree_judge import TreeJudge
from chargehand.missions.verdict.validation import Validator

_CANNOT_EXECUTE, _NOT_FOUND, _SIGNALLED = 126, 127, 128
# The shell's message for a program that it cannot start, under the name given here. In `! typo` and in `typo |
# sort` the exit code does not show the failure.
_NAME = "chargehand-condition"
_NOT_STARTED = re.compile(
    rb"^chargehand-condition: (?:line )?\d+: (?!cannot )([^\n]*: (?:(?:command )?not found|Permission denied))$",
    re.MULTILINE,
)
_MOST_OUTPUT_BYTES = 1 << 16
_LONGEST_LINE = 200


class PlanConditions:
    """Evaluates the conditions of one plan's tasks; each answer is a recorded step."""

    def __init__(self, journal: Journal, judge: TreeJudge) -> None:
        self._journal = journal
        self._judge = judge

    @property
    def _progress(self) -> PlanProgress:
        assert self._journal.state.plan is not None
        return self._journal.state.plan

    async def find_needless(self, task: Task, tip: Base, *, round: int) -> tuple[TaskOutcome, Reason] | None:
        """Return the outcome and reason of a task that need not start on `tip`, `None` if it must start.

        Raises `RefusedError` (`condition_failed`) for a condition that cannot run.
        """
        first = self._progress.plan.task(task.decision) if task.decision else None
        commands = {
            "done_when": task.done_when,
            "when": "" if first is not None else task.when,
            # After the first round the last merge has already decided whether the loop continues.
            "while": task.loop.while_ if task.loop is not None and round == 1 else "",
        }
        held = await self._ask(f"condition/{task.id}/{round}", task, tip, commands, key=tip.tree)
        if held.get("done_when"):
            return "done", Reason(code="task_done", message=f"{task.done_when} succeeds already")
        if first is not None:
            # Both branches of a `decide` use one answer: merging the first one may change the condition.
            decided = await self._ask(f"decision/{first.id}", first, tip, {"when": first.when}, key="")
            held["when"] = decided["when"] == (task.id == first.id)
            commands["when"] = first.when
        for name in ("when", "while"):
            if held.get(name) is False:
                is_else = name == "when" and first is not None and task.id != first.id
                does = "succeeds" if is_else else "does not succeed"
                return "left_out", Reason(code="condition_unmet", message=f"{commands[name]} {does}")
        return None

    async def loop_goes_on(self, task: Task, tip: Base, merged: TaskMerged) -> bool:
        """Return whether a task starts another round after `merged`, which is not recorded yet.

        Raises `RefusedError`: `loop_bound` for a loop whose rounds are used up before its condition ends it,
        `condition_failed` for a condition that cannot run.
        """
        loop = task.loop
        if loop is None:
            return False
        done = len(self._progress.tasks[task.id].merged) + 1
        name, command = ("until", loop.until) if loop.until else ("while", loop.while_)
        if not command:
            return done < loop.most
        tip = replace(tip, commit=merged.commit, tree=merged.tree)
        held = await self._ask(f"loop/{task.id}/{done}", task, tip, {name: command}, key=tip.tree)
        goes_on = held[name] == (name == "while")
        if goes_on and done >= loop.most:
            still = "still succeeds" if name == "while" else "does not succeed"
            message = f"{command} {still} after {done} rounds, of at most {loop.most}"
            raise RefusedError(message, code="loop_bound", hint="raise 'most', or answer the question")
        return goes_on

    async def _ask(
        self, step: str, task: Task, tip: Base, commands: Mapping[str, str], *, key: str
    ) -> dict[str, bool]:
        """Return which of the commands, by their names in the plan, succeed on `tip`.

        The step is repeated for other commands or another `key`. Raises `RefusedError` (`condition_failed`) for a
        command that cannot run.
        """
        asked = {name: command for name, command in commands.items() if command}
        if not asked:
            return {}
        request = self._journal.state.request
        assert request is not None

        async def look() -> object:
            context = await self._judge.prepare_base(request, tip)
            return {name: await run_condition(context.validator, each, tip.tree) for name, each in asked.items()}

        found = await self._journal.step(step, [asked, key], look)
        for name, held in found.items():
            if isinstance(held, str):
                message = f"the condition {name!r} of task {task.id!r} cannot run: {asked[name]}: {held}"
                hint = "correct it: `chargehand mission plan MISSION --set FILE`"
                raise RefusedError(message, code="condition_failed", hint=hint)
        return dict(found)


async def run_condition(validator: Validator, command: str, tree: str) -> bool | str:
    """Return whether a command succeeds on a tree, or a text that explains why it could not run.

    It cannot run if the shell cannot parse it, if a program in it is missing, or if a signal or a limit ends it.
    """
    runs = validator.runs
    seconds = runs.gates.plan.seconds_each
    async with runs.queue.turn("checks"), runs.open(tree, runs.environment) as sandbox:
        read = await sandbox.exec(
            ["/bin/sh", "-n", "-c", command], timeout=seconds, output_limit=_MOST_OUTPUT_BYTES
        )
        if read.exit_code == 0:
            ended = await sandbox.exec(
                ["/bin/sh", "-c", command, _NAME], timeout=seconds, output_limit=_MOST_OUTPUT_BYTES
            )
        else:
            ended = read
    if ended.timed_out:
        return f"it did not end within {format_seconds(seconds)}"
    if ended.limit is not None:
        return f"it was ended by the limit {ended.limit}"
    if read.exit_code == 0 and ended.exit_code < _CANNOT_EXECUTE:
        failed = _NOT_STARTED.search(ended.stderr)
        if failed is None:
            return ended.exit_code == 0
        return f"a program did not start: {printable(failed[1].decode(errors='replace'))[:_LONGEST_LINE]}"
    said = printable((ended.stderr or ended.stdout).decode(errors="replace")).strip().splitlines()
    why = f": {said[-1][:_LONGEST_LINE]}" if said else ""
    if read.exit_code:
        return f"the shell cannot read it{why}"
    names = {_CANNOT_EXECUTE: "a program cannot be executed", _NOT_FOUND: "a program was not found"}
    signal = f"signal {ended.exit_code - _SIGNALLED} ended it"
    return f"{names.get(ended.exit_code, signal)} (exit code {ended.exit_code}){why}"
