"""Use cases of knowledge: belief networks, and lessons of missions.

A shipped network has the number 0. A stored version of the same name takes precedence. A lesson is visible to its
author, and to all users of its project once it is shared.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from chargehand.configuration.extras import require_extra
from chargehand.configuration.run_options import RunRequest
from chargehand.core.errors import (
    ChargehandError,
    InfrastructureError,
    NotFoundError,
    RefusedError,
    UsageError,
    nearest,
)
from chargehand.core.ids import new_id
from chargehand.decisions.belief_networks import (
    SHIPPED,
    BeliefNetwork,
    BeliefNode,
    read_cases,
    read_evidence,
    read_network,
    shipped_network,
    write_network,
)
from chargehand.identity.accounts import Caller
from chargehand.knowledge.lessons import (
    MOST_SEARCHED,
    Lesson,
    find_contradictions,
    read_lessons,
    render_lesson,
    summarize_lesson,
    write_note,
)
from chargehand.knowledge.lessons_effect import ForgottenLesson as ForgottenLesson
from chargehand.knowledge.lessons_effect import LessonEffect, measure_effect
from chargehand.knowledge.lessons_effect import LessonEntry as LessonEntry
from chargehand.knowledge.lessons_effect import LessonList as LessonList
from chargehand.reports.reading import StateReader
from chargehand.store.access_log import Actor
from chargehand.store.lessons import LessonRow
from chargehand.store.networks import NetworkVersion

if TYPE_CHECKING:
    from chargehand.app.composition import App

# The server accepts bodies of 1 MiB, in which quotes are escaped.
LARGEST_FILE = 1_000_000
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_AUTHOR = "chargehand"
# Adds lines to the section of AGENTS.md, which is made if missing; the newest come first.
_APPEND = """
heading='## Lessons of missions'
touch AGENTS.md && [ -z "$(tail -c1 AGENTS.md)" ] || echo >> AGENTS.md
grep -qxF "$heading" AGENTS.md || { [ ! -s AGENTS.md ] || echo; echo "$heading"; } >> AGENTS.md
{ echo; printf '%s\\n' "$1"; } > /tmp/rules && sed -i "/^$heading\\$/r /tmp/rules" AGENTS.md
"""
# Two updates at once take turns; more than so many in a row would be a fault of ours.
_MOST_TRIES = 20


class NetworkList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest version of each network."""

    networks: tuple[NetworkVersion, ...]


class NetworkView(msgspec.Struct, frozen=True, kw_only=True):
    """One version with its nodes, and all versions of the network, oldest first."""

    network: NetworkVersion
    note: str
    nodes: tuple[BeliefNode, ...]
    versions: tuple[NetworkVersion, ...]


class StateProbability(msgspec.Struct, frozen=True, kw_only=True):
    """The probability that each target is in its state of `states`, in the order of the targets."""

    states: tuple[str, ...]
    probability: float


class PosteriorView(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of targets in one version given evidence, and the natural logarithm of its probability."""

    network: NetworkVersion
    targets: tuple[str, ...]
    given: tuple[str, ...]
    outcomes: tuple[StateProbability, ...]
    log_evidence: float


class LearnedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The version made by an update; `incomplete` of its `cases` had nodes that were not observed."""

    network: NetworkVersion
    cases: int
    incomplete: int


class NetworkExport(msgspec.Struct, frozen=True, kw_only=True):
    """A version as NDJSON."""

    network: NetworkVersion
    content: str


class RemovedNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """A removed network and its number of versions; `shipped` says that the shipped one is in force again."""

    name: str
    versions: int
    shipped: bool


def read_file(path: Path) -> str:
    """Return the text of a file of a network or of cases. Raises `UsageError` (`network_file`)."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) <= LARGEST_FILE:
            return content.decode()
        problem = f"it has more than {LARGEST_FILE} bytes; give a smaller one, or cases in several files"
    except UnicodeDecodeError as error:
        problem = f"byte {error.start} is not UTF-8"
    except OSError as error:
        problem = error.strerror or "it cannot be read"
    raise UsageError(f"{str(path)!r}: {problem}", code="network_file", hint="give a file of NDJSON or .bif")


def import_network(reader: StateReader, name: str, content: str, *, by: Caller) -> NetworkVersion:
    """Store a network as the newest version of a name; the same content as the newest one changes nothing.

    Raises `UsageError` (`network_invalid`) with line, value and reason.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is not a network's name",
            code="network_invalid",
            hint="write up to 64 of a-z, 0-9, '.', '_' and '-', a letter or digit first",
        )
    network = read_network(content.encode())
    return reader.store.networks.add(
        name,
        write_network(network),
        version=network.version,
        parent=network.parent,
        action="knowledge.import",
        actor=_actor(by),
    )


def list_networks(reader: StateReader) -> NetworkList:
    """Return the newest version of each stored and shipped network, by name."""
    rows = {name: _shipped_version(name) for name in SHIPPED}
    rows |= {row.name: row for row in reader.store.networks.list()}
    return NetworkList(networks=tuple(rows[name] for name in sorted(rows)))


