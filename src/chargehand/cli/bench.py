"""`chargehand bench`: run suites of problems, and compare the runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chargehand.cli.terminal.options import CommandGroup, json_option

if TYPE_CHECKING:
    from chargehand.bench.comparison import Metric, RunSummary
    from chargehand.bench.records import BenchResult, BenchSuite, ProblemCheck, RunHeader
    from chargehand.bench.results import RunDirectory
    from chargehand.cli.terminal.output import Output

_F = TypeVar("_F", bound=Callable[..., Any])
_PATH = click.Path(path_type=Path)
_JOBS = click.option(
    "--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Trials at the same time."
)
_MAX_COST = click.option(
    "--max-cost", type=click.FloatRange(min=0), metavar="USD", help="Start no trial once so much is spent."
)
_HEADS = ("RUN", "SUITE", "AGENT", "MODEL", "TRIALS", "SOLVED", "95 %", "FALSE GREEN", "CHEATS", "COST", "TIME")


def _suite_options(function: _F) -> _F:
    """Add the options that select the problems of a suite."""
    for option in (
        click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N problems."),
        click.option("--only", multiple=True, metavar="ID", help="Only this problem (may be repeated)."),
        click.option("--clones", type=_PATH, metavar="DIR", help="The repositories of a SWE-bench suite."),
        click.option("--form", metavar="FORM", help="The suite's form (default: detected)."),
        click.argument("suite", type=_PATH),
    ):
        function = option(function)
    return function


@click.group(cls=CommandGroup)
def bench() -> None:
    """Run suites of problems with validators, and compare agents and models.

    Each problem is solved by a real mission in its own state directory. A validator, which the solution can
    neither read nor change, judges the result.
    """


@bench.command()
@_suite_options
@_JOBS
@json_option
def check(out: Output, jobs: int, **selection: Any) -> int:
    """Check a suite: each validator must reject the unchanged files and accept the known solution.

    Exits 1 if a problem is invalid.

    \b
    Example:
      chargehand bench check suites/mine
    """
    checks = _check(out, _load(**selection), jobs)
    out.document({"problems": checks})
    counts = {status: sum(each.status == status for each in checks) for status in _check_statuses(checks)}
    out.text(", ".join(f"{count} {status}" for status, count in counts.items()))
    return int(any(each.status == "invalid" for each in checks))


@bench.command()
@_suite_options
@click.option("--agent", metavar="NAME", help="The agent of every mission, as in `chargehand run`.")
@click.option("--model", metavar="NAME", help="The model of every mission, as in `chargehand run`.")
@click.option("--n", "samples", type=click.IntRange(1, 1000), default=1, show_default=True, help="Trials each.")
@_JOBS
@click.option("--seed", type=int, default=0, show_default=True, help="The seed, recorded with each trial.")
@click.option("--attempts", metavar="N", help="At most this many attempts of a mission.")
@click.option("--budget", metavar="USD", help="Spend at most this much on one mission.")
@click.option("--time", metavar="DURATION", help="At most this long for one mission.")
@click.option("--sandbox", metavar="TIER", help="The sandbox tier of missions.")
@_MAX_COST
@click.option("--name", metavar="RUN", help="The run's name (default: date and time).")
@click.option("--label", default="", metavar="TEXT", help="A text to show with the run.")
@json_option
def run(
    out: Output,
    samples: int,
    jobs: int,
    seed: int,
    max_cost: float | None,
    name: str | None,
    label: str,
    **options: Any,
) -> int:
    """Solve every problem of SUITE N times, and validate the results.

    Problems are checked first, unless they were found valid before; invalid and unsupported ones are left out and
    named. Ctrl-C ends the run in
    good order; `bench resume` continues it, also after a crash.

    \b
    Example:
      chargehand bench run HumanEval.jsonl.gz --agent native --n 3 --jobs 4
    """
    from chargehand.bench.records import Arm
    from chargehand.bench.results import require_new
    from chargehand.bench.runner import bench_root, new_run

    arm = Arm(**{key: options.pop(key) for key in ("agent", "model", "attempts", "budget", "time", "sandbox")})
    path, clones = options["suite"], options["clones"]
    suite = _load(**options)
    if name is not None:  # before the checks, which may take long
        require_new(bench_root(os.environ), name)
    checks = _check(out, suite, jobs, quiet=True)
    made = new_run(
        suite,
        path,
        os.environ,
        arm=arm,
        samples=samples,
        seed=seed,
        checks=checks,
        id=name,
        label=label,
        clones=clones,
    )
    return _work(out, made, suite, jobs, max_cost)


@bench.command()
@click.argument("name", metavar="RUN")
@_JOBS
@_MAX_COST
@json_option
def resume(out: Output, name: str, jobs: int, max_cost: float | None) -> int:
    """Continue a run that was stopped or killed: missions that began continue, complete trials stay.

    \b
    Example:
      chargehand bench resume 20260101-120000-1a2b --jobs 4
    """
    run = _find(name)
    return _work(out, run, _load_again(run.header), jobs, max_cost)


@bench.command("list")
@json_option
def list_(out: Output) -> None:
    """List all runs, oldest first."""
    from chargehand.bench.comparison import RunListDocument, summarize
    from chargehand.bench.results import list_runs
    from chargehand.bench.runner import bench_root
    from chargehand.core.errors import StoreError

    found, problems = [], []
    for each in list_runs(bench_root(os.environ)):
        try:
            header = each.header
            found.append((header.created, summarize(header, each.results())))
        except StoreError as error:
            problems.append(error.message)
            out.notice(error.message)
    runs = tuple(summary for _, summary in sorted(found, key=lambda each: each[0]))
    out.document(RunListDocument(runs=runs, problems=tuple(problems)))
    if not runs:
        out.text("No runs yet. Start one: chargehand bench run SUITE --agent NAME")
        return
    out.table(_HEADS, [_row(each) for each in runs])


@bench.command()
@click.argument("name", metavar="RUN")
@json_option
def show(out: Output, name: str) -> None:
    """Show a run: its rates, cost and time, and the result of each trial.

    \b
    Example:
      chargehand bench show 20260101-120000-1a2b
    """
    _show(out, _find(name), with_results=True)


@bench.command()
@click.argument("names", nargs=-1, required=True, metavar="RUN RUN...")
@click.option(
    "--metric",
    type=click.Choice(("solved", "passed")),
    default="solved",
    show_default=True,
    help="Count trials that were promoted and passed, or all that passed.",
)
@click.option("--html", type=_PATH, metavar="FILE", help="Also write a report that opens in a browser.")
@json_option
def compare(out: Output, names: tuple[str, ...], metric: Metric, html: Path | None) -> None:
    """Compare runs on the problems that they share: differences, their certainty, cost and time.

    The test is exact and pairs problems; with more than two runs p-values are corrected for the number of pairs.

    \b
    Example:
      chargehand bench compare before after --html report.html
    """
    from chargehand.bench.comparison import ComparisonDocument, compare_runs, find_front, summarize
    from chargehand.core.errors import UsageError

    if len(set(names)) < 2:
        raise UsageError("compare needs two runs", hint="chargehand bench list")
    runs = [(each.header, each.results()) for each in map(_find, names)]
    summaries = tuple(summarize(header, results) for header, results in runs)
    comparisons = compare_runs(runs, metric=metric)
    front = find_front(summaries)
    document = ComparisonDocument(
        runs=summaries, comparisons=comparisons, front=tuple(each.id for each in summaries if each.id in front)
    )
    if html is not None:
        from chargehand.bench.report import render_report

        _write(html, render_report(document).encode())
        out.notice(f"Wrote {html}")
    out.document(document)
    out.table(_HEADS, [_row(each) for each in summaries])
    for each in comparisons:
        said = "differ" if each.differs else "no difference shown"
        out.text()
        out.text(f"{each.first} and {each.second}, {each.problems} problems: {said}")
        low, high = each.interval.low, each.interval.high
        about = "" if each.exact else ", by random flips"
        out.text(f"  {each.difference:+.1%} (95 %: {low:+.1%} to {high:+.1%}), p = {each.adjusted:.3g}{about}")
        if each.power is not None:
            needed = f"{each.needed:,} problems" if each.needed else "more than 100,000 problems"
            out.text(f"  power to see 5 points: {each.power:.0%}; 80 % needs {needed}")


@bench.command()
@click.argument("name", metavar="RUN")
@click.option("--inspect", type=_PATH, metavar="FILE", help="Write an evaluation log of Inspect (JSON).")
@click.option("--harbor", type=_PATH, metavar="DIR", help="Write the suite's problems as tasks of Harbor.")
@click.option("--html", type=_PATH, metavar="FILE", help="Write a report that opens in a browser.")
@json_option
def export(out: Output, name: str, inspect: Path | None, harbor: Path | None, html: Path | None) -> None:
    """Write a run for other programs.

    \b
    Example:
      chargehand bench export 20260101-120000-1a2b --inspect log.json
    """
    from chargehand.core.errors import UsageError

    if inspect is None and harbor is None and html is None:
        raise UsageError("no form was given", hint="--inspect FILE, --harbor DIR or --html FILE")
    run = _find(name)
    header, results = run.header, run.results()
    if inspect is not None:
        from chargehand.bench.exporting import inspect_log

        _write(inspect, inspect_log(header, results, _load_again(header)))
    if harbor is not None:
        from chargehand.bench.exporting import write_harbor

        for problem, reason in write_harbor(_load_again(header), harbor):
            out.notice(f"{problem}: left out: {reason}")
    if html is not None:
        from chargehand.bench.comparison import ComparisonDocument, summarize
        from chargehand.bench.report import render_report

        document = ComparisonDocument(runs=(summarize(header, results),), comparisons=(), front=())
        _write(html, render_report(document, results).encode())
    written = [str(path) for path in (inspect, harbor, html) if path is not None]
    out.document({"run": name, "written": written})
    out.text("\n".join(f"Wrote {path}" for path in written))


# --- helpers


@bench.command()
@click.argument("name", metavar="RUN")
@click.option("--forget", is_flag=True, help="Take the results of the run back.")
@json_option
def learn(out: Output, name: str, forget: bool) -> None:
    """Let choices of agents and models learn from the results of a run.

    They count as work of another kind than that of your projects, whose own results outweigh them. Learning again
    replaces what was learned from the run. They are used if `decisions.learned` is on.

    \b
    Example:
      chargehand bench learn 20260101-120000-1a2b
    """
    from chargehand.app.composition import App
    from chargehand.bench.evidence import learn_run

    with App.open() as app:
        if forget:
            app.store.evidence.remove(name)
            count = 0
        else:
            count = learn_run(app, _find(name))
        is_used = app.user_configuration().config.decisions.learned
    out.document({"run": name, "attempts": count})
    out.text(f"{count} attempts of {name} count as evidence for choices")
    if count and not is_used:
        out.text("no choice uses them yet: chargehand config set decisions.learned true")


def _write(path: Path, content: bytes) -> None:
    from chargehand.core.errors import UsageError

    try:
        path.write_bytes(content)
    except OSError as error:
        hint = "name a file in a directory that exists and that you may write to"
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}", hint=hint) from error


def _load(
    suite: Path, form: str | None, clones: Path | None, only: tuple[str, ...] = (), limit: int | None = None
) -> BenchSuite:
    from chargehand.bench.suites import load_suite, select_problems

    return select_problems(load_suite(suite, form=form, clones=clones), only, limit)


def _load_again(header: RunHeader) -> BenchSuite:
    return _load(Path(header.suite), header.form, Path(header.clones) if header.clones else None)


def _find(name: str) -> RunDirectory:
    from chargehand.bench.results import find_run
    from chargehand.bench.runner import bench_root

    return find_run(bench_root(os.environ), name)


def _check_statuses(checks: tuple[ProblemCheck, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.status for each in checks))


def _check(out: Output, suite: BenchSuite, jobs: int, *, quiet: bool = False) -> tuple[ProblemCheck, ...]:
    from chargehand.bench.runner import check_suite

    def tell(done: ProblemCheck) -> None:
        if done.status != "valid":
            (out.notice if quiet else out.text)(f"{done.id}: {done.status}: {done.reason}")

    return check_suite(suite, os.environ, jobs=jobs, on_check=tell, reuse=quiet)


def _work(out: Output, run: RunDirectory, suite: BenchSuite, jobs: int, max_cost: float | None) -> int:
    from chargehand.bench.runner import BenchRunner
    from chargehand.cli.terminal.failures import INTERRUPTED
    from chargehand.cli.terminal.interrupt import Stop, run_async

    def tell(done: BenchResult) -> None:
        cheats = f" ({', '.join(done.cheating)})" if done.cheating else ""
        out.notice(f"{done.problem} #{done.sample}: {done.outcome}{cheats}, {done.seconds:.1f} s")

    out.notice(f"Run {run.path.name}: {run.path}")
    runner = BenchRunner(run, suite, os.environ, jobs=jobs, max_usd=max_cost, on_result=tell)

    async def work(stop: Stop) -> None:
        stop.end = runner.stop
        await runner.work()

    run_async(work)
    _show(out, run)
    if runner.stopped and len(run.results()) < len(run.header.problems) * run.header.samples:
        out.notice(f"Stopped. To continue: chargehand bench resume {run.path.name}")
        return INTERRUPTED
    return 0


def _row(each: RunSummary) -> tuple[Any, ...]:
    rate = "-" if each.rate is None else f"{each.rate:.1%}"
    return (
        each.label,
        each.suite,
        each.agent or "-",
        each.model or "-",
        f"{each.trials}/{each.wanted}",
        rate,
        f"{each.interval.low:.0%}-{each.interval.high:.0%}",
        each.false_green,
        each.cheating,
        "unknown" if each.cost_usd is None else f"{each.cost_usd:.2f} USD",
        f"{each.seconds:.0f} s",
    )


def _show(out: Output, run: RunDirectory, *, with_results: bool = False) -> None:
    from chargehand.bench.comparison import RunDocument, summarize

    header, results = run.header, run.results()
    found = summarize(header, results)
    out.document(RunDocument(run=header, summary=found, results=results))
    out.table(_HEADS, [_row(found)])
    tries = ", ".join(f"pass@{k} {rate:.1%}" for k, rate in found.pass_at.items())
    out.text(
        f"{found.solved} solved, {found.false_green} false green, {found.not_promoted} not promoted "
        f"({found.passed_unpromoted} would have passed), {found.unvalidated} unvalidated, {found.errors} errors, "
        f"{found.cheating} refused for cheating. {tries}"
    )
    if header.reported:
        out.text(f"Judged by reports that a hostile solution could forge: {header.reported} problems")
    for each in header.invalid:
        out.text(f"left out: {each.id}: {each.status}: {each.reason}")
    if with_results and results:
        rows = [
            (
                each.problem,
                each.sample,
                each.outcome,
                each.validation.judgement,
                each.status,
                f"{each.seconds:.1f} s",
            )
            for each in results
        ]
        out.table(("PROBLEM", "SAMPLE", "OUTCOME", "VALIDATOR", "MISSION", "TIME"), rows)
