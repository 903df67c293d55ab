"""Provenance of a promotion: inputs, agent, base and judgement, from the log up to a signed head.

An in-toto Statement v1 (github.com/in-toto/attestation, spec/v1/statement.md) with the predicate of SLSA
Provenance v1 (slsa.dev/spec/v1.0/provenance), signed in an envelope of `store.envelopes`. It is a pure function of
the log: anyone with the log can rebuild and compare it. It contains digests and names, but no request, prompt,
reply or reason.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.attempt_events import ActionJudged, AttemptStarted, ModelCalled, RoleChosen, TierChosen
from chargehand.core.errors import ChargehandError, StoreError
from chargehand.core.events import Event, Payload, encode_json, read_payload
from chargehand.core.mission_events import (
    ApprovalGiven,
    BaseResolved,
    MissionCreated,
    MissionRolledBack,
    PromotionDone,
    StepFinished,
    VerdictGiven,
)
from chargehand.core.plan_events import TaskMerged
from chargehand.missions.reading import mission_ref
from chargehand.store.chain import AuditProblem, ProblemKind, audit_problem
from chargehand.store.envelopes import Envelope
from chargehand.store.heads import LogHead, SignedHead
from chargehand.store.store import Store
from chargehand.workspace.depot import Depot
from chargehand.workspace.export import exported_provenance

MEDIA_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
# Names, not addresses: they are never fetched. A statement of another form gets another build type.
BUILD_TYPES = {PromotionDone: "urn:chargehand:promotion:v1", MissionRolledBack: "urn:chargehand:rollback:v1"}
BUILDER = "urn:chargehand:builder:v1"
_HEAD = "log-head"
_MOVES = (PromotionDone, MissionRolledBack)
_READ = (MissionCreated, BaseResolved, RoleChosen, TierChosen, AttemptStarted, ModelCalled, ActionJudged)
_FACTS = frozenset(kind.type for kind in (*_READ, *_MOVES, TaskMerged, VerdictGiven, ApprovalGiven, StepFinished))
_P = TypeVar("_P", bound=Payload)


class CommitProvenance(Struct, frozen=True, kw_only=True):
    """The provenance of one promoted commit: its signed statement, its signer, and its problems.

    `mission` is "" if no statement names it; of several statements the last valid one is shown.
    """

    commit: str
    mission: str
    key: str | None = None
    envelope: Envelope | None = None
    statement: Any = None
    problems: tuple[AuditProblem, ...] = ()


def sign_provenance(store: Store, head: SignedHead, *, version: str) -> str:
    """Return the signed statement of a mission's last promotion or roll-back, one line, from its log up to `head`.

    Raises `StoreError`.
    """
    lines = store.log.read(head.mission, types=_FACTS)
    statement = build_statement(lines, LogHead(seq=head.seq, hash=head.hash), version=version)
    return store.sign_envelope(encode_json(statement), kind=MEDIA_TYPE).encode().decode()


class _Facts:
    """The facts of a statement, read from the lines of a log."""

    def __init__(self, lines: Iterable[Event]) -> None:
        self.lines = tuple(lines)
        # Steps contain whole replies: only their digests are needed, and the lines have those.
        known = ((line, read_payload(line)) for line in self.lines if line.type != StepFinished.type)
        self.read = [(line, payload) for line, payload in known if payload is not None]

    def all(self, kind: type[_P]) -> list[_P]:
        return [payload for _, payload in self.read if isinstance(payload, kind)]

    def last(self, kind: type[_P], *, before: int = sys.maxsize) -> _P | None:
        found = (each for line, each in reversed(self.read) if line.seq < before and isinstance(each, kind))
        return next(found, None)

    def resource(self, kind: type[Payload], name: str) -> list[dict[str, Any]]:
        """Return all lines of one type as a resource; its digest covers their payload digests in order."""
        digests = [line.digest for line in self.lines if line.type == kind.type]
        digest = hashlib.sha256("".join(f"{each}\n" for each in digests).encode()).hexdigest()
        counted = {"name": name, "digest": {"sha256": digest}, "annotations": {"lines": len(digests)}}
        return [counted] if digests else []

    def external_parameters(self, created: MissionCreated, base: BaseResolved) -> dict[str, Any]:
        """Return the person's request, as far as possible without its words."""
        request, role, attempt = created.request, self.last(RoleChosen), self.last(AttemptStarted)
        answered = [call.model for call in self.all(ModelCalled) if call.status in ("ok", "replayed")]
        return {
            "request": {"sha256": hashlib.sha256(request.text.encode("utf-8", "surrogatepass")).hexdigest()},
            "base": base.base.commit,
            "role": role.role if role else request.role or None,
            "agent": attempt.agent if attempt else request.agent,
            "model": answered[-1] if answered else request.model,
        }

    def internal_parameters(self, created: MissionCreated) -> dict[str, Any]:
        """Return the agent's tier and rules, and the facts that our statements cannot contain."""
        tier, rules = self.last(TierChosen), sorted({each.rules for each in self.all(ActionJudged) if each.rules})
        absent = {"prompts": "no request to a model is recorded with its own digest"}
        if self.last(RoleChosen) is None:
            absent["role"] = "no role was chosen"
        if not rules:
            absent["policy"] = "no action was judged"
        if not any(line.type == StepFinished.type for line in self.lines):
            absent["recorded-steps"] = "no step is recorded"
        return {
            "tier": tier.choice.tier if tier else created.request.tier,
            "policy": rules,
            "configuration": {"sha256": hashlib.sha256(encode_json(created.config.get("values"))).hexdigest()},
            "absent": absent,
        }

    def dependencies(self, created: MissionCreated) -> Iterator[dict[str, Any]]:
        """Yield the result's dependencies other than its base: role, check files, recorded steps and calls."""
        role = self.last(RoleChosen)
        if role is not None:
            yield {"name": "role", "digest": {"sha256": role.digest}, "annotations": {"role": role.role}}
        request = created.request
        for artifact, path in (*request.check_files, *request.outside_files):
            yield {"name": f"check-file:{path}", "digest": {"sha256": artifact}}
        # The conversation between agent and model, and the agent's acts, if the agent records them.
        yield from self.resource(StepFinished, "recorded-steps")
        yield from self.resource(ModelCalled, "model-calls")

    def judgement(self, tree: str, since: int) -> Iterator[dict[str, Any]]:
        """Yield the verdict on the exact tree, its checks with the artifacts of their output, and approvals."""
        given = [(line, payload.verdict) for line, payload in self.read if isinstance(payload, VerdictGiven)]
        of_tree = [(line, verdict) for line, verdict in given if verdict.tree == tree and verdict.scope != "base"]
        for line, verdict in of_tree[-1:]:
            told: dict[str, Any] = {"status": verdict.status, "scope": verdict.scope, "tree": tree}
            if verdict.known:
                told["knownFailures"] = [msgspec.to_builtins(each) for each in verdict.known]
            if verdict.flaky:
                told["flaky"] = [msgspec.to_builtins(each) for each in verdict.flaky]
            place = _line_resource("verdict", line.mission, line.seq, line.hash, **told)
            yield place
            for check in verdict.checks:
                kept = {"digest": {"sha256": check.artifact}} if check.artifact else {}
                told = {"status": check.status, "tests": check.tests, "exitCode": check.exit_code}
                told |= {"baseTests": check.base_tests, "outside": check.outside, "warm": check.warm}
                yield {"name": f"check:{check.name}", "uri": place["uri"], **kept, "annotations": told}
        for line, payload in self.read:
            if isinstance(payload, ApprovalGiven) and line.seq > since:
                told = {"identity": payload.identity, "tree": payload.tree, "time": line.time}
                yield _line_resource("approval", line.mission, line.seq, line.hash, **told)