def show_network(reader: StateReader, name: str, *, number: int | None = None) -> NetworkView:
    """Return a version, by default the newest. Raises `NotFoundError`."""
    row, network = load_network(reader, name, number=number)
    shipped = (_shipped_version(name),) if name in SHIPPED else ()
    versions = (*shipped, *reader.store.networks.versions(name))
    return NetworkView(network=row, note=network.note, nodes=network.nodes, versions=versions)


def query_posterior(
    reader: StateReader, name: str, targets: Sequence[str], given: Sequence[str], *, number: int | None = None
) -> PosteriorView:
    """Return the joint distribution of nodes given evidence such as `node=state` or `node=state:0.7,other:0.3`.

    Raises `NotFoundError`; `UsageError`: `evidence_invalid`, `evidence_impossible`, `network_too_large`,
    `not_installed`.
    """
    require_extra("decisions")
    from chargehand.decisions.belief_inference import query_network

    row, network = load_network(reader, name, number=number)
    posterior = query_network(network, targets, read_evidence(network, given))
    states = [network.node(target).states for target in posterior.targets]
    outcomes = tuple(
        StateProbability(states=each, probability=value)
        for each, value in zip(product(*states), posterior.probabilities.ravel().tolist(), strict=True)
    )
    return PosteriorView(
        network=row,
        targets=posterior.targets,
        given=tuple(given),
        outcomes=outcomes,
        log_evidence=posterior.log_evidence,
    )


def update_network(reader: StateReader, name: str, content: str, *, by: Caller) -> LearnedVersion:
    """Learn from cases in NDJSON and store the result as a new version; earlier versions stay as they are.

    Raises `NotFoundError`, `UsageError` (`cases_invalid`) with line, value and reason.
    """
    require_extra("decisions")
    from chargehand.decisions.belief_inference import learn_cases

    for turn in range(1, _MOST_TRIES + 1):
        old, network = load_network(reader, name)
        learned = learn_cases(network, read_cases(content.encode(), network))
        try:
            row = reader.store.networks.add(
                name,
                write_network(learned.network),
                version=learned.network.version,
                parent=learned.network.parent,
                action="knowledge.update",
                actor=_actor(by),
                newest=old.number,
            )
        except RefusedError as error:
            # Another update came first: learn from its version, so that neither is lost.
            if error.code != "network_changed" or turn == _MOST_TRIES:
                raise
        else:
            break
    return LearnedVersion(network=row, cases=learned.cases, incomplete=learned.incomplete)


def export_network(reader: StateReader, name: str, *, number: int | None = None) -> NetworkExport:
    """Return a version as NDJSON. Raises `NotFoundError`."""
    row, network = load_network(reader, name, number=number)
    return NetworkExport(network=row, content=write_network(network).decode())


def remove_network(reader: StateReader, name: str, *, by: Caller) -> RemovedNetwork:
    """Remove all stored versions of a network. Raises `NotFoundError`."""
    removed = reader.store.networks.remove(name, actor=_actor(by))
    return RemovedNetwork(name=name, versions=removed, shipped=name in SHIPPED)


def load_network(
    reader: StateReader, name: str, *, number: int | None = None
) -> tuple[NetworkVersion, BeliefNetwork]:
    """Return a version of a stored or shipped network, the newest by default. Raises `NotFoundError`.

    Raises `InfrastructureError` (`store_corrupt`) if the stored content was changed.
    """
    found = None if number == 0 else reader.store.networks.load(name, number)
    if found is None and name in SHIPPED and number in (None, 0):
        return _shipped_version(name), shipped_network(name)
    if found is None:
        names = [each.name for each in list_networks(reader).networks]
        if name in names:
            raise NotFoundError(
                f"the network {name!r} has no version {number}",
                hint=f"chargehand knowledge show {name} lists them",
            )
        raise NotFoundError(f"there is no network {name!r}", hint=nearest(name, names))
    row, content = found
    try:
        network = read_network(content, parent=row.parent)
    except ChargehandError as error:
        raise _damage_error(row, error.message) from error
    if network.version != row.version:
        raise _damage_error(row, f"its digest is {network.version}, not {row.version}")
    return row, network


def _damage_error(row: NetworkVersion, problem: str) -> InfrastructureError:
    return InfrastructureError(
        f"version {row.number} of the network {row.name!r} is damaged: {problem}",
        code="store_corrupt",
        hint="`chargehand store check` shows what else is; import the network again, or use an earlier version",
    )


def _shipped_version(name: str) -> NetworkVersion:
    version = shipped_network(name).version
    return NetworkVersion(name=name, number=0, version=version, parent="", author=_AUTHOR, created="")


def _actor(by: Caller) -> Actor:
    return Actor(user=by.user, address=by.address)


