"""`chargehand sandbox`: what a sandbox tier needs before it can be used."""

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
    help="Use this Debian package instead of downloading; name the kernel's and busybox-static's.",
)
@json_option
def setup(tier: str, packages: tuple[Path, ...], as_json: bool) -> int:
    """Download and unpack the kernel for virtual machines; installs nothing and needs no root."""
    from chargehand.app.composition import App
    from chargehand.app.diagnosis import set_up_machines
    from chargehand.cli.output import Output
    from chargehand.cli.progress import progress

    out = Output(as_json=as_json)
    with App.open() as app, progress(out, "unpacking" if packages else "downloading"):
        done = set_up_machines(app, packages)
    out.document(done)
    out.text(f"Virtual machines run Linux {done.kernel} from {Path(done.path).parent}.")
    return 0