def build_statement(lines: Sequence[Event], head: LogHead, *, version: str) -> dict[str, Any]:
    """Return the statement of the last promotion or roll-back in the lines up to `head`.

    Raises `StoreError` (`log_changed`) if the necessary lines are missing.
    """
    facts = _Facts(line for line in lines if line.seq <= head.seq)
    moves = [(line, payload) for line, payload in facts.read if isinstance(payload, _MOVES)]
    # A roll-back needs the promotion that it undoes; the base may have moved since that promotion.
    promoted = max((line.seq for line, move in moves if isinstance(move, PromotionDone)), default=0)
    created, base = facts.last(MissionCreated), facts.last(BaseResolved, before=promoted)
    if created is None or base is None:
        raise StoreError("the log has no complete promotion", code="log_changed")
    line, move = moves[-1]
    since = moves[-2][0].seq if len(moves) > 1 else 0
    # A full roll-back has the base's tree, for which its own reverted promotion was not judged.
    judged = isinstance(move, PromotionDone) or bool(move.tasks)
    reverted = [] if isinstance(move, PromotionDone) else [moves[-2][1].commit]
    if isinstance(move, MissionRolledBack) and move.tasks:
        reverted = [each.commit for each in facts.all(TaskMerged) if each.task in move.tasks]
    number = max((each.number for each in facts.all(AttemptStarted)), default=0)
    return {
        "_type": STATEMENT,
        "subject": [{"name": move.ref, "digest": {"gitCommit": move.commit, "gitTree": move.tree}}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPES[type(move)],
                "externalParameters": facts.external_parameters(created, base),
                "internalParameters": facts.internal_parameters(created),
                "resolvedDependencies": [
                    {"name": "base", "digest": {"gitCommit": base.base.commit, "gitTree": base.base.tree}},
                    *({"name": "reverted", "digest": {"gitCommit": each}} for each in reverted),
                    *facts.dependencies(created),
                ],
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": {"chargehand": version}},
                "metadata": {
                    "invocationId": f"{line.mission}/attempt/{number}",
                    "startedOn": lines[0].time,
                    "finishedOn": line.time,
                },
                "byproducts": [
                    *(facts.judgement(move.tree, since) if judged else []),
                    _line_resource(_HEAD, line.mission, head.seq, head.hash),
                ],
            },
        },
    }


