"""All operations of the product."""

from __future__ import annotations

from chargehand.operations import changes, decisions, knowledge, logs, missions, sessions, system, work
from chargehand.operations.operation import Operation

OPERATIONS: tuple[Operation, ...] = (
    *logs.OPERATIONS.operations,
    *missions.OPERATIONS.operations,
    *changes.OPERATIONS.operations,
    *decisions.OPERATIONS.operations,
    *work.OPERATIONS.operations,
    *system.OPERATIONS.operations,
    *knowledge.OPERATIONS.operations,
    *sessions.OPERATIONS.operations,
)
