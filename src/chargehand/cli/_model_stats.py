"""`chargehand model stats`: what each model did, as a table or as one document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chargehand.app.composition import App
from chargehand.cli._prepare import current_project
from chargehand.cli._stats import parse_since
from chargehand.cli.output import Output
from chargehand.core.errors import UsageError
from chargehand.missions._model_stats import ModelStats, gather_models
from chargehand.missions._stats import Cost

_HEADS = (
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


def show_model_stats(out: Output, *, repo: Path | None, everywhere: bool, since: str | None) -> int:
    """Write how the models of a repository's missions, or of all, did."""
    if repo is not None and everywhere:
        raise UsageError(f"both --repo {str(repo)!r} and --all were given", hint="give one of them")
    with App.open() as app:
        start = None if since is None else parse_since(since, now=app.clock.now())
        project = None if everywhere else current_project(app, repo)
        models = gather_models(app.look, project=project.id if project else None, since=start)
    when = None if start is None else start.isoformat(timespec="seconds")
    out.document({"project": project.id if project else None, "since": when, "models": list(models)})
    if not models:
        out.text("no model was called" + ("" if when is None else f" since {when}"))
        return 0
    out.table(_HEADS, [_row(one) for one in models])
    errors = [(_name(one), kind, count) for one in models for kind, count in one.errors.items()]
    if errors:
        out.text()
        out.table(("MODEL", "ERROR", "CALLS"), errors)
    skips = sum(one.skips for one in models)
    if skips:
        out.text(f"{skips} times a model was left out of a call that it could not take")
    return 0


def _row(one: ModelStats) -> tuple[Any, ...]:
    return (
        _name(one),
        one.calls,
        one.by_status.get("ok", 0),
        f"{one.tokens.input:,}",
        f"{one.tokens.output:,}",
        _cost(one.cost),
        _cost(one.reported) if one.reported.known else "-",
        _seconds(one.seconds.p50),
        _seconds(one.seconds.p95),
        _seconds(one.first.p50),
        "unknown" if one.tokens_per_second is None else f"{one.tokens_per_second:.1f}",
        one.attempts,
        one.verdicts.get("pass", 0),
    )


def _name(one: ModelStats) -> str:
    if not one.model:
        return "(lost)"
    return one.model if one.upstream in ("", one.model) else f"{one.model} ({one.upstream})"


def _cost(cost: Cost) -> str:
    if cost.usd is None:
        return "unknown"
    return f"{cost.usd:.4f} USD" + (f" and {cost.unknown} unknown" if cost.unknown else "")


def _seconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:.2f} s"
