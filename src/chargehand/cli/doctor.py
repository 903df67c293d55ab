"""`chargehand doctor`, `sandbox setup` and `completion`: test and prepare this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import PROGRAM, CommandGroup, json_option

if TYPE_CHECKING:
    from chargehand.app.diagnosis import Diagnosis
    from chargehand.cli.terminal.output import Output
    from chargehand.sandbox.probe import ProbePart

# The name that click derives from the program's: the script and the program must agree on it.
_VARIABLE = "_CHARGEHAND_COMPLETE"


@click.group(cls=CommandGroup)
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
def setup(tier: str, packages: tuple[Path, ...], out: Output) -> None:
    """Download and unpack the kernel for virtual machines; installs nothing and needs no root."""
    from chargehand.app.composition import App
    from chargehand.app.diagnosis import set_up_machines
    from chargehand.cli.terminal.progress import progress

    with App.open() as app, progress(out, "unpacking" if packages else "downloading"):
        done = set_up_machines(app, packages)
    out.document(done)
    out.text(f"Virtual machines run Linux {done.kernel} from {Path(done.path).parent}.")


_NAMES_SHOWN = 5


@click.command()
@json_option
def doctor(out: Output) -> int:
    """Test the abilities of this machine, its models and agents, and say how to fix failures.

    Exits 5 if no sandbox works.
    """
    from chargehand.app.composition import App
    from chargehand.app.onboarding import examine
    from chargehand.cli.terminal.interrupt import run_loop
    from chargehand.cli.terminal.progress import progress

    with App.open() as app, progress(out, "testing"):
        found = run_loop(lambda: examine(app))
    out.document(found)
    width = max(len(part.name) for part in found.parts)
    fixes = set[str]()
    for part in found.parts:
        # "no" is not a failure: these drivers come after the one in use.
        word = "ok" if part.ok else "no" if part.name in found.unneeded else "failed"
        out.text(f"{word:<6}  {part.name:<{width}}  {part.detail}", **({"fg": "red"} if word == "failed" else {}))
        if word == "failed" and part.mend not in fixes:  # parts that fail for the same reason have the same fix
            _show_fix(out, part, indent=width + 2)
            fixes.add(part.mend)
    if found.tier is None or found.drivers is None:
        out.text("No sandbox works here: missions are refused until this is fixed.", bold=True)
    else:
        out.text(f"Sandbox: process works, with {found.driver} workspaces.", bold=True)
        if found.drivers.direct != found.driver:
            out.text(f'Strategy "direct" uses {found.drivers.direct} workspaces.')
    for report in filter(None, (found.container, found.vm)):
        for part in report.parts:
            # One working driver is enough: failures of the others are harmless.
            if not part.ok and part not in report.drivers:
                out.text(f"no      {report.tier}: {part.name}: {part.detail}")
                _show_fix(out, part)
        if report.ok:
            works = f"--sandbox {report.tier} works too, with {report.driver} workspaces"
            out.text(f"{works}: {report.parts[0].detail}")
    for part in found.snippets.values():
        out.text(f"{'ok' if part.ok else 'no':<6}  {part.name}: {part.detail}")
        _show_fix(out, part)
    _show_programs(out, found)
    _show_extras(out, found)
    _show_models(out, found)
    return 5 if found.tier is None else 0 if found.ok else 1


def _show_models(out: Output, found: Diagnosis) -> None:
    """Show models and agents, and the next command to type."""
    out.text()
    for model in found.models:
        out.text(f"{'ok' if model.ready else 'no':<6}  model {model.name}: {model.key}")
    for agent in found.agents:
        out.text(f"ok      agent {agent}")
    if not found.models and not found.agents:
        out.text("no      no model is set up, and no agent program is installed")
    if found.next:
        out.text(f"next:   {found.next}", bold=True)


def _show_fix(out: Output, part: ProbePart, *, indent: int = 0) -> None:
    if part.mend:
        out.text(f"        {'':<{indent}}fix: {part.mend}")


def _show_extras(out: Output, found: Diagnosis) -> None:
    """Show the optional parts that are not installed, with the command that installs each."""
    for extra in found.extras:
        if not extra.installed:
            out.text(f"not installed: {extra.name}, for {extra.gives}: {extra.command}")


def _show_programs(out: Output, found: Diagnosis) -> None:
    """Show this machine's programs that sandboxes offer, and the others with the reason."""
    if found.tools_problem:
        out.text(found.tools_problem)
        return
    out.text()
    rows = [(tool.name, tool.version, tool.host, tool.seen) for tool in found.tools if not tool.problem]
    out.table(("TOOL", "VERSION", "FROM", "INSIDE"), rows)
    for tool in found.tools:
        if tool.problem:
            out.text(f"{tool.name} ({tool.host}) {tool.problem}")
    for hidden in found.not_shown:
        more = len(hidden.names) - _NAMES_SHOWN
        names = ", ".join(hidden.names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        out.text(f"not in sandboxes: {names} in {hidden.directory}: {hidden.problem}")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
@click.pass_context
def completion(context: click.Context, shell: str, out: Output) -> None:
    """Print the completion script for a shell.

    \b
    Example:
      chargehand completion bash \\
        > ~/.local/share/bash-completion/completions/chargehand
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(context.find_root().command, {}, PROGRAM, _VARIABLE).source()
    out.document({"shell": shell, "script": script})
    out.text(script)
