"""`chargehand policy …`, as it is declared."""

from __future__ import annotations

from pathlib import Path

import click

from chargehand.cli.options import json_option, mission_argument, repo_option


@click.group()
def policy() -> None:
    """See and try the rules that judge what agents do."""


@policy.command("show")
@repo_option
@click.option("--facts", is_flag=True, help="Show what rules may ask about instead.")
@click.option("--cedar", is_flag=True, help="Show the rules as they are written instead.")
@json_option
def show_policy(repo: Path | None, facts: bool, cedar: bool, as_json: bool) -> int:
    """Show the rules in force, and where each comes from."""
    from chargehand.cli._policy import show_rules
    from chargehand.cli.output import Output

    return show_rules(Output(as_json=as_json), repo=repo, facts=facts, cedar=cedar)


@policy.command("test")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--shell", "line", metavar="TEXT", help="A line for a shell instead.")
@click.option("--read", "read", metavar="PATH", help="A file that is read instead.")
@click.option("--write", "write", metavar="PATH", help="A file that is written instead.")
@click.option("--mcp", "mcp", metavar="TEXT", help="A call of an MCP tool instead: SERVER/TOOL and its JSON.")
@click.option("--cwd", metavar="DIR", help="Where it runs, relative to /workspace.")
@repo_option
@json_option
def try_policy(
    command: tuple[str, ...],
    line: str | None,
    read: str | None,
    write: str | None,
    mcp: str | None,
    cwd: str | None,
    repo: Path | None,
    as_json: bool,
) -> int:
    """Judge a command without running it: exits 0 allow, 1 deny, 3 ask.

    \b
    Examples:
      chargehand policy test -- git push origin main
      chargehand policy test --shell 'find . -name "*.pyc" | xargs rm -f'
    """
    from chargehand.cli._policy import judge_action
    from chargehand.cli.output import Output

    wanted = {"command": command or None, "shell": line, "read": read, "write": write, "mcp": mcp}
    return judge_action(Output(as_json=as_json), wanted, cwd=cwd, repo=repo)


@policy.command("why")
@mission_argument
@click.option("--all", "every", is_flag=True, help="Also show what was simply allowed.")
@json_option
def why_policy(mission: str, every: bool, as_json: bool) -> int:
    """Show what was judged in a mission, by which rule and why."""
    from chargehand.cli._policy import show_judgements
    from chargehand.cli.output import Output

    return show_judgements(Output(as_json=as_json), mission, every=every)


@policy.command("allow")
@click.argument("rule")
@click.option("--reason", required=True, help="Why this is all right; it stands in the log of each mission.")
@click.option("--when", default="", metavar="CEDAR", help="Only under this condition, in Cedar.")
@json_option
def allow_rule(rule: str, reason: str, when: str, as_json: bool) -> int:
    """Set a rule that asks or denies aside, in your own policy.cedar.

    \b
    Example:
      chargehand policy allow git-fetch --reason "the mirror on this machine" \\
        --when 'context has line && context.line like "git fetch mirror*"'
    """
    from chargehand.cli._policy import override
    from chargehand.cli.output import Output

    return override(Output(as_json=as_json), rule, reason=reason, when=when)
