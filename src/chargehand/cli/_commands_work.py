"""Commands that do the work, as they are declared."""

from __future__ import annotations

from typing import Any

import click

from chargehand.cli.options import base_option, json_option, repo_option, role_option, time_option


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
@click.argument("text", required=False)
@click.option("--file", metavar="F", help="Read the request from a file, or from stdin with '-'.")
@repo_option
@base_option
@click.option("--agent", metavar="NAME", help="A configured agent, 'native', or 'command:PROGRAM ARG…'.")
@click.option("--model", metavar="NAME", help="The model to begin with: of [models], or PROVIDER:MODEL.")
@click.option("--budget", metavar="USD", help="Spend at most this much on models.")
@click.option("--check", "checks", multiple=True, metavar="CMD", help="One more check that has to pass.")
@role_option
@click.option("--only-check", "only_checks", multiple=True, metavar="CMD", help="Replaces the project's checks.")
@click.option(
    "--check-file", "check_files", multiple=True, metavar="HOST:PATH", help="A file only the checks see, at PATH."
)
@click.option("--allow", multiple=True, metavar="AREA", help="Let only this area be changed (as in .gitignore).")
@click.option("--forbid", multiple=True, metavar="AREA", help="Keep this area from being changed.")
@time_option
@click.option("--attempts", metavar="N", help="Let the agent try at most this often.")
@click.option("--sandbox", metavar="TIER", help="The sandbox tier: process, container or vm.")
@click.option("--strategy", metavar="NAME", help="How workspaces are made: shadow or direct.")
@click.option("--partial", is_flag=True, help="Let in what remains after violating files were set back.")
@click.option("--apply", is_flag=True, help="Also fast-forward the branch that is checked out.")
@click.option("--detach", is_flag=True, help="Leave it to a worker in the background and return at once.")
@click.option("--yes", is_flag=True, help="Ask nothing; this never grants trust.")
@json_option
def run(as_json: bool, **options: Any) -> int:
    """Let an agent do what TEXT asks for, and promote the result if it passes every check.

    The result is a branch chargehand/… in the repository; nothing else of it is touched. Uncommitted changes are
    not part of the work.

    \b
    Example:
      chargehand run --agent "command:ruff check --fix ." "mend what the linter finds"
    """
    from chargehand.app.runs import RunRequest
    from chargehand.cli._run import run
    from chargehand.cli.output import Output

    return run(Output(as_json=as_json), RunRequest(**options))


@click.command()
@click.option("--until-idle", is_flag=True, help="End when no mission is left to go on with.")
@click.option("--wait-for-quota", is_flag=True, help="With --until-idle: stay while a mission waits for quota.")
@click.option("--slots", type=click.IntRange(1, 64), default=5, show_default=True, help="Missions at once.")
@json_option
def worker(until_idle: bool, wait_for_quota: bool, slots: int, as_json: bool) -> int:
    """Go on with every mission that nobody runs: detached, resumed, or left by a process that died.

    Any number of workers may run side by side. A signal lets go of what runs; another worker resumes it from its
    last recorded step. A mission that waits for a provider's quota is woken at its moment.
    """
    from chargehand.cli._worker import work
    from chargehand.cli.output import Output

    return work(Output(as_json=as_json), until_idle=until_idle, slots=slots, sleepers=wait_for_quota)


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD…")
@repo_option
@base_option
@click.option("--mission", metavar="MISSION", help="Work on what this mission left (its last checkpoint).")
@time_option
@click.option("--detach", is_flag=True, help="Return an action's id at once; `chargehand action` follows it.")
@click.option(
    "--snippet", metavar="FILE", help="Run Python or JavaScript by itself, without files or network; - is stdin."
)
@click.option("--sandbox", metavar="TIER", help="process, container, vm or auto; isolate with --snippet.")
@click.option("--language", metavar="NAME", help="python or javascript, where the snippet's name does not tell.")
@click.option("--input", "given", metavar="JSON", help="What the snippet sees as the variable input.")
@json_option
def exec_(
    command: tuple[str, ...],
    as_json: bool,
    snippet: str | None,
    language: str | None,
    given: str | None,
    detach: bool,
    **options: Any,
) -> int:
    """Run one command in a sandbox on a fresh workspace, and promote nothing.

    The exit code is the command's, or 125 where it could not be run. With --snippet it is 0 for a value, else 1.
    With --detach it may take `actions.time` (60 s) unless --time says else.

    \b
    Examples:
      chargehand exec -- python -m pytest -q
      chargehand exec --snippet count.js --input '[1, 2, 3]'
    """
    from chargehand.cli._exec import ExecOptions, exec_command
    from chargehand.cli.output import Output
    from chargehand.cli.snippet import SnippetOptions, run_snippet_file

    out = Output(as_json=as_json)
    if snippet is not None or language is not None or given is not None:
        others = (*command, *(option for option in ("repo", "base", "mission") if options[option] is not None))
        if options["sandbox"] not in (None, "isolate"):
            others = (*others, "sandbox")
        others = (*others, *(("detach",) if detach else ()))
        wanted = SnippetOptions(file=snippet, language=language, given=given, time=options["time"], others=others)
        return run_snippet_file(out, wanted)
    if not command:
        raise click.MissingParameter(param_hint="'-- CMD…'", param_type="argument")
    if detach:
        from chargehand.cli._actions import start_exec

        return start_exec(out, command, **options)
    return exec_command(out, ExecOptions(command=command, **options))
