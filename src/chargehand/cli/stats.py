"""`chargehand stats`, and the tables of `chargehand model stats`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import json_option, repo_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chargehand.cli.terminal.output import Output
    from chargehand.decisions.explanation import LearnedArm
    from chargehand.missions.model_statistics import ModelStats
    from chargehand.missions.statistics import Cost, Percentiles
    from chargehand.reports.statistics import StatisticsDocument

# An agent in its short form, such as `command:PROGRAM ARG`, is named by its full text.
_LONGEST_NAME = 48
_MIB = 1 / (1 << 20)
_MODEL_HEADS = (
    "MODEL",
    "CALLS",
    "OK",
    "IN",
    "OUT",
    "COST",
    "REPORTED",
    "P50",
    "P95",
    "FIRST",
    "PER S",
    "ATTEMPTS",
    "PASSED",
)


@click.command()
@repo_option
@click.option("--all", "everywhere", is_flag=True, help="Count all projects, not this repository alone.")
@click.option(
    "--since", metavar="WHEN", help="Only missions created since then: 7d, 12h, 30m, 2w or a date (UTC)."
)
@json_option
def stats(repo: Path | None, everywhere: bool, since: str | None, out: Output) -> None:
    """Show how missions end: rates, causes, times and cost.

    Counts this repository's missions; outside a repository those of all projects. Missions that have not ended
    do not count in rates. Unknown values are shown as unknown, never counted as 0.

    \b
    Example:
      chargehand stats --all --since 7d
    """
    from chargehand.reports.reading import StateReader
    from chargehand.reports.statistics import StatisticsRequest, mission_statistics

    with StateReader.open() as reader:
        found = mission_statistics(reader, StatisticsRequest(repo=repo, everywhere=everywhere, since=since))
    out.document(found)
    if out.as_json:
        return
    if not found.missions.total:
        when = f" since {found.since}" if found.since else ""
        out.text(f'No missions yet{when}. Start one: chargehand run "TEXT"')
        return
    _show_ends(out, found)
    # Times and sandbox usage, then cost and network.
    heads = ("P50", "P95", "P99", "KNOWN")
    boxes = found.sandboxes
    times = [
        _percentile_row("mission", found.missions.seconds, "{:.1f} s"),
        _percentile_row("attempt", found.attempts.seconds, "{:.1f} s"),
        _percentile_row("checkpoint", found.checkpoints.seconds, "{:.0f} ms", factor=1000),
        _percentile_row("sandbox until ready", boxes.ready, "{:.0f} ms", factor=1000),
        _percentile_row("sandbox until frozen", boxes.freeze, "{:.0f} ms", factor=1000),
    ]
    used = [
        _percentile_row("memory", boxes.memory, "{:.1f} MiB", factor=_MIB),
        _percentile_row("disk", boxes.disk, "{:.1f} MiB", factor=_MIB),
        _percentile_row("written", boxes.written, "{:.1f} MiB", factor=_MIB),
        _percentile_row("CPU", boxes.cpu, "{:.1f} s"),
        _percentile_row("processes", boxes.processes, "{:.0f}"),
    ]
    out.text()
    out.table(("TIME OF A", *heads), times)
    out.text()
    out.table(("OF AN AGENT'S SANDBOX", *heads), used)
    out.text()
    out.text(f"cost  {_cost(found.attempts.cost)}")
    network = found.network
    if network.allowed or network.refused:
        traffic = f"{network.bytes_out * _MIB:.1f} MiB out, {network.bytes_in * _MIB:.1f} MiB in"
        out.text(f"network  {network.allowed} requests allowed, {network.refused} refused, {traffic}")


def show_model_stats(out: Output, *, repo: Path | None, everywhere: bool, since: str | None) -> None:
    """Write performance statistics of the models of a repository's missions, or of all."""
    from chargehand.cli.terminal.output import count_text
    from chargehand.reports.reading import StateReader
    from chargehand.reports.statistics import StatisticsRequest, model_statistics

    with StateReader.open() as reader:
        found = model_statistics(reader, StatisticsRequest(repo=repo, everywhere=everywhere, since=since))
    out.document(found)
    models = found.models
    if not models:
        out.text("No model was called" + (f" since {found.since}." if found.since else "."))
        _show_learned(out, found.learned)
        return
    rows = [
        (
            _model_name(one),
            one.calls,
            one.by_status.get("ok", 0),
            f"{one.tokens.input:,}",
            f"{one.tokens.output:,}",
            _cost(one.cost, digits=4),
            # Few providers report a cost: "unknown" in every row would suggest that something is missing.
            _cost(one.reported, digits=4) if one.reported.known else "-",
            _format_value(one.seconds.p50, "{:.2f} s"),
            _format_value(one.seconds.p95, "{:.2f} s"),
            _format_value(one.first.p50, "{:.2f} s"),
            _format_value(one.tokens_per_second, "{:.1f}"),
            one.attempts,
            one.verdicts.get("green", 0),
        )
        for one in models
    ]
    out.table(_MODEL_HEADS, rows)
    errors = [(_model_name(one), kind, count) for one in models for kind, count in one.errors.items()]
    if errors:
        out.text()
        out.table(("MODEL", "ERROR", "CALLS"), errors)
    retries = [(_model_name(one), kind, count) for one in models for kind, count in one.retries.items()]
    if retries:
        out.text()
        out.table(("MODEL", "SENT AGAIN AFTER", "TIMES"), retries)
    skips = sum(one.skips for one in models)
    if skips:
        out.text(f"A model was skipped {count_text(skips, 'time')} because it could not take the call.")
    _show_learned(out, found.learned)


