"""`chargehand stats`: rates, causes, times and money, as tables or as one document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from chargehand.app.composition import App
from chargehand.cli._prepare import current_project
from chargehand.cli.output import Output
from chargehand.cli.rendering import cause_document
from chargehand.core.errors import UsageError
from chargehand.missions._causes import CAUSE_CLASSES
from chargehand.missions._stats import AttemptStats, Cost, Spread, Stats, gather

_AGO = re.compile(r"([0-9]{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_LONGEST_NAME = 48
_PERCENTILES = ("p50", "p95", "p99")


def show_stats(out: Output, *, repo: Path | None, everywhere: bool, since: str | None) -> int:
    """Write how the missions of a repository, or of all projects, ended."""
    if repo is not None and everywhere:
        raise UsageError(f"both --repo {str(repo)!r} and --all were given", hint="give one of them")
    with App.open() as app:
        start = None if since is None else parse_since(since, now=app.clock.now())
        project = None if everywhere else current_project(app, repo)
        stats = gather(app.look, project=project.id if project else None, since=start)
    out.document({"project": project.id if project else None, "since": _iso(start), **stats_document(stats)})
    if not stats.missions.total:
        when = "" if since is None else f" since {_iso(start)}"
        out.text(f'no mission yet{when}; start one with  chargehand run "TEXT"')
        return 0
    _show_missions(out, stats)
    _show_attempts(out, stats)
    _show_causes(out, stats)
    _show_times(out, stats)
    return 0


def parse_since(text: str, *, now: datetime) -> datetime:
    """Return the moment that `7d`, `12h`, `30m`, `2w` before `now`, or a date in ISO 8601 (UTC by default), means.

    Raises `UsageError` (`since_invalid`).
    """
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago is not None:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        moment = datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"--since: {text!r} is no moment in time",
            code="since_invalid",
            hint="write 7d, 12h, 30m or 2w, or a date such as 2026-01-31",
        ) from error


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")


def stats_document(stats: Stats) -> dict[str, Any]:
    """Return the stats as `--json` prints them; what is not known is null."""
    causes = [
        {**(cause_document(one.cause) or {}), "missions": one.missions, "attempts": one.attempts}
        for one in stats.causes
    ]
    return {
        "missions": stats.missions,
        "rates": stats.rates,
        "attempts": stats.attempts,
        "causes": causes,
        "agents": stats.agents,
        "checkpoints": stats.checkpoints,
        "sandboxes": stats.sandboxes,
        "network": stats.network,
    }


def _show_missions(out: Output, stats: Stats) -> None:
    missions, rates = stats.missions, stats.rates
    statuses = ", ".join(f"{count} {status}" for status, count in missions.by_status.items() if count)
    out.text(f"{missions.total} missions: {statuses}", bold=True)
    if missions.rolled_back:
        out.text(f"  of the promoted, {missions.rolled_back} rolled back later")
    rows = (
        ("came to their own end", missions.completed, rates.completion),
        ("promoted", missions.promoted, rates.promotion),
        ("failed by the engine", missions.engine_failures, rates.engine_failure),
    )
    out.text()
    out.table(
        ("OF THE ENDED", "MISSIONS", "RATE"),
        [(name, f"{count} of {missions.ended}", _percent(rate)) for name, count, rate in rows],
    )


def _show_attempts(out: Output, stats: Stats) -> None:
    if not stats.attempts.ended:
        return
    out.text()
    rows = [_attempt_row(name, attempts) for name, attempts in _with_all(stats).items()]
    heads = tuple(kind.upper() for kind in CAUSE_CLASSES)
    out.table(("ATTEMPTS BY", "ENDED", "SUCCEEDED", *heads, "P50", "COST"), rows)


def _with_all(stats: Stats) -> Mapping[str, AttemptStats]:
    return {**stats.agents, "all agents": stats.attempts} if len(stats.agents) > 1 else stats.agents


def _attempt_row(name: str, attempts: AttemptStats) -> tuple[object, ...]:
    classes = (attempts.by_class[kind] for kind in CAUSE_CLASSES)
    return (
        name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…",
        attempts.ended,
        attempts.succeeded,
        *classes,
        _seconds(attempts.seconds.p50),
        _cost(attempts.cost),
    )


def _show_causes(out: Output, stats: Stats) -> None:
    if not stats.causes:
        return
    rows = [
        (one.cause.kind, one.cause.code or "unknown", one.missions, one.attempts, one.cause.remedy)
        for one in stats.causes
    ]
    out.text()
    out.table(("CAUSE", "CODE", "MISSIONS", "ATTEMPTS", "REMEDY"), rows)


def _show_times(out: Output, stats: Stats) -> None:
    out.text()
    percentiles = tuple(name.upper() for name in _PERCENTILES)
    long = {"mission": stats.missions.seconds, "attempt": stats.attempts.seconds}
    short = {
        "checkpoint": stats.checkpoints.seconds,
        "sandbox until ready": stats.sandboxes.ready,
        "sandbox until frozen": stats.sandboxes.freeze,
    }
    times = [(name, *map(_seconds, _values(spread)), _known(spread)) for name, spread in long.items()]
    times += [(name, *map(_milliseconds, _values(spread)), _known(spread)) for name, spread in short.items()]
    out.table(("TIME OF A", *percentiles, "KNOWN"), times)
    boxes = stats.sandboxes
    sizes = {"memory": boxes.memory, "disk": boxes.disk, "written": boxes.written}
    out.text()
    rows = [(name, *map(_megabytes, _values(spread)), _known(spread)) for name, spread in sizes.items()]
    rows.append(("processor", *map(_seconds, _values(boxes.cpu)), _known(boxes.cpu)))
    rows.append(("processes", *map(_number, _values(boxes.processes)), _known(boxes.processes)))
    out.table(("OF AN AGENT'S SANDBOX", *percentiles, "KNOWN"), rows)
    out.text()
    out.text(f"cost  {_cost(stats.attempts.cost)}")
    used = stats.network
    if used.allowed or used.refused:
        told = f"{_megabytes(used.bytes_out)} out, {_megabytes(used.bytes_in)} in"
        out.text(f"network  {used.allowed} requests let through, {used.refused} refused, {told}")


def _values(spread: Spread) -> tuple[float | None, ...]:
    return (spread.p50, spread.p95, spread.p99)


def _known(spread: Spread) -> str:
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