def list_lessons(reader: StateReader, *, project: str | None, by: Caller) -> LessonList:
    """Return the lessons of a project, or of all, that the caller may see."""
    lessons = read_lessons(reader.store.lessons.list(_author(reader, by), project=project))
    # As missions do, which compare the newest lessons of one project.
    projects = {each.row.project for each in lessons}
    listed = [[one for one in lessons if one.row.project == each] for each in projects]
    disputed = [find_contradictions(each[-MOST_SEARCHED:]) for each in listed]
    contradictions = {lesson: others for found in disputed for lesson, others in found.items()}
    uses = reader.store.lessons.uses(each.row.id for each in lessons)
    return LessonList(
        lessons=tuple(
            _lesson_entry(each, measure_effect(uses[each.row.id]), contradictions.get(each.row.id, ()))
            for each in lessons
        )
    )


def show_lesson(reader: StateReader, lesson: str, *, by: Caller) -> LessonEntry:
    """Return a lesson that the caller may see. Raises `NotFoundError`, `UsageError` (`ambiguous`)."""
    row = reader.store.lessons.find(_author(reader, by), lesson)
    listed = list_lessons(reader, project=row.project, by=by).lessons
    found = next((each for each in listed if each.lesson == row.id), None)
    if found is None:
        raise InfrastructureError(
            f"the lesson {row.id!r} is damaged",
            code="store_corrupt",
            hint=f"`chargehand memory forget {row.id}` removes it",
        )
    return found


def add_lesson(app: App, text: str, paths: Sequence[str], *, project: str, by: Caller) -> LessonEntry:
    """Store a person's lesson, without the secrets that it contains.

    Raises `UsageError` (`lesson_invalid`), `ConfigError` (`area_invalid`).
    """
    from chargehand.checks.areas import match_paths
    from chargehand.reports.known_secrets import KnownSecrets

    content = write_note(text, paths, KnownSecrets(app, app.user_configuration().config).redact)
    match_paths(content.paths)  # an invalid pattern raises here, not for each mission
    row = LessonRow(
        id=new_id("lesson"),
        project=project,
        user=_author(app, by),
        shared=False,
        created="",
        mission="",
        content=msgspec.json.encode(content),
    )
    app.store.lessons.add(row)
    return show_lesson(app, row.id, by=by)


def share_lesson(app: App, lesson: str, *, by: Caller) -> LessonEntry:
    """Make a lesson of the caller visible in its project. Raises `NotFoundError`, `UsageError` (`ambiguous`)."""
    # Others see only lessons that are shared already.
    row = app.store.lessons.find(_author(app, by), lesson)
    app.store.lessons.share(row.id)
    app.store.access_log.append(_actor(by), "memory.share", row.id)
    return show_lesson(app, row.id, by=by)


def request_proposal(app: App, lessons: Sequence[str], *, repo: Path | None, by: Caller) -> RunRequest:
    """Return the request of a mission that writes lessons into AGENTS.md.

    Its agent is a command, so no model is paid and no text is invented. Like any change of AGENTS.md, the result
    waits for a person. Raises `NotFoundError`, and `UsageError` for a lesson of another project.
    """
    project = app.projects.find(repo).id
    entries = [show_lesson(app, each, by=by) for each in dict.fromkeys(lessons)]
    for each in entries:
        if each.project != project:
            raise UsageError(
                f"{each.lesson} is a lesson of another project",
                hint="`chargehand memory list` shows those of this one",
            )
    rules = "\n".join(f"- {summarize_lesson(each.content)}" for each in entries)
    command = shlex.join(("sh", "-c", _APPEND, "sh", rules))
    names = ", ".join(each.lesson for each in entries)
    return RunRequest(
        text=f"Add to AGENTS.md what missions learned: {names}",
        repo=repo,
        agent=f"command:{command}",
        attempts="1",
        yes=True,
    )


def forget_lesson(app: App, lesson: str, *, by: Caller) -> ForgottenLesson:
    """Erase a lesson; of a shared one, its author or an administrator may. Again, it erases what remained.

    Raises `NotFoundError`, `UsageError` (`ambiguous`), `RefusedError` (`access_denied`).
    """
    row = app.store.lessons.find(_author(app, by), lesson, forgotten=True)
    if row.user != _author(app, by) and by.role != "admin":
        raise RefusedError(
            f"{row.id} is a lesson of {row.user}",
            code="access_denied",
            hint="its author or an administrator can forget it",
        )
    missions, erased = app.store.lessons.forget(row.id)
    app.store.access_log.append(_actor(by), "memory.forget", row.id)
    return ForgottenLesson(lesson=row.id, missions=missions, erased=erased)


def _lesson_entry(lesson: Lesson, effect: LessonEffect, contradicts: tuple[str, ...]) -> LessonEntry:
    row = lesson.row
    return LessonEntry(
        lesson=row.id,
        project=row.project,
        author=row.user,
        shared=row.shared,
        created=row.created,
        mission=row.mission,
        status="contradicted" if contradicts else effect.status,
        contradicts=contradicts,
        content=lesson.content,
        text=render_lesson(lesson),
        effect=effect,
        harm=effect.harm,
    )


def _author(reader: StateReader, by: Caller) -> str:
    """Return the caller as missions name their user."""
    return reader.user if by.user == reader.identity() else f"account:{by.user}"
