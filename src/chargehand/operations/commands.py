"""Maps commands of the command line to routes, and a command's parameters to the route's arguments.

A command is named by its words. By default its route is the one that lists the command, and a parameter is the
argument of the same name. A client needs the routes and their arguments, but not their implementation: it reads
them from a file, since the routes themselves load the whole product.

`scripts/pages` writes that file, `operations.json`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from chargehand.core.codec import convert_to, decode_as
from chargehand.core.errors import UsageError

PREFIX = "/api/v1"
_ROUTES = Path(__file__).with_name("operations.json")
_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": tuple[str, ...],
    "object": dict[str, str],
}

_HERE = "it works on your machine, or in your checkout"
LOCAL_COMMANDS: Mapping[str, str] = {
    # commands without a route, with the reason
    **dict.fromkeys(("init", "doctor", "demo", "completion", "format", "exec", "sandbox setup"), _HERE),
    **dict.fromkeys(("up", "worker", "mcp", "gateway serve", "gateway record", "gateway replay"), _HERE),
    **dict.fromkeys(("project trust", "project untrust", "project setup", "project move"), _HERE),
    **dict.fromkeys(("project hook install", "project hook remove"), _HERE),
    **dict.fromkeys(("config get", "config list", "config unset", "config path", "config edit"), _HERE),
    "branch clean": _HERE,
    **dict.fromkeys(("bench check", "bench run", "bench resume"), _HERE),
    **dict.fromkeys(("bench list", "bench show", "bench compare", "bench export", "bench learn"), _HERE),
    "memory propose": "its agent is a command, and clients of a server choose configured agents only",
    "map": "it reads any commit of your checkout, and may index it for minutes",
    **dict.fromkeys(
        ("library add", "library update", "library list", "library search", "library remove"),
        "the library is a directory of this machine, and filling it takes minutes",
    ),
    **dict.fromkeys(("forge login", "forge logout", "forge list", "forge test", "forge watch"), _HERE),
    **dict.fromkeys(("forge hook add", "forge hook remove", "forge hook list"), _HERE),
    **dict.fromkeys(("secret set", "secret list", "secret remove", "secret check"), _HERE),
    **dict.fromkeys(("secret rotate", "secret explain", "config set", "model add", "policy allow"), _HERE),
    **dict.fromkeys(("git fetch", "git merge", "git rebase", "git commit", "git push", "action run"), _HERE),
    **dict.fromkeys(("gc", "store check", "store backup", "store restore", "store rebuild"), _HERE),
    "user reset-factors": "one person alone may do it only as the owner of the server's machine",
    # A path on the server's machine is useless to a client that cannot write there.
    "role path": "it names a place on the machine, to write files in",
    **dict.fromkeys(("login", "logout"), "it keeps a token on this machine"),
}


class OperationSignature(Struct, frozen=True, kw_only=True):
    """The facts about a route that a client needs: its address, and the JSON type of each of its `arguments`.

    `raw` says that it may answer with something other than a JSON document.
    """

    name: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    commands: tuple[str, ...]
    raw: bool
    arguments: Mapping[str, Literal["string", "integer", "number", "boolean", "array", "object"]]

    @property
    def path_names(self) -> tuple[str, ...]:
        """The arguments in the path."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    def read_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as they are sent: on a command line a number may be a text.

        Raises `UsageError` (`arguments_invalid`); the server checks arguments beyond their type.
        """
        read = {}
        for name, value in given.items():
            try:
                read[name] = convert_to(value, _TYPES[self.arguments[name]] | None, strict=False)
            except (KeyError, msgspec.ValidationError) as error:
                what = f"{name} = {value!r}: {error}" if name in self.arguments else f"there is no {name!r}"
                raise UsageError(
                    what, code="arguments_invalid", hint="`--help` shows the command's arguments"
                ) from error
        return read


class CommandCall(Struct, frozen=True, kw_only=True):
    """The mapping of a command to a route.

    `route` is its name, "" for the only route that lists the command. `when` are parameters of which at least one
    has to be given for this mapping. `names` maps parameters to arguments with other names, `fixed` are arguments
    that are always sent, `raw` those sent instead if a person reads the answer. `unsent` are parameters that only
    affect the handling of the answer.
    """

    route: str = ""
    when: tuple[str, ...] = ()
    names: Mapping[str, str] = {}
    fixed: Mapping[str, Any] = {}
    raw: Mapping[str, Any] = {}
    unsent: tuple[str, ...] = ()


# These apply to every command; a client that asks a server for all projects sends no project.
_NAMES = {"repo": "project"}
_UNSENT = frozenset({"out", "quiet", "verbose", "detach", "yes", "everywhere", "every"})
_CALLS: Mapping[str, tuple[CommandCall, ...]] = {
    "run": (
        CommandCall(names={"text": "request", "repo": "repo"}, unsent=("file", "idempotency_key", "break_at")),
    ),
    "mission list": (CommandCall(route="get_missions_list", names={"statuses": "status"}),),
    "mission log": (
        CommandCall(
            route="get_missions_mission_transcript", when=("transcript",), unsent=("transcript", "follow")
        ),
        CommandCall(route="get_missions_mission_log", unsent=("transcript", "follow")),
    ),
    "mission plan": (
        CommandCall(route="post_missions_mission_plan_start", when=("task",), unsent=("form",)),
        CommandCall(route="get_missions_mission_plan", unsent=("form", "task")),
    ),
    "mission report": (CommandCall(fixed={"format": "json"}, raw={"format": "markdown"}, unsent=("output",)),),
    "mission diff": (CommandCall(names={"checkpoint": "new"}, unsent=("stat",)),),
    "mission answer": (
        CommandCall(route="post_missions_mission_answer", when=("text",)),
        CommandCall(route="get_missions_mission_question", unsent=("text",)),
    ),
    "mission continue": (CommandCall(names={"text": "request"}),),
    "mission rollback": (
        CommandCall(route="get_missions_mission_rollback", when=("dry_run",), unsent=("dry_run",)),
        CommandCall(route="post_missions_mission_rollback", unsent=("dry_run",)),
    ),
    "checkpoint diff": (CommandCall(names={"a": "old", "b": "new"}, unsent=("stat",)),),
    "artifact show": (CommandCall(fixed={"format": "json"}, raw={"format": "raw"}),),
    "audit export": (CommandCall(unsent=("output",)),),
    "action log": (CommandCall(unsent=("follow",)),),
    "agent probe": (CommandCall(names={"name": "agent"}),),
    "model list": (
        CommandCall(route="get_catalogue", when=("everything", "provider"), unsent=("everything", "repo")),
        CommandCall(route="get_models", unsent=("everything", "provider")),
    ),
    "model show": (CommandCall(names={"name": "model"}),),
    "model probe": (CommandCall(names={"name": "model"}),),
    "role show": (CommandCall(names={"name": "role"}),),
    "config show": (CommandCall(names={"origin": "origins"}),),
    "knowledge import": (CommandCall(names={"name": "network"}, unsent=("file",)),),
    "knowledge show": (CommandCall(names={"name": "network"}),),
    "knowledge query": (CommandCall(names={"name": "network"}),),
    "knowledge update": (CommandCall(names={"name": "network"}, unsent=("file",)),),
    "knowledge export": (
        CommandCall(names={"name": "network"}, fixed={"format": "json"}, raw={"format": "ndjson"}),
    ),
    "knowledge remove": (CommandCall(names={"name": "network"}),),
    "policy show": (
        CommandCall(route="get_policy_facts", when=("facts",), unsent=("facts", "cedar", "repo")),
        CommandCall(route="get_policy", unsent=("facts", "cedar")),
    ),
    "policy why": (CommandCall(names={"every": "everything"}),),
    "token list": (CommandCall(route="get_tokens", fixed={"everybody": True}),),
    "token revoke": (CommandCall(names={"token_id": "token"}),),
    "user add": (CommandCall(unsent=("no_password", "password_stdin")),),
    "user role": (CommandCall(names={"name": "user"}),),
    "user disable": (CommandCall(names={"name": "user"}, fixed={"disabled": True}),),
    "user enable": (CommandCall(names={"name": "user"}, fixed={"disabled": False}),),
    "user password": (CommandCall(route="patch_users_user", names={"name": "user"}, unsent=("password_stdin",)),),
    "user remove": (CommandCall(names={"name": "user"}),),
    "user link": (CommandCall(names={"name": "user"}),),
}


@functools.cache
def known_operations() -> Mapping[str, OperationSignature]:
    """Return all routes by name."""
    return {route.name: route for route in decode_as(_ROUTES.read_bytes(), tuple[OperationSignature, ...])}


def served_commands() -> frozenset[str]:
    """Return the commands with a route."""
    return frozenset(command for route in known_operations().values() for command in route.commands)


def find_call(command: str, given: Iterable[str]) -> tuple[OperationSignature, CommandCall]:
    """Return the route for a command with these parameters `given`, and the mapping."""
    known = set(given)
    call = next(each for each in _CALLS.get(command, (CommandCall(),)) if not each.when or known & set(each.when))
    if call.route:
        return known_operations()[call.route], call
    (route,) = (each for each in known_operations().values() if command in each.commands)
    return route, call


def call_arguments(
    route: OperationSignature, call: CommandCall, parameters: Mapping[str, Any], *, for_person: bool = False
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a command's parameters as the route's arguments, and the names of those that it does not take."""
    made: dict[str, Any] = {**call.fixed, **(call.raw if for_person else {})}
    untaken = []
    for name, value in parameters.items():
        argument = call.names.get(name) or _NAMES.get(name, name)
        if name in call.unsent or (name in _UNSENT and name not in call.names):
            continue
        if argument in route.arguments:
            if value is not None and value != ():
                made[argument] = str(value) if hasattr(value, "__fspath__") else value
        else:
            untaken.append(name)
    if parameters.get("everywhere"):
        made.pop("project", None)
    return made, tuple(untaken)