def _show_learned(out: Output, learned: Sequence[LearnedArm]) -> None:
    """Write the beliefs that choices follow from."""
    if not learned:
        return
    out.text()
    rows = [
        (
            each.name,
            f"{each.good} of {each.attempts}",
            f"{each.chance:.0%} ({each.low:.0%} to {each.high:.0%})",
            _format_value(each.price_usd, "{:.2f} USD"),
        )
        for each in learned
    ]
    out.table(("CHOSEN BY OUTCOMES", "GREEN", "CHANCE OF A NEW TASK", "EXPECTED PRICE"), rows)


def _show_ends(out: Output, stats: StatisticsDocument) -> None:
    """Write how missions and attempts ended, and the causes of those without success."""
    from chargehand.cli.terminal.output import count_text

    missions = stats.missions
    rates = stats.rates
    statuses = ", ".join(f"{count} {status}" for status, count in missions.by_status.items() if count)
    tasks = f" ({missions.tasks} of them for plans)" if missions.tasks else ""
    out.text(f"{count_text(missions.total, 'mission')}{tasks}: {statuses}", bold=True)
    if missions.rolled_back:
        out.text(f"  rolled back later: {missions.rolled_back} of the promoted missions")
    ends = (
        ("completed without engine errors", missions.completed, rates.completion),
        ("promoted", missions.promoted, rates.promotion),
        ("failed by an engine error", missions.engine_failures, rates.engine_failure),
    )
    out.text()
    out.table(
        ("OF THE ENDED", "MISSIONS", "RATE"),
        [
            (name, f"{count} of {missions.ended}", _format_value(rate, "{:.1f} %", factor=100))
            for name, count, rate in ends
        ],
    )
    if stats.attempts.ended:
        # With one agent the sum would only repeat its row.
        by_agent = {**stats.agents, "all agents": stats.attempts} if len(stats.agents) > 1 else stats.agents
        named = [
            (name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…", attempts)
            for name, attempts in by_agent.items()
        ]
        rows = [
            (name, one.ended, one.succeeded, _format_value(one.seconds.p50, "{:.1f} s"), _cost(one.cost))
            for name, one in named
        ]
        out.text()
        out.table(("ATTEMPTS BY", "ENDED", "SUCCEEDED", "P50", "COST"), rows)
        # In a table of its own: at 80 columns both together would not fit.
        causes = [(name, *one.by_class.values()) for name, one in named if any(one.by_class.values())]
        if causes:
            out.text()
            out.table(("FAILURES OF", *(kind.upper() for kind in stats.attempts.by_class)), causes)
    if stats.causes:
        out.text()
        out.table(
            ("CAUSE", "CODE", "MISSIONS", "ATTEMPTS", "REMEDY"),
            [(one.kind, one.code or "unknown", one.missions, one.attempts, one.remedy) for one in stats.causes],
        )


def _percentile_row(name: str, values: Percentiles, form: str, *, factor: float = 1.0) -> tuple[str, ...]:
    """Return a table row: percentiles in their unit, and the count of known values among all."""
    shown = (_format_value(value, form, factor=factor) for value in (values.p50, values.p95, values.p99))
    return (name, *shown, f"{values.known} of {values.known + values.unknown}")


def _format_value(value: float | None, form: str, *, factor: float = 1.0) -> str:
    # An unmeasured value is called unknown: a 0 would be a claim.
    return "unknown" if value is None else form.format(value * factor)


def _cost(cost: Cost, *, digits: int = 2) -> str:
    if cost.usd is None:
        return "unknown"
    return f"{cost.usd:.{digits}f} USD" + (f" and {cost.unknown} unknown" if cost.unknown else "")


def _model_name(one: ModelStats) -> str:
    if not one.model:
        return "(lost)"
    return one.model if one.upstream in ("", one.model) else f"{one.model} ({one.upstream})"
