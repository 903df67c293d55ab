"""A report of runs as one HTML file that opens from disk: no script, no other file, no request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from chargehand.bench.comparison import ComparisonDocument, RunComparison, RunSummary
from chargehand.bench.records import BenchResult

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 100rem; margin: 2rem auto; padding: 0 1rem; }
div { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; } caption { text-align: left; font-weight: 600; }
th, td { padding: .25rem .6rem; text-align: left; border-bottom: 1px solid #8884; }
td.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
"""
_WIDTH, _HEIGHT, _EDGE = 640, 360, 48
_MOST_ROWS = 5_000


def render_report(document: ComparisonDocument, results: Sequence[BenchResult] = ()) -> str:
    """Return the report of runs and their comparisons; all texts in it are escaped."""
    parts = [_runs_table(document.runs), _pareto_plot(document)]
    if document.comparisons:
        parts.append(_comparisons_table(document.comparisons))
    if results:
        heads = ("Problem", "Sample", "Outcome", "Validator", "Mission", "Seconds", "Cheating")
        rows = [
            (
                each.problem,
                each.sample,
                each.outcome.replace("_", " "),
                each.validation.judgement,
                each.status,
                f"{each.seconds:.1f}",
                ", ".join(each.cheating),
            )
            for each in results[:_MOST_ROWS]
        ]
        parts.append(_table("Trials", heads, rows))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Benchmark report</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>Benchmark report</h1>{''.join(parts)}</body></html>\n"
    )


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in heads)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=n' if isinstance(each, int) or str(each)[:1].isdigit() else ''}>{escape(str(each))}</td>"
            for each in row
        )
        + "</tr>"
        for row in rows
    )
    top = f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
    return f"<div><table>{top}<tbody>{body}</tbody></table></div>"


def _money(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4f}"


def _runs_table(runs: Sequence[RunSummary]) -> str:
    heads = (
        "Run", "Suite", "Agent", "Model", "Judged", "Solved", "95 %", "False green", "Not promoted", "Cheating",
        "Unvalidated", "Errors", "Invalid problems", "USD", "USD per solved", "Seconds per solved", "pass@k",
    )  # fmt: skip
    rows = [
        (
            each.label, each.suite, each.agent, each.model, each.judged,
            "-" if each.rate is None else f"{each.rate:.1%}",
            f"{each.interval.low:.1%} to {each.interval.high:.1%}",
            each.false_green, each.not_promoted, each.cheating, each.unvalidated, each.errors, each.invalid,
            _money(each.cost_usd), _money(each.cost_per_solved),
            "-" if each.seconds_per_solved is None else f"{each.seconds_per_solved:.1f}",
            ", ".join(f"{k}: {rate:.1%}" for k, rate in each.pass_at.items()),
        )
        for each in runs
    ]  # fmt: skip
    return _table("Runs", heads, rows)


def _comparisons_table(comparisons: Sequence[RunComparison]) -> str:
    heads = (
        "First", "Second", "Problems", "Rates", "Difference", "95 %", "p (Holm)", "McNemar", "Differ",
        "Power at 5 points",
        "Problems for 80 %", "Gained", "Lost",
    )  # fmt: skip
    rows = [
        (
            each.first, each.second, each.problems, f"{each.rates[0]:.1%}, {each.rates[1]:.1%}",
            f"{each.difference:+.1%}", f"{each.interval.low:+.1%} to {each.interval.high:+.1%}",
            f"{each.adjusted:.3g}", "-" if each.mcnemar is None else f"{each.mcnemar:.3g}",
            "yes" if each.differs else "not shown", "-" if each.power is None else f"{each.power:.0%}",
            each.needed or "-", ", ".join(each.gained), ", ".join(each.lost),
        )
        for each in comparisons
    ]  # fmt: skip
    return _table("Comparisons", heads, rows)


def _pareto_plot(document: ComparisonDocument) -> str:
    """Return a plot of cost per trial and rate; the runs on the Pareto front are filled and joined by a line."""
    known = [each for each in document.runs if each.cost_usd is not None and each.rate is not None and each.trials]
    if not known:
        return "<p>No run has a known cost and rate, so there is no plot of them.</p>"
    most = max((each.cost_usd or 0.0) / each.trials for each in known) or 1.0

    def place(each: RunSummary) -> tuple[float, float]:
        across = (each.cost_usd or 0.0) / each.trials / most
        return _EDGE + across * (_WIDTH - 2 * _EDGE), _HEIGHT - _EDGE - (each.rate or 0.0) * (_HEIGHT - 2 * _EDGE)

    front = sorted(place(each) for each in known if each.id in document.front)
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in front)
    dots = []
    for each in known:
        x, y = place(each)
        fill = "currentColor" if each.id in document.front else "none"
        name = escape(each.label)
        dots.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="currentColor"><title>{name}</title>'
            f'</circle><text x="{x + 8:.1f}" y="{y - 6:.1f}">{name}</text>'
        )
    bottom, right = _HEIGHT - _EDGE, _WIDTH - _EDGE
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        'aria-label="Cost per trial and share of solved trials">'
        f'<path d="M{_EDGE} {_EDGE}V{bottom}H{right}" fill="none" stroke="currentColor"/>'
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-dasharray="4"/>{"".join(dots)}'
        f'<text x="8" y="{_EDGE - 12}">solved: 0 to 100 %</text>'
        f'<text x="{_EDGE}" y="{_HEIGHT - 14}">USD per trial: 0 to {most:.4f}</text></svg>'
        "<figcaption>Cost and rate; filled: no other run costs less and solves more.</figcaption></figure>"
    )
