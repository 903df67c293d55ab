"""Use cases of the state directory: audit of its log, artifacts, projected rows, and freeing space."""

from __future__ import annotations

import base64
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec
from msgspec.structs import replace

from chargehand.app.upkeep import find_lost_content
from chargehand.core.codec import convert_to
from chargehand.core.errors import NotFoundError, UsageError
from chargehand.missions.provenance import CommitProvenance, verify_commit, verify_mission
from chargehand.missions.reading import not_promoted_error
from chargehand.reports.documents import ArtifactEntry
from chargehand.reports.reading import LAST, StateReader
from chargehand.store.audit import verify
from chargehand.store.chain import AuditProblem
from chargehand.store.export import export_log, verify_export
from chargehand.store.heads import SignedHead
from chargehand.store.projects import ProjectRow
from chargehand.workspace.space import GcReport, gc


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of an audit, and the differences from the written log; `keys` signed the valid heads."""

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


def verify_log(
    reader: StateReader, mission: str | None, *, head: IO[bytes] | None = None, deep: bool = False
) -> AuditView:
    """Check the chain of one mission or of all, also against signed heads that were stored elsewhere.

    `head` has one signed head on each line, as in a git note; `deep` also reads artifacts and commits.
    Raises `UsageError` (`head_malformed`), `NotFoundError`.
    """
    witnesses = () if head is None else _read_heads(head)
    wanted = None if mission is None else reader.find_mission(mission)
    view = convert_to(verify(reader.store, wanted, witnesses=witnesses), AuditView, from_attributes=True)
    if not deep:
        return view
    problems = (*view.problems, *find_lost_content(reader, wanted).problems)
    return replace(view, ok=not problems, problems=problems)


def verify_file(export: IO[bytes], *, head: IO[bytes] | None = None) -> AuditView:
    """Check an exported file; this needs neither a state directory nor this machine."""
    report = verify_export(export, witnesses=() if head is None else _read_heads(head))
    return convert_to(report, AuditView, from_attributes=True)


def _read_heads(file: Iterable[bytes]) -> tuple[SignedHead, ...]:
    heads = tuple(SignedHead.decode(line) for line in file if line.strip())
    return heads or (SignedHead.decode(b""),)  # an empty file is an error, not "nothing to compare"


def missions_to_export(reader: StateReader, mission: str | None) -> tuple[str, ...]:
    """Return the ids of one mission or of all; raise `NotFoundError`."""
    # Includes the logs of projects, which no list of missions shows.
    return tuple(reader.store.log.names()) if mission is None else (reader.find_mission(mission),)


def exported_lines(reader: StateReader, mission: str | None) -> Iterator[bytes]:
    """Yield events, signed heads and the public key as JSON lines that can be verified by themselves."""
    return export_log(reader.store, list(missions_to_export(reader, mission)))


def export_to_file(reader: StateReader, mission: str | None, path: Path) -> AuditExport:
    """Write an export to a new file; raise as `write_new_file`."""
    names = missions_to_export(reader, mission)
    return AuditExport(
        output=str(path), missions=names, bytes=write_new_file(path, export_log(reader.store, names))
    )


def write_new_file(path: Path, content: Iterable[bytes]) -> int:
    """Write a new file completely or not at all, however this process ends; return its size in bytes.

    Raises `UsageError` (`output_exists`, `output_unwritable`), and the errors of `content`.
    """
    part = path.with_name(f".chargehand-{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            size = sum(map(file.write, content))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(part, path)  # unlike a rename, it replaces no file
        except (
            PermissionError
        ):  # a file system without links, as on a memory stick: the empty file reserves the name
            path.open("xb").close()
            part.replace(path)
    except FileExistsError as error:
        raise UsageError(
            f"{str(path)!r} already exists", code="output_exists", hint="choose a file that does not exist yet"
        ) from error
    except OSError as error:
        raise UsageError(
            f"cannot write {str(path)!r}: {error.strerror}",
            code="output_unwritable",
            hint="choose a file in a directory that you may write to",
        ) from error
    finally:
        with suppress(OSError):  # it was moved, or never created
            part.unlink()
    return size


class ProvenanceDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`audit provenance`: every commit that a mission's branch was moved to, with its signed statement.

    `statement` is the content of the envelope; both are null without a note. `problems` are those of all commits.
    """

    ok: bool
    mission: str | None
    commits: tuple[CommitProvenance, ...]
    problems: tuple[AuditProblem, ...]


