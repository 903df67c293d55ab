"""The root of all commands. Nothing here or in `_commands_*` imports more than click: help has to be instant."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from chargehand.cli._commands_actions import action, format_, git
from chargehand.cli._commands_checkpoint import checkpoint
from chargehand.cli._commands_mcp import mcp
from chargehand.cli._commands_mission import mission
from chargehand.cli._commands_stats import stats
from chargehand.cli._commands_work import demo, exec_, run, worker
from chargehand.cli.agent import agent
from chargehand.cli.artifact import artifact
from chargehand.cli.audit import audit
from chargehand.cli.completion import completion
from chargehand.cli.config import config
from chargehand.cli.doctor import doctor
from chargehand.cli.failures import guarded
from chargehand.cli.gateway import gateway
from chargehand.cli.gc import gc
from chargehand.cli.init import init
from chargehand.cli.model import model
from chargehand.cli.options import PROGRAM, json_wanted
from chargehand.cli.policy import policy
from chargehand.cli.project import project
from chargehand.cli.role import role
from chargehand.cli.sandbox import sandbox
from chargehand.cli.secret import secret


class Root(click.Group):
    """Ends every run with an exit code of the documented list, and every error as one message."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run one command line and exit; `standalone_mode` makes no difference."""
        words = list(sys.argv[1:] if args is None else args)

        def work() -> object:
            return super(Root, self).main(
                words, PROGRAM, complete_var, standalone_mode=False, obj=tuple(words), **extra
            )

        sys.exit(guarded(work, words))


def _show_version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    import json

    from chargehand import __version__

    as_json = json_wanted(context.obj or ())
    click.echo(json.dumps({"version": __version__}) if as_json else f"{PROGRAM} {__version__}")
    context.exit()


@click.group(cls=Root, name=PROGRAM, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, hidden=True)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def chargehand(as_json: bool) -> None:
    """Put coding agents to work on a git repository and let in only what passes.

    Start with `chargehand doctor`, see it work with `chargehand demo`, then `chargehand init` in a repository.

    \b
    Exit codes: 0 promoted or done, 1 refused, failed or cancelled, 2 usage, 3 waiting for a person,
    4 budget or time used up, 5 no sandbox to be had, 6 internal error, 130 interrupted.
    """


_WORK: tuple[click.Command, ...] = (init, doctor, demo, run, exec_, format_, worker, mcp, gc, stats, completion)
_GROUPS: tuple[click.Command, ...] = (
    mission,
    checkpoint,
    artifact,
    agent,
    role,
    model,
    gateway,
    project,
    git,
    action,
    policy,
    sandbox,
    secret,
    audit,
    config,
)
for _command in (*_WORK, *_GROUPS):
    chargehand.add_command(_command)


def main() -> NoReturn:
    """Run the program's command line; SIGTERM ends it as Ctrl-C does."""
    listen_for_signals()
    chargehand.main()


def listen_for_signals() -> None:
    """Let SIGINT and SIGTERM raise `KeyboardInterrupt`, also where our parent ignored them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> NoReturn:
    """Raise `KeyboardInterrupt`; each time, for one that arrives in a finaliser is lost and must be repeatable."""
    raise KeyboardInterrupt
