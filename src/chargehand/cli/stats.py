"""`chargehand stats`, and the tables of `chargehand model stats`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chargehand.cli.terminal.options import json_option, repo_option

if TYPE_CHECKING:
    from chargehand.app.statistics import StatisticsDocument
    from chargehand.cli.terminal.output import Output
    from chargehand.missions.model_statistics import ModelStats
    from chargehand.missions.statistics import AttemptStats, Cost
    from chargehand.missions.statistics import Percentiles as Percentiles

_LONGEST_NAME = 48
_PERCENTILES = ("P50", "P95", "P99")
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
@click.option("--all", "everywhere", is_flag=True, help="Of all projects, not of this repository alone.")
@click.option(
    "--since", metavar="WHEN", help="Only missions created since then: 7d, 12h, 30m, 2w or a date (UTC)."
)
@json_option
def stats(repo: Path | None, everywhere: bool, since: str | None, out: Output) -> int:
    """Show how missions end: rates, causes, times and cost.

    Of the repository one is in, outside of any of all projects. Missions that are not at their end yet count in no
    rate; what is not known is said so and never counted as 0.

    \b
    Example:
      chargehand stats --all --since 7d
    """
    from chargehand.app.reading import StateReader
    from chargehand.app.statistics import StatisticsRequest, mission_statistics

    with StateReader.open() as reader:
        found = mission_statistics(reader, StatisticsRequest(repo=repo, everywhere=everywhere, since=since))
    out.document(found)
    if out.as_json:
        return 0
    if not found.missions.total:
        when = f" since {found.since}" if found.since else ""
        out.text(f'No missions yet{when}. Start one: chargehand run "TEXT"')
        return 0
    _show_missions(out, found)
    _show_attempts(out, found)
    _show_causes(out, found)
    _show_times(out, found)
    return 0


def show_model_stats(out: Output, *, repo: Path | None, everywhere: bool, since: str | None) -> int:
    """Write how the models of a repository's missions, or of all, did."""
    from chargehand.app.reading import StateReader
    from chargehand.app.statistics import StatisticsRequest, model_statistics

    with StateReader.open() as reader:
        found = model_statistics(reader, StatisticsRequest(repo=repo, everywhere=everywhere, since=since))
    out.document(found)
    models = found.models
    if not models:
        out.text("No model was called" + (f" since {found.since}." if found.since else "."))
        return 0
    out.table(_MODEL_HEADS, [_model_row(one) for one in models])
    errors = [(_model_name(one), kind, count) for one in models for kind, count in one.errors.items()]
    if errors:
        out.text()
        out.table(("MODEL", "ERROR", "CALLS"), errors)
    skips = sum(one.skips for one in models)
    if skips:
        out.text(f"A model was skipped {skips} times because it could not take the call.")
    return 0


def _show_missions(out: Output, stats: StatisticsDocument) -> None:
    missions, rates = stats.missions, stats.rates
    statuses = ", ".join(f"{count} {status}" for status, count in missions.by_status.items() if count)
    out.text(f"{missions.total} missions: {statuses}", bold=True)
    if missions.rolled_back:
        out.text(f"  {missions.rolled_back} of the promoted were rolled back later")
    rows = (
        ("completed without engine errors", missions.completed, rates.completion),
        ("promoted", missions.promoted, rates.promotion),
        ("failed by an engine error", missions.engine_failures, rates.engine_failure),
    )
    out.text()
    out.table(
        ("OF THE ENDED", "MISSIONS", "RATE"),
        [(name, f"{count} of {missions.ended}", _percent(rate)) for name, count, rate in rows],
    )


def _show_attempts(out: Output, stats: StatisticsDocument) -> None:
    if not stats.attempts.ended:
        return
    out.text()
    rows = [_attempt_row(name, attempts) for name, attempts in _with_all(stats).items()]
    heads = tuple(kind.upper() for kind in stats.attempts.by_class)
    out.table(("ATTEMPTS BY", "ENDED", "SUCCEEDED", *heads, "P50", "COST"), rows)


def _with_all(stats: StatisticsDocument) -> Mapping[str, AttemptStats]:
    return {**stats.agents, "all agents": stats.attempts} if len(stats.agents) > 1 else stats.agents


