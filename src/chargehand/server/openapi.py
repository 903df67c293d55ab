"""The table of all routes, and the OpenAPI 3.1 document generated from it and from the routes' records.

`python -m chargehand.server.openapi` prints it.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from typing import Any

from chargehand import __version__
from chargehand.core.codec import json_schema
from chargehand.identity.documents import OpenedSessionDocument
from chargehand.operations.operation import PREFIX, Accepted, FeedQuery, Operation, RestArguments, StreamedContent
from chargehand.operations.table import OPERATIONS
from chargehand.policy.access import ACCESS_RULES
from chargehand.reports.story import EventLine, TerminalRecord
from chargehand.server._sessions import LoginBody

_JSON = "application/json"
_ERRORS = {
    "400": "The arguments do not match the route's schema.",
    "401": "A session or a token is needed.",
    "403": "The caller may not do this, or the request is not from our page.",
    "404": "Nothing has that name.",
    "409": "It cannot be done now; the code says why.",
    "412": "It has changed since: read it again.",
    "422": "The request itself is wrong.",
    "429": "Too many requests.",
    "503": "The state directory, or the machine, cannot do it now.",
}
_ERROR_SCHEMA = {
    "type": "object",
    "description": "The error: a stable code, a message with the value, and a remedy.",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "hint"],
            "properties": {name: {"type": "string"} for name in ("code", "message", "hint")},
        }
    },
}
_ERROR_EXAMPLE = {
    "error": {
        "code": "not_found",
        "message": "there is no mission 'm-4'",
        "hint": "`chargehand mission list` shows them",
    }
}


@functools.cache
def openapi_document() -> dict[str, Any]:
    """Return the document; it depends only on this program."""
    schemas: dict[str, Any] = {"Error": _ERROR_SCHEMA}
    paths: dict[str, Any] = {}
    for route in OPERATIONS:
        paths.setdefault(PREFIX + route.path, {})[route.method.lower()] = _operation(route, schemas)
    _add_session(paths, schemas)
    _add_feed(paths, schemas)
    responses = {
        status: {
            "description": about,
            "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}, "example": _ERROR_EXAMPLE}},
        }
        for status, about in _ERRORS.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Chargehand",
            "version": __version__,
            "description": "Missions of coding agents: start, follow, steer, review and promote them. A "
            f"mission's output comes by WebSocket, {PREFIX}/missions/{{mission}}/terminal: text frames of a "
            "TerminalRecord. A page names the protocols chargehand.terminal and chargehand.session.SECRET.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "security": [{"token": []}],
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "responses": responses,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `chargehand token create`, or the secret of a session.",
                },
            },
        },
    }


def _operation(route: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    rule = ACCESS_RULES[route.action]
    commands = ", ".join(f"`chargehand {command}`" for command in route.commands)
    about = f"Needs the role {rule.role} and the scope {rule.scope}." + (f" Like {commands}." if commands else "")
    responses: dict[str, Any] = {str(route.status): _result(route, schemas)}
    if route.method == "GET":
        responses["304"] = {"description": "The client has it already: its `If-None-Match` names this content."}
    if route.may_take_long:
        responses["202"] = {
            "description": "It continues; the mission's events show the outcome.",
            "content": {_JSON: {"schema": _reference(Accepted, schemas)}},
        }
    parameters = list(_parameters(route.takes, route.path_names, schemas, in_body=route.method != "GET"))
    if route.method == "PUT":
        tag = {"type": "string", "description": "The ETag of the content to replace, instead of `revision`."}
        parameters.append({"name": "If-Match", "in": "header", "required": False, "schema": tag})
    operation = {
        "operationId": route.name,
        "summary": route.summary,
        "description": about,
        "tags": [route.path.split("/")[1]],
        "parameters": parameters,
        "responses": responses | _failures(*(each for each in _ERRORS if each != "412" or route.method == "PUT")),
    }
    body = _body(route.takes, route.path_names, schemas)
    if route.method in ("POST", "PUT", "PATCH") and body["properties"]:
        operation["requestBody"] = {"required": bool(body["required"]), "content": {_JSON: {"schema": body}}}
    return operation


def _result(route: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    if route.gives is StreamedContent:
        return {"description": "Its lines.", "content": {route.raw: {"schema": {"type": "string"}}}}
    content: dict[str, Any] = {_JSON: {"schema": _reference(route.gives, schemas)}}
    if route.raw:
        content[route.raw] = {"schema": {"type": "string"}}
    headers = {"ETag": {"schema": {"type": "string"}, "description": "Identifies this content."}}
    return {"description": " ".join((route.gives.__doc__ or "").split()), "headers": headers, "content": content}


def _reference(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a reference to a record's schema, adding that and all schemas that it references to `schemas`."""
    own, parts = json_schema(kind)
    schemas |= _with_component_references(parts)
    moved: dict[str, Any] = _with_component_references(own)
    return moved


