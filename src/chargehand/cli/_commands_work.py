"""Commands that do the work, as they are declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from chargehand.cli.options import json_option, repo_option


@click.command()
@repo_option
@click.option("--yes", is_flag=True, help="Take what is detected and ask nothing.")
@json_option
def init(repo: Path | None, yes: bool, as_json: bool) -> int:
    """Write chargehand.toml into a repository.

    The checks and the setup are detected from the committed files; nothing is run. A file that is there is never
    changed. Asks on a terminal; in a pipe, or with --yes, what is detected is taken.
    """
    from chargehand.cli._init import init
    from chargehand.cli.output import Output

    return init(Output(as_json=as_json), repo=repo, ask=not yes)


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Try what this machine can offer and say how to mend what fails.

    Exits 5 where no sandbox can be had.
    """
    from chargehand.cli._doctor import doctor
    from chargehand.cli.output import Output

    return doctor(Output(as_json=as_json))


@click.command()
@click.option("--keep", is_flag=True, help="Keep the demo's directory to look at.")
@json_option
def demo(keep: bool, as_json: bool) -> int:
    """See a model at work on a small project: refused, let in, forked, rolled back.

    Only the model's words are scripted; all else is real. Nothing outside a temporary directory is touched.
    """
    from chargehand.cli._demo import demo
    from chargehand.cli.output import Output

    return demo(Output(as_json=as_json), keep=keep)


@click.command()
@repo_option
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--max-age", metavar="AGE", help="What was used longer ago goes, such as 30m, 24h or 7d.")
@click.option("--max-bytes", metavar="SIZE", help="Go on until all takes no more, such as 500MB or 2GiB.")
@click.option("--checkpoints", is_flag=True, help="Let go of checkpoints too, for good; asks first.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def gc(as_json: bool, **options: Any) -> int:
    """Remove what no mission needs any more: old bases, layers and workspaces of dead processes.

    In all projects, or in one with --repo; least recently used first, until all is under limits.state_mb.
    Checkpoints stay unless --checkpoints is given.
    """
    from chargehand.cli._gc import GcOptions, collect
    from chargehand.cli.output import Output

    return collect(Output(as_json=as_json), GcOptions(**options))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
@click.pass_context
def completion(context: click.Context, shell: str, as_json: bool) -> int:
    """Print the completion script of a shell.

    \b
    Example:
      chargehand completion bash > ~/.local/share/bash-completion/completions/chargehand
    """
    from chargehand.cli._completion import completion
    from chargehand.cli.output import Output

    return completion(Output(as_json=as_json), context.find_root().command, shell)