def _line_resource(name: str, mission: str, seq: int, hash: str, **annotations: object) -> dict[str, Any]:
    """Return a line of the log as a resource; its digest is the hash that chains it to all earlier lines."""
    place = {"name": name, "uri": f"urn:chargehand:log:{mission}:{seq}", "digest": {"sha256": hash}}
    return place | ({"annotations": annotations} if annotations else {})


# --- verification


def verify_mission(store: Store, depot: Depot, mission: str) -> tuple[CommitProvenance, ...]:
    """Verify the provenance of each commit that a mission's branch has pointed to, in order."""
    payloads = map(read_payload, store.log.read(mission, types=[kind.type for kind in _MOVES]))
    commits = dict.fromkeys(move.commit for move in payloads if isinstance(move, _MOVES))
    return tuple(verify_commit(store, depot, commit, mission=mission) for commit in commits)


def verify_commit(store: Store, depot: Depot, commit: str, *, mission: str = "") -> CommitProvenance:
    """Verify the notes of a commit's provenance, in the depot and in the user's repository.

    Reported problems: a missing note, a note without a signed statement, a signature that does not match its key,
    a key that is not this store's, a statement of another commit or tree, a statement that the log contradicts,
    and a moved branch.
    """
    problems: list[AuditProblem] = []
    texts: list[str] = []
    for read in (depot.provenance, partial(exported_provenance, depot)):
        try:
            texts.append(read(commit) or "")
        except ChargehandError as error:
            problems.append(audit_problem(mission, None, "provenance_malformed", error.message))
    found = blank = CommitProvenance(commit=commit, mission=mission)
    lines = dict.fromkeys(chain.from_iterable(text.splitlines() for text in texts))
    for line in lines:
        checked = _verify_line(store, depot, line, blank)
        problems += checked.problems
        if not checked.problems or found.envelope is None:
            found = checked
    if not lines and not problems:
        told = f"commit {commit} has no note of its provenance"
        problems.append(audit_problem(mission, None, "provenance_missing", told))
    return replace(found, problems=tuple(problems))


