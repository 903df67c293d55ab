"""`chargehand sandbox …`, as it is declared."""

from __future__ import annotations

from pathlib import Path

import click

from chargehand.cli.options import json_option


@click.group()
def sandbox() -> None:
    """Prepare what a sandbox tier needs."""


@sandbox.command()
@click.argument("tier", type=click.Choice(["vm"]))
@click.option(
    "--package",
    "packages",
    metavar="FILE",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A Debian package to take instead of downloading; name the kernel's and busybox-static's.",
)
@json_option
def setup(tier: str, packages: tuple[Path, ...], as_json: bool) -> int:
    """Download and unpack the kernel of virtual machines; nothing is installed and root is not needed."""
    from chargehand.cli._sandbox import set_up
    from chargehand.cli.output import Output

    return set_up(Output(as_json=as_json), packages=packages)
