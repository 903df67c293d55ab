"""`chargehand policy`: the rules that judge what agents do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chargehand.cli.terminal.options import CommandGroup, json_option, mission_argument, repo_option

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output

# Exit codes as for missions: 3 waits for a person.
_EXITS = {"allow": 0, "deny": 1, "ask": 3}
_COLOURS = {"allow": "green", "deny": "red", "ask": "yellow"}


@click.group(cls=CommandGroup)
def policy() -> None:
    """Show and test the rules that judge what agents do."""


@policy.command()
@repo_option
@click.option("--facts", is_flag=True, help="Show the facts that rules can use instead.")
@click.option("--cedar", is_flag=True, help="Show the rules in Cedar, as they are written, instead.")
@json_option
def show(repo: Path | None, facts: bool, cedar: bool, out: Output) -> None:
    """Show the rules in force, and the source of each."""
    from chargehand.app.composition import App
    from chargehand.app.configuration import list_rules, rule_schema

    if facts:
        schema = rule_schema()
        out.document(schema)
        out.text(schema.schema.rstrip("\n"))
        return
    with App.open() as app:
        listed = list_rules(app, repo)
    out.document(listed)
    if cedar:
        for source in listed.sources:
            out.text(f"// {source.origin}: {source.name}", bold=True)
            out.text(source.text.rstrip("\n"))
        return
    rows = [
        (
            rule.id,
            rule.effect,
            rule.place,
            f"overrides {rule.overrides}: {rule.reason}" if rule.overrides else rule.reason,
        )
        for rule in listed.rules
    ]
    out.table(("RULE", "EFFECT", "FROM", "WHY"), rows)
    out.text("deny wins over ask, ask over allow; an action that no rule matches is denied")


@policy.command()
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--shell", metavar="TEXT", help="Judge a shell command line instead.")
@click.option("--read", metavar="PATH", help="Judge reading a file instead.")
@click.option("--write", metavar="PATH", help="Judge writing a file instead.")
@click.option("--mcp", metavar="TEXT", help="Judge an MCP tool call instead: SERVER/TOOL and its JSON arguments.")
@click.option("--cwd", metavar="DIR", help="Its working directory, relative to /workspace.")
@repo_option
@json_option
def test(command: tuple[str, ...], cwd: str | None, repo: Path | None, out: Output, **kinds: str | None) -> int:
    """Judge a command without running it. Exits 0 for allow, 1 for deny, 3 for ask.

    \b
    Examples:
      chargehand policy test -- git push origin main
      chargehand policy test --shell 'find . -name "*.pyc" | xargs rm -f'
    """
    from chargehand.app.composition import App
    from chargehand.app.configuration import judge_action

    wanted: dict[str, Any] = {"command": command or None, **kinds}
    with App.open() as app:
        judgement = judge_action(app, wanted, cwd=cwd, repo=repo)
    out.document(judgement)
    out.text(f"{judgement.effect}: {judgement.reason} (rule {judgement.rule})", fg=_COLOURS[judgement.effect])
    rows = [
        (
            part.effect,
            part.rule,
            part.kind,
            f"{part.text}  [{' > '.join(part.via)}]" if part.via else part.text,
            f"overrides {', '.join(part.overridden)}" if part.overridden else "",
        )
        for part in judgement.parts
    ]
    if rows:
        out.table(("EFFECT", "RULE", "KIND", "WHAT", ""), rows)
    return _EXITS[judgement.effect]


@policy.command()
@mission_argument
@click.option("--all", "every", is_flag=True, help="Also show actions that were simply allowed.")
@json_option
def why(mission: str, every: bool, out: Output) -> None:
    """Show the judged actions of a mission, with the rule and reason of each."""
    from chargehand.app.configuration import is_notable, mission_judgements
    from chargehand.core.text import shown_path
    from chargehand.reports.reading import StateReader

    counted: dict[str, int] = {}
    with StateReader.open() as reader:
        found = reader.find_mission(mission)
        for logged in mission_judgements(reader, found):
            counted[logged.judged.effect] = counted.get(logged.judged.effect, 0) + 1
            if every or is_notable(logged):
                out.document(logged)
                judged = logged.judged
                line = f"{logged.seq:>4}  {judged.effect:<5}  {judged.kind}: {shown_path(judged.text)}"
                out.text(line, fg=_COLOURS.get(judged.effect))
                about = f" ({shown_path(judged.subject)})" if judged.subject not in ("", judged.text) else ""
                out.text(f"      rule {judged.rule}{about}: {judged.reason}")
                if judged.overridden:
                    out.text(f"      overrides: {', '.join(judged.overridden)}")
                if judged.answer:
                    out.text(f"      your answer: {judged.answer}")
    counts = ", ".join(f"{count} {effect}" for effect, count in sorted(counted.items()))
    out.text(f"{found}: {counts or 'nothing was judged'}")


@policy.command()
@click.argument("rule")
@click.option("--reason", required=True, help="Why this is acceptable; it is recorded in every mission.")
@click.option("--when", default="", metavar="CEDAR", help="Only under this condition, in Cedar.")
@json_option
def allow(rule: str, reason: str, when: str, out: Output) -> None:
    """Override a rule that asks or denies, in your own policy.cedar.

    \b
    Example:
      chargehand policy allow git-fetch --reason "the mirror on this machine" \\
        --when 'context has line && context.line like "git fetch mirror*"'
    """
    from chargehand.app.configuration import override_rule
    from chargehand.core.text import shown_path
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        made = override_rule(reader, rule, reason=reason, when=when)
    out.document(made)
    out.text(f"{rule} is overridden by a rule in {shown_path(made.path)}; delete that rule to undo it")