def verify_provenance(
    reader: StateReader, mission: str | None, *, commit: str | None = None
) -> ProvenanceDocument:
    """Verify the signed provenance of a mission's promotions, or of one commit of the current repository.

    Raises `RefusedError` (`not_promoted`), `NotFoundError`, `RepositoryError`.
    """
    if commit is not None:
        depot = reader.projects.depot(reader.projects.find())
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
        # A commit that was not exported exists only in the depot.
        named = next(
            (done for git in (depot.repository.git, depot.git) if not (done := git.run(*words)).code), None
        )
        if named is None:
            raise NotFoundError(
                f"there is no commit {commit!r} here", hint="run this in the repository that has it"
            )
        found: tuple[CommitProvenance, ...] = (verify_commit(reader.store, depot, named.text),)
    else:
        state = reader.mission_state(mission or LAST)
        if state.commit is None:
            raise not_promoted_error(state)
        found = verify_mission(reader.store, reader.projects.mission_depot(state), state.id)
    problems = tuple(problem for each in found for problem in each.problems)
    return ProvenanceDocument(ok=not problems, mission=found[-1].mission or None, commits=found, problems=problems)


_SHORTEST_NAME = 4  # digits of an id
_LIST_HINT = "chargehand artifact list MISSION lists them"
_AGE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)([smhd]?)")
_SECONDS_IN_UNIT = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?) ?([kMG]i?)?B?", re.IGNORECASE)


class ArtifactList(msgspec.Struct, frozen=True, kw_only=True):
    """The artifacts of a mission, the oldest first."""

    mission: str
    artifacts: tuple[ArtifactEntry, ...]


class ArtifactUse(msgspec.Struct, frozen=True, kw_only=True):
    """A mission that stored an artifact (null: no mission), with kind and time."""

    mission: str | None
    kind: str
    time: str


