"""`chargehand audit …`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO

from chargehand.app.composition import App
from chargehand.cli._output import Output
from chargehand.cli._prepare import find_mission
from chargehand.core.errors import UsageError
from chargehand.store._audit import verify
from chargehand.store._audit_export import export_log, verify_export
from chargehand.store._chain import AuditReport
from chargehand.store._signing import SignedHead


def verify_log(
    out: Output, mission: str | None, *, head: IO[bytes] | None = None, export: IO[bytes] | None = None
) -> int:
    """Write whether the log, or an export of one, is what was written; exit 1 where it is not."""
    if mission is not None and export is not None:
        raise UsageError(
            f"an export is verified whole, not mission {mission!r} alone",
            hint="leave out MISSION, or --export to look at the log here",
        )
    witnesses = () if head is None else read_heads(head)
    if export is not None:
        report = verify_export(export, witnesses=witnesses)
    else:
        with App.open() as app:
            wanted = None if mission is None else find_mission(app, mission)
            report = verify(app.store, wanted, witnesses=witnesses)
    show_report(out, report)
    return 0 if report.ok else 1


def read_heads(file: Iterable[bytes]) -> tuple[SignedHead, ...]:
    """Return the signed heads of a file, one on each line, as a git note has them.

    Raises `UsageError` (`head_malformed`) for any other line, and for no line at all.
    """
    heads = tuple(SignedHead.decode(line) for line in file if line.strip())
    return heads or (SignedHead.decode(b""),)


def show_report(out: Output, report: AuditReport) -> None:
    """Write what an audit found, and where."""
    out.document(
        {
            "ok": report.ok,
            "missions": report.missions,
            "events": report.events,
            "signed_heads": report.signed_heads,
            "keys": report.keys,
            "problems": report.problems,
        }
    )
    for problem in report.problems:
        place = problem.mission or "the store"
        line = f" line {problem.seq}" if problem.seq is not None else ""
        out.text(f"{place}{line}: {problem.kind}: {problem.message}", fg="red")
    counted = f"{report.events} events of {report.missions} missions"
    out.text(f"{counted}: {'whole' if report.ok else f'{len(report.problems)} problems'}")
    for key in report.keys:
        out.text(f"{report.signed_heads} signed heads hold, by key {key}")


def export_missions(out: Output, mission: str | None, *, every: bool, output: Path | None) -> int:
    """Write the log of one mission, or of all, as lines that prove themselves."""
    if every == (mission is not None):
        given = f"{mission!r} and --all" if every else "neither a mission nor --all"
        raise UsageError(f"{given} was given", hint="give either MISSION or --all")
    with App.open() as app:
        names = list(app.store.log.names()) if mission is None else [find_mission(app, mission)]
        lines = export_log(app.store, names)
        if output is None:
            for line in lines:
                out.raw(line)
            return 0
        size = _write_new(output, lines)
    out.document({"output": str(output), "missions": names, "bytes": size})
    out.text(f"{len(names)} missions, {size} bytes written to {output}")
    return 0


def _write_new(path: Path, lines: Iterable[bytes]) -> int:
    """Write a file that is not there yet, whole or not at all; return its size in bytes."""
    try:
        file = path.open("xb")
    except FileExistsError as error:
        raise UsageError(
            f"{str(path)!r} exists", code="output_exists", hint="name a file that does not exist yet"
        ) from error
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with file:
            return sum(map(file.write, lines))
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unwritable(path, error) from error
        raise


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{str(path)!r} cannot be written: {error.strerror}",
        code="output_unwritable",
        hint="name a file in a directory that you may write to",
    )
