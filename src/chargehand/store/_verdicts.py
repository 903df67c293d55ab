"""Verdicts kept by tree and plan, so that the same tree is not checked twice."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from chargehand.core.clock import Clock
from chargehand.core.codec import decode_as
from chargehand.core.records import Verdict
from chargehand.store._database import Database
from chargehand.store._schema import verdicts


class Verdicts:
    """A cache: what cannot be read is a miss, never an error."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def get(self, project: str, tree: str, *, plan_digest: str) -> Verdict | None:
        """Return the verdict of this tree under this plan; `None` where there is none. Raises `StoreError`."""
        query = sa.select(verdicts.c.verdict).where(_is(project, tree, plan_digest))
        with self._database.read() as connection:
            kept = connection.execute(query).scalar_one_or_none()
        verdict = None if kept is None else _decoded(kept)
        return verdict if verdict is not None and verdict.tree == tree else None

    def put(self, project: str, verdict: Verdict, *, plan_digest: str) -> None:
        """Keep a verdict under its own tree, in place of an earlier one. Raises `StoreError`."""
        row = {
            "project": project,
            "tree": verdict.tree,
            "plan_digest": plan_digest,
            "verdict": msgspec.json.encode(verdict),
            "time": self._clock.now().isoformat(timespec="microseconds"),
        }
        with self._database.write() as connection:
            connection.execute(sa.delete(verdicts).where(_is(project, verdict.tree, plan_digest)))
            connection.execute(sa.insert(verdicts), row)


def _is(project: str, tree: str, plan_digest: str) -> sa.ColumnElement[bool]:
    return (verdicts.c.project == project) & (verdicts.c.tree == tree) & (verdicts.c.plan_digest == plan_digest)


def _decoded(kept: bytes) -> Verdict | None:
    try:
        return decode_as(kept, Verdict)
    except msgspec.MsgspecError:
        return None
