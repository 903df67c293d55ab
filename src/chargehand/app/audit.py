"""Proof that the log is what was written, here or in an export that proves itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from chargehand.app.reading import StateReader
from chargehand.core.errors import UsageError
from chargehand.store.audit import AuditProblem, AuditReport, verify
from chargehand.store.export import export_log, verify_export
from chargehand.store.heads import SignedHead


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """How much was checked, and where it is not what was written; `keys` made the signed heads that hold."""

    ok: bool
    missions: int
    events: int
    signed_heads: int
    keys: tuple[str, ...]
    problems: tuple[AuditProblem, ...]


class AuditExport(msgspec.Struct, frozen=True, kw_only=True):
    """An export that was written: its file, the ids of its missions, its size."""

    output: str
    missions: tuple[str, ...]
    bytes: int


def verify_log(reader: StateReader, mission: str | None, *, head: IO[bytes] | None = None) -> AuditView:
    """Check the chain of one mission or of all, also against signed heads that were kept elsewhere.

    `head` has one signed head on each line, as a git note has them. Raises `UsageError` (`head_malformed`),
    `NotFoundError`.
    """
    witnesses = () if head is None else _read_heads(head)
    wanted = None if mission is None else reader.find_mission(mission)
    return _view(verify(reader.store, wanted, witnesses=witnesses))


def verify_file(export: IO[bytes], *, head: IO[bytes] | None = None) -> AuditView:
    """Check an exported file, which needs neither a state directory nor this machine."""
    return _view(verify_export(export, witnesses=() if head is None else _read_heads(head)))


def _read_heads(file: Iterable[bytes]) -> tuple[SignedHead, ...]:
    heads = tuple(SignedHead.decode(line) for line in file if line.strip())
    return heads or (SignedHead.decode(b""),)  # an empty file is an error of its own, not "nothing to compare"


def _view(report: AuditReport) -> AuditView:
    return AuditView(
        ok=report.ok,
        missions=report.missions,
        events=report.events,
        signed_heads=report.signed_heads,
        keys=report.keys,
        problems=report.problems,
    )


def missions_to_export(reader: StateReader, mission: str | None) -> tuple[str, ...]:
    """Return the ids of one mission or of all; raises `NotFoundError`."""
    return tuple(reader.store.log.names()) if mission is None else (reader.find_mission(mission),)


def exported_lines(reader: StateReader, mission: str | None) -> Iterator[bytes]:
    """Yield events, signed heads and the public key as JSON lines that verify with nothing else."""
    return export_log(reader.store, list(missions_to_export(reader, mission)))


def export_to_file(reader: StateReader, mission: str | None, path: Path) -> AuditExport:
    """Write an export to a new file, whole or not at all.

    Raises `UsageError` (`output_exists`, `output_unwritable`).
    """
    names = missions_to_export(reader, mission)
    try:
        file = path.open("xb")
    except FileExistsError as error:
        raise UsageError(
            f"{str(path)!r} already exists", code="output_exists", hint="choose a file that does not exist yet"
        ) from error
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with file:
            size = sum(map(file.write, export_log(reader.store, list(names))))
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unwritable(path, error) from error
        raise
    return AuditExport(output=str(path), missions=names, bytes=size)


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot write {str(path)!r}: {error.strerror}",
        code="output_unwritable",
        hint="choose a file in a directory that you may write to",
    )
