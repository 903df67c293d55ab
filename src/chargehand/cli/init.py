"""`chargehand init`: writes chargehand.toml, and asks for a first agent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import json_option, repo_option

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output


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
