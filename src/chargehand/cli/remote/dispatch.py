"""Runs one command on a server: maps its parameters to a route's arguments and prints the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from chargehand import __version__
from chargehand.cli.remote import following, rendering
from chargehand.cli.remote.connection import RemoteAnswer, ServerConnection, check_url
from chargehand.cli.remote.request import RemoteRequest
from chargehand.core.codec import convert_to
from chargehand.core.errors import ChargehandError, RefusedError, UsageError
from chargehand.operations.commands import LOCAL_COMMANDS
from chargehand.reports.reading import StateReader

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output

_GIVEN = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT)
_LISTED = 20
_PAGE = 500
_ENDS = {"done": 0, "waiting": 3, "timed_out": 4}


def run_remotely(context: click.Context, parameters: Mapping[str, Any], *, server: str, insecure: bool) -> int:
    """Run the command of a context on a server, and return its exit code.

    Raises `UsageError` (`command_local`, `option_local`), `RefusedError` (`login_needed`), and the errors of
    `ServerConnection`.
    """
    command = context.command_path.partition(" ")[2]
    if isinstance(context.command, click.Group):  # without a subcommand, a group is its `list`
        command += " list"
    out: Output = parameters["out"]
    if command in LOCAL_COMMANDS:
        raise UsageError(
            f"`chargehand {command}` cannot be done on a server: {LOCAL_COMMANDS[command]}",
            code="command_local",
            hint="run it on the server's machine; here: chargehand --server '' …, or unset CHARGEHAND_SERVER",
        )
    url = check_url(server, insecure=insecure)
    with StateReader.open() as reader:
        token = reader.server_token(url)
    if token is None:
        raise RefusedError(
            f"no token for {url} is stored here",
            code="login_needed",
            hint=f"make one there (chargehand token create NAME), then: chargehand login {url}",
        )
    given = {name for name in parameters if context.get_parameter_source(name) in _GIVEN}
    with ServerConnection(url, token) as connection:
        request = RemoteRequest(connection, command, parameters, given, out)
        handler = _HANDLERS.get(command)
        try:
            # Most commands send one request and print the answer.
            return _print(request, request.ask()) if handler is None else handler(request)
        except ChargehandError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, msgspec.MsgspecError) as error:
            if connection.version == __version__:
                raise  # this is our own fault
            raise connection.version_error("its answer cannot be read here") from error


def _print(request: RemoteRequest, answer: RemoteAnswer) -> int:
    out = request.out
    if not answer.is_json:
        out.raw(answer.content)
        return 0
    document = answer.document
    out.document(document)
    options = request.parameters
    if not out.as_json:
        match request.command:
            case "mission plan" if not options["task"]:
                rendering.show_plan(out, document, form=options["form"])
            case "mission diff" | "checkpoint diff":
                rendering.show_difference(out, document)
            case "policy show":
                rendering.show_rules(out, document, cedar=options["cedar"])
            case "token create":
                rendering.show_secret(out, document)
            case _ if (
                isinstance(document, dict)
                and {"failures", "next", "rolled_back"} <= document.keys()
                and ("verdicts" not in document)
            ):
                rendering.show_mission(out, document)
            case _:
                rendering.show_document(out, document)
    return _exit_code(request, document)


def _exit_code(request: RemoteRequest, document: Any) -> int:
    match request.command:
        case "audit verify" | "audit provenance":
            return 0 if document["ok"] else 1
        case "role list" | "team list" | "alerts test":
            return 1 if any(each.get("problem") for each in next(iter(document.values()))) else 0
        case "agent probe":
            return 0 if all(each["fine"] for each in document["agents"]) else 1
        case "model probe":
            return 0 if document["models"] and all(each["fine"] for each in document["models"]) else 1
        case "policy test":
            return {"allow": 0, "ask": 3}.get(document["effect"], 1)
        case "mission promote":
            return following.mission_exit_code(request, document)
        case "mission rollback" if not request.parameters["dry_run"]:
            exported = document["export"]
            return 0 if exported is not None and exported["state"] == "done" else 3
        case "mission answer" if request.parameters["text"] is None:
            return 3
        case "action cancel":
            return 0 if document["status"] in ("done", "failed", "cancelled", "timed_out", "lost") else 1
    return 0


# --- commands with parameters that are not plain arguments


def _list_missions(request: RemoteRequest) -> int:
    limit = request.parameters["limit"]
    if limit is None:
        limit = 0 if request.out.as_json else _LISTED
    document = request.ask(limit=limit).document
    request.out.document(document)
    if not request.out.as_json:
        from chargehand.cli.mission import show_listed
        from chargehand.reports.documents import MissionListDocument

        chosen = bool(request.parameters["statuses"] or request.parameters["since"])
        show_listed(request.out, convert_to(document, MissionListDocument), chosen=chosen)
    return 0


def _compare(request: RemoteRequest) -> int:
    return _print(request, request.ask(patch=not request.parameters["stat"]))


def _report(request: RemoteRequest) -> int:
    output: Path | None = request.parameters["output"]
    answer = request.ask()
    # As the command itself writes it: one line of ASCII JSON.
    content = request.out.encode(answer.document) if answer.is_json else answer.content
    if output is None:
        request.out.raw(content)
        return 0
    named = following.find_outcome(request, request.parameters["mission"])["mission"]
    return _write(request, output, [content], missions=(named,))


def _export(request: RemoteRequest) -> int:
    every, mission, output = (request.parameters[name] for name in ("every", "mission", "output"))
    if every == (mission is not None):
        raise UsageError("either a mission or --all has to be given", hint="give either MISSION or --all")
    pieces = request.stream()
    if output is not None:
        return _write(request, output, pieces, missions=())
    for piece in pieces:
        request.out.raw(piece)
    return 0


def _write(request: RemoteRequest, output: Path, pieces: Any, *, missions: tuple[str, ...]) -> int:
    from chargehand.app.storage import AuditExport, write_new_file

    size = write_new_file(output, pieces)
    if not missions:  # its first line names them
        with output.open("rb") as file:
            missions = tuple(json.loads(file.readline())["missions"])
    request.out.document(AuditExport(output=str(output), missions=missions, bytes=size))
    request.out.text(f"Wrote {output} ({size} bytes).")
    return 0


def _send_file(request: RemoteRequest) -> int:
    from chargehand.app.knowledge import read_file

    return _print(request, request.ask(content=read_file(request.parameters["file"])))


def _verify(request: RemoteRequest) -> int:
    head = request.parameters["head"]
    return _print(request, request.ask(head=None if head is None else head.read().decode(errors="replace")))


def _show_judgements(request: RemoteRequest) -> int:
    for page in request.pages():
        for logged in page["judgements"]:
            request.out.document(logged)
            judged = logged["judged"]
            request.out.text(f"{logged['seq']:>4}  {judged['effect']:<5}  {judged['kind']}: {judged['text']}")
            request.out.text(f"      rule {judged['rule']}: {judged['reason']}")
    counts = ", ".join(f"{count} {effect}" for effect, count in sorted(page["counts"].items()))
    request.out.text(f"{page['mission']}: {counts or 'nothing was judged'}")
    return 0


def _show_access(request: RemoteRequest) -> int:
    """Print the newest lines of the access log, which the server returns in pages."""
    wanted, before = request.parameters["limit"], None
    entries: list[Any] = []
    while True:
        page = request.ask(limit=min(_PAGE, wanted - len(entries)), before=before).document
        entries += page["entries"]
        before = page["next"]
        if before is None or len(entries) >= wanted:
            break
    request.out.document({"entries": entries, "next": before})
    if not request.out.as_json:
        rendering.show_document(request.out, {"entries": entries[::-1]})
    return 0


def _with_password(request: RemoteRequest) -> int:
    from chargehand.cli.account import read_password

    options = request.parameters
    if options.get("no_password") and options["password_stdin"]:
        raise click.UsageError("--no-password and --password-stdin were both given")
    password = None
    if not options.get("no_password"):
        password = read_password(options["name"], from_stdin=options["password_stdin"])
    return _print(request, request.ask(password=password))


def _show_project_log(request: RemoteRequest) -> int:
    for page in request.pages():
        for event in page["events"]:
            request.out.document(event)
            request.out.text(f"{event['seq']:>4}  {event['time']}  {event['type']}")
    return 0


# --- actions


def _show_output(request: RemoteRequest) -> int:
    status = following.follow_action(request, request.parameters["action"], to_end=request.parameters["follow"])
    return 0 if not request.parameters["follow"] else _end_action(request, status)


def _answer_action(request: RemoteRequest) -> int:
    answered = request.ask().document
    if request.parameters["answer"] == "no":
        request.out.document(answered)
        request.out.text(f"{answered['kind']} {answered['status']}")
        return _ENDS.get(answered["status"], 1)
    request.out.document({"action": answered["action"], "status": "queued"})
    if request.parameters["detach"]:
        request.out.text(answered["action"])
        return 0
    return _end_action(request, following.follow_action(request, answered["action"], to_end=True))


def _end_action(request: RemoteRequest, action: str) -> int:
    document = request.ask_route("get_actions_action", action=action).document
    request.out.document(document)
    request.out.text(f"{document['kind']} {document['status']}")
    for reason in document["reasons"]:
        request.out.text(f"because   {reason['message']}")
    return _ENDS.get(document["status"], 1)


_HANDLERS: Mapping[str, Callable[[RemoteRequest], int]] = {
    "run": following.start_mission,
    "mission continue": following.continue_mission,
    "mission fork": following.fork_mission,
    "mission watch": following.watch_mission,
    "mission log": following.show_log,
    "mission list": _list_missions,
    "mission diff": _compare,
    "checkpoint diff": _compare,
    "mission report": _report,
    "audit export": _export,
    "audit verify": _verify,
    "knowledge import": _send_file,
    "knowledge update": _send_file,
    "policy why": _show_judgements,
    "user log": _show_access,
    "user add": _with_password,
    "user password": _with_password,
    "token create": lambda request: _print(request, request.ask(scopes=request.parameters["scopes"] or ("read",))),
    "project log": _show_project_log,
    "action log": _show_output,
    "action answer": _answer_action,
}