def _with_component_references(value: Any) -> Any:
    """Return a schema with its references pointing into the document."""
    if isinstance(value, dict):
        return {
            key: item.replace("#/$defs/", "#/components/schemas/")
            if key == "$ref"
            else _with_component_references(item)
            for key, item in value.items()
        }
    return [_with_component_references(each) for each in value] if isinstance(value, list) else value


def _parameters(
    kind: type[RestArguments], in_path: tuple[str, ...], schemas: dict[str, Any], *, in_body: bool
) -> Iterator[dict[str, Any]]:
    own, parts = json_schema(kind)
    name = own["$ref"].rpartition("/")[2]
    schemas |= _with_component_references({key: part for key, part in parts.items() if key != name})
    for field, schema in _with_component_references(parts[name]["properties"]).items():
        if field in in_path:
            yield {"name": field, "in": "path", "required": True, "schema": schema}
        elif not in_body:
            required = field in parts[name].get("required", ())
            yield {"name": field, "in": "query", "required": required, "schema": schema}


def _body(kind: type[RestArguments], in_path: tuple[str, ...], schemas: dict[str, Any]) -> dict[str, Any]:
    own, parts = json_schema(kind)
    name = own["$ref"].rpartition("/")[2]
    schemas |= _with_component_references({key: part for key, part in parts.items() if key != name})
    whole = _with_component_references(parts[name])
    return {
        "type": "object",
        "description": " ".join(whole.get("description", "").split()),
        "properties": {field: schema for field, schema in whole["properties"].items() if field not in in_path},
        "required": [field for field in whole.get("required", ()) if field not in in_path],
        "additionalProperties": False,
    }


def _add_session(paths: dict[str, Any], schemas: dict[str, Any]) -> None:
    schema = _reference(OpenedSessionDocument, schemas)
    opened = {"description": "The session and its secret.", "content": {_JSON: {"schema": schema}}}
    paths[f"{PREFIX}/session"] |= {
        "post": {
            "operationId": "post_session",
            "summary": "Log in with a code of `chargehand up`, or with a name and password.",
            "tags": ["session"],
            "security": [],
            "requestBody": {"required": True, "content": {_JSON: {"schema": _body(LoginBody, (), schemas)}}},
            "responses": {"200": opened} | _failures("400", "401", "403", "409", "422", "429", "503"),
        },
        "delete": {
            "operationId": "delete_session",
            "summary": "Log out.",
            "tags": ["session"],
            "responses": {"204": {"description": "The session has ended."}}
            | _failures("401", "403", "429", "503"),
        },
    }


def _add_feed(paths: dict[str, Any], schemas: dict[str, Any]) -> None:
    _reference(EventLine, schemas)
    _reference(TerminalRecord, schemas)  # OpenAPI cannot describe its WebSocket: see the description
    stream = {"description": "The stream.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    paths[f"{PREFIX}/events"] = {
        "get": {
            "operationId": "get_events",
            "summary": "Follow the lines of all logs as they arrive.",
            "description": "Server-sent events: `id` is a position, to continue from with `Last-Event-ID` or "
            "`after`; the data of a `message` is an EventLine. `reset` says that the log has no such position.",
            "tags": ["events"],
            "parameters": [
                *_parameters(FeedQuery, (), schemas, in_body=False),
                {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"}},
            ],
            "responses": {"200": stream} | _failures("400", "401", "403", "404", "422", "429", "503"),
        }
    }


def _failures(*statuses: str) -> dict[str, Any]:
    return {status: {"$ref": f"#/components/responses/{status}"} for status in statuses}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(openapi_document(), indent=1) + "\n")
