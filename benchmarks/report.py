"""The figures for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.measure import Result, Taken

HEAD = """\
| benchmark | files | way | median ms | min ms | samples | ratio | aim ms | load |
|---|---:|---|---:|---:|---:|---:|---:|---:|"""


def rows(result: Result) -> str:
    """Return one comparison as rows of a Markdown table: the ratio is each way's time over that of the first."""
    return "\n".join(_line(result, side) for side in result.sides)


def notes(results: Sequence[Result]) -> str:
    """Return the notes on the figures."""
    return "\n".join(sorted({f"- {result.benchmark}: {result.note}" for result in results if result.note}))


def _line(result: Result, side: Taken) -> str:
    first = result.sides[0]
    own = side is first
    cells = (
        f"{result.benchmark}: {result.case}" if own else "",
        f"{result.files:,}" if own and result.files else "",
        side.name,
        _milliseconds(side.median),
        _milliseconds(side.minimum),
        str(len(side.samples)),
        "" if own else _ratio(side.ratio(first)),
        f"{result.aim * 1000:g}" if own and result.aim else "",
        f"{result.load[0]:.1f}" if own else "",
    )
    return f"| {' | '.join(cells)} |"


def document(machine: Mapping[str, str], results: Sequence[Result]) -> dict[str, object]:
    """Return the figures as a JSON document; times in seconds."""
    return {"machine": dict(machine), "results": [_result(result) for result in results]}


def _result(result: Result) -> dict[str, object]:
    first = result.sides[0]
    return {
        "benchmark": result.benchmark,
        "case": result.case,
        "files": result.files,
        "aim_seconds": result.aim,
        "load": list(result.load),
        "note": result.note,
        "ways": [
            {
                "name": side.name,
                "median_seconds": side.median,
                "minimum_seconds": side.minimum,
                "samples": len(side.samples),
                "ratio": side.ratio(first),
            }
            for side in result.sides
        ],
    }


def _milliseconds(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratio(value: float) -> str:
    return f"{value:,.0f}x" if value >= 10 else f"{value:.1f}x"
