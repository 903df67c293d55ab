"""`chargehand init` writes chargehand.toml and asks for an agent; `chargehand demo` shows the demo's story."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import json_option, repo_option

if TYPE_CHECKING:
    from chargehand.app.composition import App
    from chargehand.app.demonstration import OnEvent, StoryLine
    from chargehand.app.runs import RunOutcome
    from chargehand.cli.terminal.output import Output
    from chargehand.configuration.run_options import RunRequest
    from chargehand.core.state import MissionState


@click.command()
@repo_option
@click.option("--yes", is_flag=True, help="Use the detected values without asking.")
@json_option
def init(repo: Path | None, yes: bool, out: Output) -> None:
    """Write chargehand.toml into a repository.

    Checks and setup are detected from the committed files; nothing is run. An existing file is never changed, but
    you are still offered an agent for yourself. Asks on a terminal; in a pipe, or with --yes, uses the detected
    checks.
    """
    from chargehand.app.composition import App
    from chargehand.app.onboarding import initialise
    from chargehand.cli.terminal.prompts import TerminalPrompts
    from chargehand.core.text import shown_path

    with App.open() as app:
        done = initialise(app, repo, None if yes or not out.can_ask else TerminalPrompts(out))
    out.document(done)
    path = shown_path(done.path)
    if not done.created and done.checks is None:
        unchanged = "nothing was changed" if done.agent is None else "it was not changed"
        out.text(f"{path} already exists; {unchanged}")
        if done.agent is not None:
            out.text(f"agent     {done.agent}, in your own configuration")
            out.text(f'next:     chargehand run --agent {done.agent} "TEXT"')
        return
    out.text(f"wrote {path}", bold=True)
    for check in done.checks or ():
        out.text(f"check     {check}")
    if not done.checks:
        out.text("check     none found: a person must approve every mission")
    if done.setup is not None:
        out.text(f"setup     {done.setup}")
    if done.agent is not None:
        out.text(f"agent     {done.agent}, in your own configuration")
    named = f"--agent {done.agent}" if done.agent else '--agent "command:PROGRAM ARG"'
    file = Path(done.path).name
    force = "--force " if done.ignored else ""
    out.text(f"next:     git add {force}{file} && git commit -m 'Add {file}'")
    out.text(f'          chargehand run {named} "TEXT"')


@click.command()
@click.option("--keep", is_flag=True, help="Keep the demo's directory to look at.")
@json_option
def demo(keep: bool, out: Output) -> int:
    """Watch a model work on a small project: refused, promoted, forked, rolled back.

    Only the model's words are scripted; everything else is real. Nothing outside a temporary directory is touched.
    """
    from chargehand.app.demonstration import run_demo
    from chargehand.cli.terminal.failures import INTERRUPTED

    done = run_demo(_TerminalStage(out), keep=keep)
    if done is None:
        return INTERRUPTED
    out.document(done)
    return 0 if done.ok else 1


class _TerminalStage:
    """The demo's stage: lines on stdout, missions run as `chargehand run` does, without their own progress."""

    def __init__(self, out: Output) -> None:
        from chargehand.cli.terminal.output import Output

        self._out = out
        self._quiet = Output(as_json=True)  # shows no progress: the demo describes its missions itself

    def show(self, line: StoryLine, /) -> None:
        self._out.text(line.text, fg=line.colour, bold=line.bold)

    def run_mission(self, app: App, request: RunRequest, /, *, on_event: OnEvent) -> RunOutcome:
        from chargehand.cli.terminal.running import run_mission

        return run_mission(app, self._quiet, request, on_event=on_event)

    def continue_mission(self, app: App, mission: str, /, *, on_event: OnEvent) -> RunOutcome:
        from chargehand.cli.terminal.running import continue_mission

        return continue_mission(app, self._quiet, mission, on_event=on_event)

    def roll_back(self, app: App, mission: str, /) -> MissionState:
        from chargehand.app.missions import roll_back_mission
        from chargehand.cli.terminal.progress import run_with_progress

        return run_with_progress(
            self._quiet, app.store, lambda shown: roll_back_mission(app, mission, watch=shown.watch)
        )
