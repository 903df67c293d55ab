"""Older versions of messages made into newer ones, one step each.

Version 1 had no version, and three forms: the report on an attempt (`{"schema": 1, …}`), the same inside
`{"status", "type", "payload"}` as a model was shown it, and the arguments of `finish` (`{"summary", "evidence"}`),
a call of which said that the work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chargehand.core._errors import MessageError

_FINISH = {"summary", "evidence", "version"}


def _from_1(document: Mapping[str, Any]) -> dict[str, Any]:
    if "schema" in document:
        body = _violation(document)
    elif document.get("type") in ("checkpoint_violation", "error_report") and "payload" in document:
        payload = document["payload"]
        if document.get("status") != "failure" or not isinstance(payload, Mapping):
            raise MessageError("a report of version 1 has the status failure", path="$.status", value=document)
        body = _violation(payload)
    elif "summary" in document and set(document) <= _FINISH:
        given = {name: value for name, value in document.items() if name != "version" and value is not None}
        body = {"type": "task_completion", "status": "success", "payload": given}
    else:
        raise MessageError("no message of version 1, and it names no other", path="$.version", value=document)
    return {"version": 2, **body}


def _violation(report: Mapping[str, Any]) -> dict[str, Any]:
    if "text" in report:  # what could not be read was shown as it was
        body: dict[str, Any] = {"summary": report["text"]}
        return {"type": "error_report", "status": "failure", "payload": body}
    body = {name: value for name, value in report.items() if name not in ("schema", "status", "version")}
    return {
        "type": "checkpoint_violation",
        "status": "failure",
        "payload": {**body, "verdict": report.get("status", "red")},
    }


UPGRADES: Mapping[int, Callable[[Mapping[str, Any]], dict[str, Any]]] = {1: _from_1}
"""What makes a version into the next one."""
