"""The payloads of what a role adds to a mission: adding a field needs a default, so that older logs still load."""

from __future__ import annotations

from dataclasses import dataclass

from chargehand.core._events import Payload, event


@event("role.chosen")
@dataclass(frozen=True, kw_only=True)
class RoleChosen(Payload):
    """The role that work is done in, with who works in it and why.

    `digest` is the hex SHA-256 of the role's file as it was read, `artifact` holds that text, `origin` says where
    it was read. `models` is the chain of models that may be called, the first one to begin with.
    """

    role: str
    digest: str
    artifact: str
    origin: str
    agent: str
    models: tuple[str, ...]
    writes: bool
    why: str


@event("report.made")
@dataclass(frozen=True, kw_only=True)
class ReportMade(Payload):
    """An attempt in a role that changes nothing ended with what it was for.

    `kind` is `report` or `plan`; `text` is its beginning, at most 4,000 characters, `artifact` holds all of it.
    """

    attempt: str
    role: str
    kind: str
    artifact: str
    text: str
