"""Agent CLIs: programs that work on a prompt without a person and tell in JSON Lines what they do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from chargehand.agents._briefing import briefing
from chargehand.agents._claims import addressed, with_message
from chargehand.agents._cli_specs import SPECS, CliSpec, Launch
from chargehand.agents._contract import Abilities, Assignment, AttemptContext, EndpointModel, Metered, Outcome
from chargehand.agents._ending import clean_output, metered, outcome_of, paid, redactor, unable
from chargehand.agents._launch import require_launch
from chargehand.agents._lines import JsonLines
from chargehand.agents._message_file import offer_message
from chargehand.agents._repairing import Repairs
from chargehand.agents._session_log import SessionLog
from chargehand.core.config import AgentKind, CliName
from chargehand.sandbox.contract import ExecResult, Sandbox, Stream

_OUTPUT_LIMIT = 64 << 20
_LEAST_SECONDS = 1.0
"""Of its time that must be left for a program to be asked again."""
_SESSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
"""A name that a program may give: it becomes a word of its own command line."""
_WRITE = 'mkdir -p "$HOME/${1%/*}" && cat > "$HOME/$1"'


class CliAgent:
    """One of the known CLIs (`SPECS`); `command` is what is started instead of the program by its own name.

    It runs in the sandbox with its own sandbox and questions off. What it tells is kept as a transcript, and its
    own count of tokens beside the gateway's. "done" is a claim, as always.
    """

    kind: AgentKind = "cli"
    driven = False
    abilities = Abilities(resumes="replay", reports=True, mends=True)

    def __init__(
        self, name: str, cli: CliName, *, command: tuple[str, ...] = (), models: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.models = models
        self._spec: CliSpec = SPECS[cli]
        self._command = command

    def prepare(self) -> None:
        """Nothing is needed ahead of time."""

    async def run(self, assignment: Assignment, context: AttemptContext) -> Outcome:
        """Run the program to its end; see `Agent.run`."""
        launch = launch_of(self._spec, assignment, context, stand_in=bool(self._command))
        if isinstance(launch, Outcome):
            return with_message(launch, addressed(assignment, self.name, "end"), None)
        program = self._command or (self._spec.program,)
        await require_launch(context, program)
        await write_files(context.sandbox, self._spec.files(launch))
        environment = environment_of(self._spec, launch, context) | await offer_message(context.sandbox)
        repairs, seconds = Repairs(context, addressed(assignment, self.name, "end")), 0.0
        while True:
            outcome, session = await self._start(launch, environment, context, assignment.seconds - seconds)
            seconds += outcome.seconds
            outcome = replace(outcome, seconds=seconds)
            again = await self._again(repairs, outcome, session, assignment.seconds - seconds)
            if again is None:
                return await repairs.ended(outcome)
            launch = replace(launch, prompt=again, session=session)

    async def _again(self, repairs: Repairs, outcome: Outcome, session: str, left: float) -> str | None:
        """Return what to tell the program where it ended well with a message that cannot be read."""
        if outcome.claim != "done":
            return None
        why_not = "" if _SESSION.fullmatch(session) else "it told no session to go on in"
        return await repairs.again(why_not=why_not or ("" if left > _LEAST_SECONDS else "its time is up"))

    async def _start(
        self, launch: Launch, environment: Mapping[str, str], context: AttemptContext, seconds: float
    ) -> tuple[Outcome, str]:
        """Run the program once, `seconds` at most; return how that ended, and the session that it told."""
        program = self._command or (self._spec.program,)
        log = SessionLog(redact=redactor(context.endpoint), show=shower(context))
        lines = JsonLines()
        show, since = clean_output(context), Metered() if self._spec.sums else metered(context.endpoint)

        def heard(stream: Stream, piece: bytes) -> None:
            if stream == "stdout":
                for line in lines.take(piece):
                    self._take(log, line)
            elif show is not None:
                show(stream, piece)

        began = time.monotonic()
        running = context.sandbox.exec(
            (*program, *self._spec.words(launch)),
            timeout=seconds,
            environment=environment,
            output_limit=_OUTPUT_LIMIT,
            on_output=heard,
        )
        result = await paid(running, context.endpoint)
        for line in lines.finish():
            self._take(log, line)
        outcome = await outcome_of(
            context,
            log,
            result,
            program=program[0],
            problem=self._problem(log, lines, result),
            malformed=lines.malformed,
            seconds=time.monotonic() - began if result is None else result.seconds,
            since=since,
        )
        return outcome, log.session

    def _take(self, log: SessionLog, line: Mapping[str, object]) -> None:
        for event in self._spec.form(line):
            log.take(event)

    def _problem(self, log: SessionLog, lines: JsonLines, result: ExecResult | None) -> str:
        """Return why a run that ended with 0 did not end well: what it told is not whole."""
        if result is not None and result.truncated:
            return f"it wrote more than {_OUTPUT_LIMIT >> 20} MiB"
        if (self._spec.whole and log.end is None) or not log.counts:
            odd = (
                f", among {lines.malformed} lines that are no JSON, the last: {lines.odd}"
                if lines.malformed
                else ""
            )
            return f"it did not tell how it ended{odd}"
        return ""


def launch_of(
    spec: CliSpec, assignment: Assignment, context: AttemptContext, *, stand_in: bool, asks: bool = False
) -> Launch | Outcome:
    """Return what a CLI is started with, or why it cannot be: it is not for sandboxes, or has no model."""
    if spec.outside and not stand_in:
        return unable(f"{spec.name} cannot be driven: {spec.outside}")
    endpoint = context.endpoint
    model = endpoint.models[0] if endpoint is not None and endpoint.models else None
    if model is None and spec.dialects:
        return unable(f"{spec.name} needs a model: name one of [models] in the agent's `model`")
    return Launch(
        prompt=briefing(assignment),
        model=model.name if model else "",
        dialect=_dialect(spec, model),
        token=endpoint.token if endpoint else "",
        asks=asks,
    )


def _dialect(spec: CliSpec, model: EndpointModel | None) -> str:
    """Return the model's own dialect where the CLI can speak it, else its best, which is translated."""
    if model is not None and model.dialect in spec.dialects:
        return model.dialect
    return next(iter(spec.dialects), "")


def environment_of(spec: CliSpec | None, launch: Launch | None, context: AttemptContext) -> dict[str, str]:
    """Return what a program of another vendor finds in its environment besides the sandbox's own."""
    given = dict(context.endpoint.environment) if context.endpoint else {}
    own = spec.environment(launch) if spec is not None and launch is not None else {}
    return {**given, "CI": "1", "NO_COLOR": "1", "DO_NOT_TRACK": "1", **own}


async def write_files(sandbox: Sandbox, files: Mapping[str, str]) -> None:
    """Write settings below HOME."""
    for path, text in files.items():
        await sandbox.exec(["/bin/sh", "-c", _WRITE, "sh", path], stdin=text.encode(), cwd="/")


def shower(context: AttemptContext) -> Callable[[str], None]:
    """Return what shows a text to whoever watches."""

    def show(text: str) -> None:
        if context.on_output is not None:
            context.on_output("stdout", text.encode(errors="replace"))

    return show