def _attempt_row(name: str, attempts: AttemptStats) -> tuple[object, ...]:
    return (
        name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…",
        attempts.ended,
        attempts.succeeded,
        *attempts.by_class.values(),
        _seconds(attempts.seconds.p50),
        _cost(attempts.cost),
    )


def _show_causes(out: Output, stats: StatisticsDocument) -> None:
    if not stats.causes:
        return
    rows = [(one.kind, one.code or "unknown", one.missions, one.attempts, one.remedy) for one in stats.causes]
    out.text()
    out.table(("CAUSE", "CODE", "MISSIONS", "ATTEMPTS", "REMEDY"), rows)


def _show_times(out: Output, stats: StatisticsDocument) -> None:
    out.text()
    long = {"mission": stats.missions.seconds, "attempt": stats.attempts.seconds}
    short = {
        "checkpoint": stats.checkpoints.seconds,
        "sandbox until ready": stats.sandboxes.ready,
        "sandbox until frozen": stats.sandboxes.freeze,
    }
    times = [(name, *map(_seconds, _values(spread)), _known(spread)) for name, spread in long.items()]
    times += [(name, *map(_milliseconds, _values(spread)), _known(spread)) for name, spread in short.items()]
    out.table(("TIME OF A", *_PERCENTILES, "KNOWN"), times)
    boxes = stats.sandboxes
    sizes = {"memory": boxes.memory, "disk": boxes.disk, "written": boxes.written}
    out.text()
    rows = [(name, *map(_megabytes, _values(spread)), _known(spread)) for name, spread in sizes.items()]
    rows.append(("CPU", *map(_seconds, _values(boxes.cpu)), _known(boxes.cpu)))
    rows.append(("processes", *map(_number, _values(boxes.processes)), _known(boxes.processes)))
    out.table(("OF AN AGENT'S SANDBOX", *_PERCENTILES, "KNOWN"), rows)
    out.text()
    out.text(f"cost  {_cost(stats.attempts.cost)}")
    used = stats.network
    if used.allowed or used.refused:
        traffic = f"{_megabytes(used.bytes_out)} out, {_megabytes(used.bytes_in)} in"
        out.text(f"network  {used.allowed} requests allowed, {used.refused} refused, {traffic}")


def _values(spread: Percentiles) -> tuple[float | None, ...]:
    return (spread.p50, spread.p95, spread.p99)


def _known(spread: Percentiles) -> str:
    return f"{spread.known} of {spread.known + spread.unknown}"


def _number(count: float | None) -> str:
    return "unknown" if count is None else f"{count:.0f}"


def _percent(rate: float | None) -> str:
    return "unknown" if rate is None else f"{100 * rate:.1f} %"


def _seconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:.1f} s"


def _milliseconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{1000 * seconds:.0f} ms"


def _megabytes(size: float | None) -> str:
    return "unknown" if size is None else f"{size / (1 << 20):.1f} MiB"


def _cost(cost: Cost) -> str:
    if cost.usd is None:
        return "unknown"
    more = f" and {cost.unknown} unknown" if cost.unknown else ""
    return f"{cost.usd:.2f} USD{more}"


def _model_row(one: ModelStats) -> tuple[Any, ...]:
    return (
        _model_name(one),
        one.calls,
        one.by_status.get("ok", 0),
        f"{one.tokens.input:,}",
        f"{one.tokens.output:,}",
        _model_cost(one.cost),
        _model_cost(one.reported) if one.reported.known else "-",
        _exact_seconds(one.seconds.p50),
        _exact_seconds(one.seconds.p95),
        _exact_seconds(one.first.p50),
        "unknown" if one.tokens_per_second is None else f"{one.tokens_per_second:.1f}",
        one.attempts,
        one.verdicts.get("pass", 0),
    )


def _model_name(one: ModelStats) -> str:
    if not one.model:
        return "(lost)"
    return one.model if one.upstream in ("", one.model) else f"{one.model} ({one.upstream})"


def _model_cost(cost: Cost) -> str:
    if cost.usd is None:
        return "unknown"
    return f"{cost.usd:.4f} USD" + (f" and {cost.unknown} unknown" if cost.unknown else "")


def _exact_seconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:.2f} s"