class ArtifactView(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact with its content: text if `encoding` is `utf-8`, otherwise base64."""

    id: str
    size: int
    kept: tuple[ArtifactUse, ...]
    encoding: str
    content: str


class RebuildReport(msgspec.Struct, frozen=True, kw_only=True):
    """Rebuilt projections: the number of missions, and those whose row differed from their log.

    `renumbered` says that positions of events were missing or out of order, so that all events got new ones.
    """

    missions: int
    differing: tuple[str, ...]
    renumbered: bool


def rebuild_projections(reader: StateReader) -> RebuildReport:
    """Rebuild the rows for lists and counts from the log. Raises `StoreError`."""
    rebuilt = reader.store.rebuild()
    return RebuildReport(missions=rebuilt.missions, differing=rebuilt.differing, renumbered=rebuilt.renumbered)


class ErasedCheckpoints(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoints that can never be restored any more: their refs, the number of commits, and bytes on disk."""

    refs: tuple[str, ...]
    commits: int
    bytes: int


class CollectedProject(msgspec.Struct, frozen=True, kw_only=True):
    """The removed parts of one project, by name; `skipped` says why its repository was left alone."""

    project: str
    path: str
    skipped: str | msgspec.UnsetType = msgspec.UNSET
    workspaces: tuple[str, ...]
    bases: tuple[str, ...]
    layers: tuple[str, ...]
    litter: tuple[str, ...]
    bytes: int
    checkpoints: ErasedCheckpoints


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """The removed parts, or on a dry run the removable ones; `taken` is the size before, in bytes."""

    dry_run: bool
    taken: int
    bytes: int
    projects: tuple[CollectedProject, ...]

    @classmethod
    def of(cls, report: GcReport, rows: tuple[ProjectRow, ...]) -> Collection:
        """Return the result of a collection for these projects, those with an existing repository first."""
        by_name = {found.root.name: found for found in report.projects}
        collected = []
        for row in sorted(rows, key=lambda row: not row.path.is_dir()):
            found = by_name[row.id]
            gone = not row.path.is_dir()
            # The state stored for a repository outlives it, and can be freed only here.
            note = "its repository is gone; only its data stored here was checked"
            collected.append(
                CollectedProject(
                    project=row.id,
                    path=str(row.path),
                    skipped=note if gone else msgspec.UNSET,
                    workspaces=found.workspaces,
                    bases=found.bases,
                    layers=found.layers,
                    litter=found.litter,
                    bytes=found.bytes,
                    checkpoints=ErasedCheckpoints(
                        refs=found.erased.refs, commits=found.erased.commits, bytes=found.erased.bytes
                    ),
                )
            )
        return cls(dry_run=report.dry_run, taken=report.taken, bytes=report.bytes, projects=tuple(collected))


class GcOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a collection: `max_age` such as `24h`, `max_bytes` such as `500MB`; default: configured."""

    repo: Path | None = None
    dry_run: bool = False
    max_age: str | None = None
    max_bytes: str | None = None
    checkpoints: bool = False


def list_artifacts(reader: StateReader, mission: str) -> ArtifactList:
    """Return the artifacts of a mission; raise `NotFoundError`."""
    found = reader.find_mission(mission)
    rows = reader.store.artifacts.list(found)
    return ArtifactList(
        mission=found,
        artifacts=tuple(ArtifactEntry(id=row.id, kind=row.kind, size=row.size, time=row.time) for row in rows),
    )


def read_artifact(reader: StateReader, name: str) -> tuple[bytes, ArtifactView]:
    """Return the content and the record of the one artifact whose id starts with `name`.

    Raises `NotFoundError`, and `UsageError` if `name` has fewer than four digits or matches several (`ambiguous`).
    """
    start = name.lower()
    if len(start) < _SHORTEST_NAME:
        hint = f"give at least {_SHORTEST_NAME} digits; {_LIST_HINT}"
        raise UsageError(f"{name!r} is too short for an artifact id", hint=hint)
    rows = [row for row in reader.store.artifacts.list() if row.id.startswith(start)]
    ids = sorted({row.id for row in rows})
    if not ids:
        raise NotFoundError(f"there is no artifact {name!r}", hint=_LIST_HINT)
    if len(ids) > 1:
        some = ", ".join(each[: len(start) + 8] for each in ids[:5])
        raise UsageError(
            f"{name!r} matches {len(ids)} artifacts", code="ambiguous", hint=f"give more digits: {some}"
        )
    content = reader.store.artifacts.get(ids[0])
    try:
        text, encoding = content.decode(), "utf-8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(content).decode(), "base64"
    kept = tuple(ArtifactUse(mission=row.mission or None, kind=row.kind, time=row.time) for row in rows)
    return content, ArtifactView(id=ids[0], size=len(content), kept=kept, encoding=encoding, content=text)


def collect_garbage(
    reader: StateReader, options: GcOptions, *, confirm: Callable[[int, int], None] = lambda commits, refs: None
) -> Collection:
    """Remove the parts that no mission needs, least recently used first.

    `confirm` gets the number of checkpoints and of workspaces before any checkpoint is erased for good, and raises
    if the person declines. Raises `UsageError` for a bad age or size.
    """
    limits = reader.user_configuration().config.limits
    rules: dict[str, Any] = {"max_age": limits.workspace_age, "checkpoints": options.checkpoints}
    if options.max_age is not None:
        found = _AGE.fullmatch(options.max_age.strip())
        if found is None:
            raise _wrong_amount("--max-age", options.max_age, "90s, 30m, 24h or 7d")
        age = float(found[1]) * _SECONDS_IN_UNIT[found[2]]
        # Bases and layers are kept longer by default; an explicit age applies to everything.
        rules |= {"max_age": age, "shared_age": age}
    if options.max_bytes is not None:
        found = _SIZE.fullmatch(options.max_bytes.strip())
        if found is None:
            raise _wrong_amount("--max-bytes", options.max_bytes, "500MB or 2GiB")
        rules["max_bytes"] = int(float(found[1]) * bytes_in_unit(found[2] or ""))
    elif options.repo is None:  # the configured limit is for all projects together
        rules["max_bytes"] = limits.state_mb << 20
    projects = (
        (reader.projects.find(options.repo),) if options.repo is not None else tuple(reader.store.projects.list())
    )
    roots = tuple(reader.home / "projects" / project.id for project in projects)
    if options.checkpoints and not options.dry_run:
        # A dry run names exactly what the same call removes, so a person agrees to the true numbers.
        planned = gc(roots, needed=reader.projects.needed, dry_run=True, **rules)
        refs = sum(len(project.erased.refs) for project in planned.projects)
        if refs:
            confirm(sum(project.erased.commits for project in planned.projects), refs)
    return Collection.of(gc(roots, needed=reader.projects.needed, dry_run=options.dry_run, **rules), projects)


def _wrong_amount(option: str, text: str, example: str) -> UsageError:
    return UsageError(f"{option} must look like {example}, got {text!r}", hint=f"write it as {example}")


def bytes_in_unit(unit: str) -> int:
    """Return the bytes of `k`, `M`, `G` (powers of 1000) or `Ki`, `Mi`, `Gi` (of 1024) in any case; 1 for ""."""
    step = 1024 if unit.lower().endswith("i") else 1000
    return int(step ** ("kmg".index(unit[0].lower()) + 1)) if unit else 1
