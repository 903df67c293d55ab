"""`chargehand mission …`, as it is declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from chargehand.cli.options import json_option, mission_argument, named_mission_argument, repo_option


@click.group()
def mission() -> None:
    """Look at missions, and decide on them.

    MISSION is an id, its beginning or its end, or 'last' for the newest one.
    """


@mission.command("list")
@repo_option
@click.option("--all", "everywhere", is_flag=True, help="Those of all projects, not of this repository alone.")
@json_option
def list_(repo: Path | None, everywhere: bool, as_json: bool) -> int:
    """List missions, the oldest first."""
    from chargehand.cli._mission_view import list_missions
    from chargehand.cli.output import Output

    return list_missions(Output(as_json=as_json), repo=repo, everywhere=everywhere)


@mission.command()
@mission_argument
@json_option
def show(mission: str, as_json: bool) -> int:
    """Show everything about a mission: request, base, attempts, verdicts, reasons, export, cost."""
    from chargehand.cli._mission_view import show_mission
    from chargehand.cli.output import Output

    return show_mission(Output(as_json=as_json), mission)


@mission.command()
@mission_argument
@json_option
def watch(mission: str, as_json: bool) -> int:
    """Follow a mission until a person has to act, or nobody; JSON lines with --json."""
    from chargehand.cli._mission_log import watch_mission
    from chargehand.cli.output import Output

    return watch_mission(Output(as_json=as_json), mission)


@mission.command()
@mission_argument
@click.option("--follow", is_flag=True, help="Go on until the mission is settled.")
@click.option("--transcript", is_flag=True, help="What the agent said and did instead.")
@json_option
def log(mission: str, follow: bool, transcript: bool, as_json: bool) -> int:
    """Show a mission's events, or the conversation behind them; JSON lines with --json."""
    from chargehand.cli._mission_log import show_log, show_transcript
    from chargehand.cli.output import Output

    if transcript:
        return show_transcript(Output(as_json=as_json), mission)
    return show_log(Output(as_json=as_json), mission, follow=follow)


@mission.command()
@mission_argument
@click.option("--stat", is_flag=True, help="Only how many lines each file gained and lost.")
@click.option("--checkpoint", metavar="COMMIT", help="Up to this checkpoint instead of the result.")
@json_option
def diff(mission: str, stat: bool, checkpoint: str | None, as_json: bool) -> int:
    """Show what a mission changed against its base, as a patch that git applies."""
    from chargehand.cli._diff import mission_diff
    from chargehand.cli.output import Output

    return mission_diff(Output(as_json=as_json), mission, stat=stat, checkpoint=checkpoint)


@mission.command()
@named_mission_argument
@click.option("--reason", default="", metavar="TEXT", help="Why; it is recorded.")
@json_option
def pause(mission: str, reason: str, as_json: bool) -> int:
    """Freeze a mission where it is, agent and checks alike; the time it stands still counts for no limit."""
    from chargehand.cli._mission_steer import pause
    from chargehand.cli.output import Output

    return pause(Output(as_json=as_json), mission, reason=reason)


@mission.command()
@named_mission_argument
@json_option
def resume(mission: str, as_json: bool) -> int:
    """Let a paused mission go on, or one whose worker was lost: from its last recorded step."""
    from chargehand.cli._mission_steer import resume
    from chargehand.cli.output import Output

    return resume(Output(as_json=as_json), mission)


@mission.command()
@named_mission_argument
@click.argument("text")
@click.option("--critical", is_flag=True, help="Freeze the agent and ask if it is not acknowledged in 10 s.")
@json_option
def send(mission: str, text: str, critical: bool, as_json: bool) -> int:
    """Tell the agent something; an agent that cannot listen while it works gets it with its next attempt."""
    from chargehand.cli._mission_steer import send
    from chargehand.cli.output import Output

    return send(Output(as_json=as_json), mission, text, critical=critical)


@mission.command()
@named_mission_argument
@click.argument("text", required=False)
@json_option
def answer(mission: str, text: str | None, as_json: bool) -> int:
    """Answer what the agent of a mission asks; without TEXT, show or ask it."""
    from chargehand.cli._questions import answer
    from chargehand.cli.output import Output

    return answer(Output(as_json=as_json), mission, text)


@mission.command()
@named_mission_argument
@click.option("--at", metavar="[ATTEMPT.]TURN", help="The reply to fork at (default: the last one).")
@click.option("--model", metavar="NAME", help="The model that answers from there on.")
@click.option("--reply", metavar="TEXT|@FILE", help="The reply to go on with instead of asking a model.")
@click.option("--detach", is_flag=True, help="Leave it to a worker in the background.")
@json_option
def fork(mission: str, as_json: bool, **options: Any) -> int:
    """Go another way from one of a native agent's replies on, as a new mission; what was before costs nothing."""
    from chargehand.cli._mission_fork import fork_mission
    from chargehand.cli.output import Output

    return fork_mission(Output(as_json=as_json), mission, **options)


@mission.command()
@named_mission_argument
@json_option
def cancel(mission: str, as_json: bool) -> int:
    """Stop a mission that runs, or close one that waits."""
    from chargehand.cli._mission_steer import cancel
    from chargehand.cli.output import Output

    return cancel(Output(as_json=as_json), mission)


@mission.command()
@named_mission_argument
@click.option("--dry-run", is_flag=True, help="Only show what would become of each file.")
@json_option
def rollback(mission: str, dry_run: bool, as_json: bool) -> int:
    """Undo a promotion by a new commit on the mission's branch; no branch of yours moves back."""
    from chargehand.cli.output import Output

    if dry_run:
        from chargehand.cli._checkpoint_restore import preview_roll_back

        return preview_roll_back(Output(as_json=as_json), mission)
    from chargehand.cli._mission_change import roll_back

    return roll_back(Output(as_json=as_json), mission)


@mission.command()
@named_mission_argument
@click.option("--reason", default="", metavar="TEXT", help="Why you let it in; it is recorded.")
@json_option
def promote(mission: str, reason: str, as_json: bool) -> int:
    """Let in what only a person may; never what a check refuses."""
    from chargehand.cli._mission_change import promote
    from chargehand.cli.output import Output

    return promote(Output(as_json=as_json), mission, reason=reason)


@mission.command()
@named_mission_argument
@json_option
def discard(mission: str, as_json: bool) -> int:
    """Settle a mission as not wanted; its checkpoints stay until gc."""
    from chargehand.cli._mission_steer import discard
    from chargehand.cli.output import Output

    return discard(Output(as_json=as_json), mission)
