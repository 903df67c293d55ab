"""`chargehand decision` and `feedback`: choices, and how they turned out; `knowledge`: belief networks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chargehand.cli.terminal.options import (
    CommandGroup,
    complete_missions,
    json_option,
    mission_argument,
    named_mission_argument,
    repo_option,
)

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output
    from chargehand.decisions.explanation import ComparedCandidate
    from chargehand.decisions.rollouts import RolloutSide
    from chargehand.reports.choices import ExplainedChoice
    from chargehand.store.networks import NetworkVersion

_FILE = click.Path(path_type=Path)
_number_option = click.option(
    "--number", type=click.IntRange(0), help="A version's number, by default the newest; 0 is the shipped one."
)


@click.group(cls=CommandGroup)
def knowledge() -> None:
    """Store belief networks, ask them for probabilities, and let them learn from cases."""


@knowledge.command("import")
@click.argument("name")
@click.argument("file", type=_FILE)
@json_option
def import_(name: str, file: Path, out: Output) -> None:
    """Store a network from a file of NDJSON or .bif.

    It becomes the newest version of NAME.
    A file with an error is refused with its line, and nothing is stored.
    """
    from chargehand.app.knowledge import import_network, read_file
    from chargehand.identity.accounts import owner
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        stored = import_network(reader, name, read_file(file), by=owner(reader))
    out.document(stored)
    out.text(f"{name} is stored as version {stored.number} ({stored.version})")


@knowledge.command("list")
@json_option
def list_(out: Output) -> None:
    """List all networks with their newest versions."""
    from chargehand.app.knowledge import list_networks
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        listed = list_networks(reader)
    out.document(listed)
    out.table(("NAME", "NUMBER", "VERSION", "AUTHOR", "CREATED"), [_columns(each) for each in listed.networks])


@knowledge.command()
@click.argument("name")
@_number_option
@json_option
def show(name: str, number: int | None, out: Output) -> None:
    """Show the nodes and versions of a network."""
    from chargehand.app.knowledge import show_network
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        shown = show_network(reader, name, number=number)
    out.document(shown)
    out.text(f"{name}, version {shown.network.number} ({shown.network.version})")
    if shown.note:
        out.text(shown.note)
    rows = [(each.name, ", ".join(each.states), ", ".join(each.parents) or "-") for each in shown.nodes]
    out.table(("NODE", "STATES", "PARENTS"), rows)
    out.table(("NAME", "NUMBER", "VERSION", "AUTHOR", "CREATED"), [_columns(each) for each in shown.versions])


@knowledge.command()
@click.argument("name")
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True)
@click.option(
    "--given",
    multiple=True,
    metavar="NODE=STATE",
    help="Observed state, or NODE=STATE:LIKELIHOOD,...",
)
@_number_option
@json_option
def query(name: str, targets: tuple[str, ...], given: tuple[str, ...], number: int | None, out: Output) -> None:
    """Show the probability of each state of a node.

    Several nodes are queried jointly.

    \b
    Examples:
      chargehand knowledge query failure-cause cause --given end=crashed
      chargehand knowledge query promotion-risk wrong --given unread=none:4,some:1
    """
    from chargehand.app.knowledge import query_posterior
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        posterior = query_posterior(reader, name, targets, given, number=number)
    out.document(posterior)
    rows = [(*each.states, f"{each.probability:.6f}") for each in posterior.outcomes]
    out.table((*posterior.targets, "PROBABILITY"), rows)


@knowledge.command()
@click.argument("name")
@click.argument("file", type=_FILE)
@json_option
def update(name: str, file: Path, out: Output) -> None:
    """Learn from cases, and store a new version.

    Earlier versions stay as they are.
    Each line of the file is a case: an object of nodes and states. Missing or null nodes were not observed.
    """
    from chargehand.app.knowledge import read_file, update_network
    from chargehand.identity.accounts import owner
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        learned = update_network(reader, name, read_file(file), by=owner(reader))
    out.document(learned)
    stored = learned.network
    out.text(f"{name} learned from {learned.cases} cases: version {stored.number} ({stored.version})")


@knowledge.command()
@click.argument("name")
@_number_option
@json_option
def export(name: str, number: int | None, out: Output) -> None:
    """Print a network as NDJSON, which `knowledge import` reads."""
    from chargehand.app.knowledge import export_network
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        exported = export_network(reader, name, number=number)
    if out.as_json:
        out.document(exported)
    else:
        out.raw(exported.content.encode())


@knowledge.command()
@click.argument("name")
@json_option
def remove(name: str, out: Output) -> None:
    """Remove a network with all its versions.

    A shipped network of that name is used again.
    """
    from chargehand.app.knowledge import remove_network
    from chargehand.identity.accounts import owner
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        removed = remove_network(reader, name, by=owner(reader))
    out.document(removed)
    out.text(f"{name} was removed with {removed.versions} versions")


def _columns(version: NetworkVersion) -> tuple[str, ...]:
    number = str(version.number) if version.number else "shipped"
    return (version.name, number, version.version, version.author, version.created[:19] or "-")


@click.group(cls=CommandGroup)
def decision() -> None:
    """Explain how agents, models and next steps were chosen."""


@decision.command()
@mission_argument
@json_option
def why(mission: str, out: Output) -> None:
    """Explain each choice of agent and model in a mission.

    A choice that was learned from outcomes is shown with the chance, price and value of each candidate, and is
    computed again from its record.

    \b
    Example:
      chargehand decision why last
    """
    from chargehand.reports.choices import explain_choices
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        found = explain_choices(reader, mission)
    out.document(found)
    if not found.choices:
        out.text("No choice of agent or model is recorded with its reasons.")
    for each in found.choices:
        _show_choice(out, each)


@decision.command("list")
@click.option("--limit", type=click.IntRange(1, 500), default=20, help="Of so many newest missions.")
@json_option
def list_recent(limit: int, out: Output) -> None:
    """List the choices of agent and model in the newest missions.

    \b
    Example:
      chargehand decision list --limit 50
    """
    from chargehand.reports.choices import list_choices
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        found = list_choices(reader, limit=limit)
    out.document(found)
    if not found.choices:
        out.text("No choice of agent or model is recorded.")
        return
    out.table(
        ("MISSION", "TIME", "TASK", "CHOSEN", "WHY"),
        [(each.mission, each.time[:16], each.task or "-", each.chosen, each.why) for each in found.choices],
    )


@decision.command()
@click.argument("mission", required=False, shell_complete=complete_missions)
@json_option
def replay(mission: str | None, out: Output) -> int:
    """Compute learned choices again from their records.

    Without MISSION those of all missions. The exit code is 1 if a choice gives other numbers.

    \b
    Example:
      chargehand decision replay
    """
    from chargehand.reports.choices import replay_choices
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        found = replay_choices(reader, mission)
    out.document(found)
    total = found.same + len(found.different)
    out.text(f"Learned choices computed again: {total}; with the same numbers: {found.same}.")
    if found.skipped:
        out.text(f"Not computed again, of another version or without its optional part: {found.skipped}.")
    for each in found.different:
        out.text(f"Other numbers: {each.mission}, {each.chosen} ({each.why})")
    return 1 if found.different else 0


@decision.command()
@click.option("--limit", type=click.IntRange(1, 500), default=500, help="Of so many newest missions.")
@json_option
def reliability(limit: int, out: Output) -> None:
    """Compare predicted chances with what happened.

    Each row is a tenth of the chance: how many predictions were in it, their mean, and how many came true, with an
    80 % interval. In a reliable row the mean is within that interval.

    \b
    Example:
      chargehand decision reliability
    """
    from chargehand.reports.predictions import measure_reliability
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        found = measure_reliability(reader, limit=limit)
    out.document(found)
    for what, each in (("Learned choices", found.choices), ("Forecasts", found.forecasts)):
        if not each.bins or each.brier is None or each.rate_brier is None:
            out.text(f"{what}: none with a known outcome in {found.missions} missions; open: {each.open}.")
            continue
        errors = f"squared error {each.brier:.3f}, of the plain rate {each.rate_brier:.3f}"
        out.text(f"{what}: {each.count} with a known outcome, open: {each.open}; {errors}.")
        out.table(
            ("CHANCE", "NUMBER", "MEAN", "CAME TRUE", "80 % INTERVAL"),
            [
                (
                    f"{one.low:.0%} to {one.high:.0%}",
                    str(one.count),
                    f"{one.predicted:.0%}",
                    f"{one.good} ({one.rate:.0%})",
                    f"{one.rate_low:.0%} to {one.rate_high:.0%}",
                )
                for one in each.bins
            ],
        )


@decision.command()
@click.option("--limit", type=click.IntRange(1, 500), default=20, help="Of so many newest missions.")
@json_option
def forecasts(limit: int, out: Output) -> None:
    """List recorded forecasts of missions and plans, each computed again from its seed.

    \b
    Example:
      chargehand decision forecasts
    """
    from chargehand.decisions.forecast_records import describe_band, format_span
    from chargehand.reports.predictions import list_forecasts
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        found = list_forecasts(reader, limit=limit)
    out.document(found)
    if not found.forecasts:
        out.text("No forecast is recorded.")
        if not found.learns:
            out.text("next:     chargehand config set decisions.learned true")
        return
    rows = [
        (
            each.mission,
            f"{each.after} tasks" if each.tasks else str(each.after),
            f"{each.chance:.0%}" + (" (guess)" if each.is_guess else ""),
            describe_band(each.cost_usd, "unknown", lambda usd: f"{usd:.2f} USD"),
            describe_band(each.seconds, "unknown", format_span),
            "-" if each.seed is None else f"{each.seed}, {each.samples}",
            _AGAIN[each.reproduced],
        )
        for each in found.forecasts
    ]
    out.table(("MISSION", "AFTER", "CHANCE", "COST", "TIME", "SEED, SAMPLES", "COMPUTED AGAIN"), rows)


_AGAIN = {True: "the same", False: "other numbers", None: "not possible"}


@decision.command()
@json_option
def rollouts(out: Output) -> None:
    """Show roll-outs of models and policies, with the outcomes of both sides.

    A roll-out is a table [rollouts.NAME] of your configuration.

    \b
    Examples:
      chargehand config set rollouts.try-small.model small
      chargehand config set rollouts.try-small.percent 10
      chargehand decision rollouts
    """
    from chargehand.reports.reading import StateReader
    from chargehand.reports.rollouts import list_rollouts

    with StateReader.open() as reader:
        listed = list_rollouts(reader)
    out.document(listed)
    if not listed.rollouts:
        out.text("No roll-out is set up.")
        out.text("next:     chargehand config set rollouts.NAME.model MODEL")
        out.text("          chargehand config set rollouts.NAME.percent 10")
        return
    rows = [
        (
            each.name,
            each.gives,
            f"{each.percent:g} %",
            f"{each.state.members} of {each.state.known}",
            _outcomes(each.state.inside),
            _outcomes(each.state.outside),
        )
        for each in listed.rollouts
    ]
    out.table(("ROLL-OUT", "GIVES", "SHARE", "PROJECTS", "GOOD IN IT", "GOOD OUTSIDE"), rows)
    for each in listed.rollouts:
        out.text(f"{each.name}: {each.meaning}")
        if each.problem:
            out.text(f"  It changes no choice: {each.problem}.")
        for what, command in (("raise", each.raise_with), ("end", each.end_with)):
            if command:
                out.text(f"  To {what} it: {command}")


def _outcomes(side: RolloutSide) -> str:
    if side.rate is None:
        return "-"
    projects = f"{side.projects} project" + ("" if side.projects == 1 else "s")
    return f"{side.good} of {side.outcomes} ({side.rate:.0%}), {projects}"


@decision.command()
@click.argument("mission", required=False, shell_complete=complete_missions)
@repo_option
@json_option
def look(mission: str | None, repo: Path | None, out: Output) -> None:
    """Look for the fates of promoted changes on their branches, and record them.

    A change survived, was rolled back, was reverted by a later commit, or was rewritten: the branch lost it.
    Without MISSION it looks at the recent promotions of the project.

    \b
    Example:
      chargehand decision look last
    """
    from chargehand.app.composition import App
    from chargehand.app.truths import look_at_promotions

    with App.open() as app:
        project = app.projects.find(repo).id if mission is None else None
        looked = look_at_promotions(app, mission, project=project)
    out.document(looked)
    if not looked.promotions:
        out.text("There are no promotions to look at.")
        return
    rows = [
        (found.mission, each.commit[:12], each.branch or "-", each.fate or "open", found.note)
        for found in looked.promotions
        for each in (found.promotion,)
    ]
    if rows:
        out.table(("MISSION", "COMMIT", "BRANCH", "FATE", "NOTE"), rows)
    else:
        out.text("No promotion is to be looked at.")


@click.command()
@named_mission_argument
@click.argument("word", required=False, type=click.Choice(["good", "bad"]))
@click.option(
    "--attempt", type=click.IntRange(1), metavar="N", help="The attempt, by default the promoted or last."
)
@click.option("--hunk", metavar="PATH:LINE", help="The place of its change that the word is about.")
@click.option("--note", metavar="TEXT", default="", help="The reason, for other people.")
@click.option("--retract", is_flag=True, help="Take back your own words on the mission, or on the attempt.")
@json_option
def feedback(mission: str, word: Any, out: Output, **options: Any) -> None:
    """Say whether a result is good or bad; choices of agents and models learn from that.

    The last word counts. It counts more than the fate of the change, but not for an attempt that failed or is red.

    \b
    Examples:
      chargehand feedback last bad --note "it breaks on empty input"
      chargehand feedback last --retract
    """
    from chargehand.app.composition import App
    from chargehand.app.truths import give_feedback

    with App.open() as app:
        recorded = give_feedback(app, mission, word=word, **options)
    out.document(recorded)
    if recorded.warning:
        out.text(f"It does not count: {recorded.warning}.")
    word_rows = [
        ("good" if each.good else "bad", each.place or "-", each.identity, each.note) for each in recorded.feedback
    ]
    if word_rows:
        out.table(("WORD", "PLACE", "BY", "NOTE"), word_rows)
    else:
        out.text("No feedback is left.")


_LEFT_OUT = {
    "tried": "was tried on this task",
    "no_money": "costs more than the money left",
    "price_unknown": "is too dear to try only to learn its price",
    "worse": "is worse than the others at its price",
}


def _show_choice(out: Output, choice: ExplainedChoice) -> None:
    subject = f"task {choice.task}: {choice.chosen}" if choice.task else choice.chosen
    out.text(f"{subject} ({choice.why})")
    learned = choice.learned
    if learned is None:
        return
    rows = [
        (each.name, f"{each.chance:.0%}", _price(each), f"{each.value_usd:.2f} USD") for each in learned.candidates
    ]
    out.table(("CANDIDATE", "CHANCE", "PRICE", "VALUE"), rows)
    for path in learned.paths:
        first, *then = path.steps
        if then:
            after = ", ".join(f"{each.name} ({each.reached:.0%})" for each in then)
            out.text(f"  After {first.name}, with the chance that it comes to that: {after}.")
    for left in learned.left_out:
        out.text(f"  {left.name} {_LEFT_OUT[left.reason]}")
    guess = ", a guess" if learned.is_guess else ""
    gain = f"{learned.gain_usd:.2f} USD more than the next best"
    out.text(f"  A solved task is worth {learned.worth_usd:.2f} USD.")
    out.text(f"  The choice is worth {gain}, by {learned.outcomes} attempts{guess}.")
    if learned.causes:
        likely = sorted(learned.causes.items(), key=lambda each: -each[1])[:2]
        named = ", ".join(f"{cause.replace('_', ' ')} {chance:.0%}" for cause, chance in likely)
        out.text(f"  Probable causes of the failure before it: {named}.")
    if learned.replayed is False:
        out.text("  Computed again, it gives other numbers: it is of another version, or damaged.")


def _price(each: ComparedCandidate) -> str:
    return f"{each.price_usd:.2f} USD" + ("" if each.known_costs else ", assumed")