def _verify_line(store: Store, depot: Depot, line: str, about: CommitProvenance) -> CommitProvenance:
    """Return the content of one line of a note and its problem; the first problem ends the search."""
    commit, mission = about.commit, about.mission
    found = about

    def conclude(kind: ProblemKind, message: str) -> CommitProvenance:
        problem = audit_problem(mission, None, kind, f"provenance of {commit[:12]}: {message}")
        return replace(found, key=None, problems=(problem,))

    try:
        envelope = Envelope.decode(line.encode())
        signer = envelope.signer(store.known_keys())
        found = replace(about, envelope=envelope, key=signer, problems=())
        # An unsigned statement proves nothing, so it is not even read.
        if signer is None:
            return conclude("provenance_forged", "the signature is not its key's")
        if not signer:
            keys = ", ".join(each.keyid for each in envelope.signatures) or "none"
            return conclude("key_unknown", f"it is signed by key {keys!r:.80}, which is not this log's")
        # Any of these errors means that it is not a statement of ours.
        if envelope.payload_type != MEDIA_TYPE:
            raise ValueError(f"it is {envelope.payload_type!r}")
        statement = json.loads(envelope.body)
        (subject,) = statement["subject"]
        run = statement["predicate"]["runDetails"]
        kept = next(part for part in run["byproducts"] if part["name"] == _HEAD)
        claim = _Claim(
            statement=statement,
            commit=subject["digest"]["gitCommit"],
            tree=subject["digest"]["gitTree"],
            mission=run["metadata"]["invocationId"].partition("/")[0],
            head=LogHead(seq=int(kept["uri"].rpartition(":")[2]), hash=kept["digest"]["sha256"]),
            version=run["builder"]["version"]["chargehand"],
        )
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        return conclude("provenance_malformed", f"it has no signed statement of Chargehand: {error!r:.80}")
    found = replace(found, mission=mission or claim.mission, statement=claim.statement)
    if claim.commit != commit:
        return conclude("provenance_differs", f"it is of commit {claim.commit!r:.50}")
    problem = claim.find_disagreement(store, depot, found.mission)
    return conclude(*problem) if problem else found


class _Claim(Struct, frozen=True, kw_only=True):
    """A statement, with the fields that locate its place in a log."""

    statement: Any
    commit: str
    tree: str
    mission: str
    head: LogHead
    version: str

    def find_disagreement(self, store: Store, depot: Depot, mission: str) -> tuple[ProblemKind, str] | None:
        """Return the first disagreement between a statement, the log and the depot, or `None`."""
        lines, head = store.log.read(mission), self.head
        if not any((line.seq, line.hash) == (head.seq, head.hash) for line in lines):
            return (
                "provenance_differs",
                f"the log of {mission!r} has no line {head.seq} with the hash that was signed",
            )
        try:
            own = json.loads(encode_json(build_statement(lines, head, version=self.version)))
            tree = depot.tree_of(self.commit)
        except ChargehandError as error:
            return "provenance_differs", error.message
        if own != self.statement:
            return "provenance_differs", f"the log has another {_first_difference(own, self.statement)}"
        if tree != self.tree:
            return "provenance_differs", f"the commit's tree is {tree}"
        moves = [move for move in map(read_payload, lines) if isinstance(move, _MOVES)]
        tip = depot.read_ref(mission_ref(mission))
        if tip != moves[-1].commit:
            return "branch_moved", f"the mission's branch is at {tip}, not at {moves[-1].commit}"
        return None


def _first_difference(own: Any, other: Any, where: str = "") -> str:
    """Return the JSON pointer of the first value that differs."""
    if isinstance(own, dict) and isinstance(other, dict):
        for key in sorted(own.keys() | other.keys()):
            if own.get(key) != other.get(key):
                return _first_difference(own.get(key), other.get(key), f"{where}/{key}")
    if isinstance(own, list) and isinstance(other, list) and len(own) == len(other):
        for index, (mine, theirs) in enumerate(zip(own, other, strict=True)):
            if mine != theirs:
                return _first_difference(mine, theirs, f"{where}/{index}")
    return where or "/"
