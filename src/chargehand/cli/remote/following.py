"""Missions on a server: start them, follow their feed until they settle, read their logs in pages."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from chargehand.cli.remote import rendering
from chargehand.cli.terminal.failures import INTERRUPTED, show_error
from chargehand.cli.terminal.output import local_time
from chargehand.core.codec import convert_to
from chargehand.core.errors import InfrastructureError, UsageError

if TYPE_CHECKING:
    from chargehand.cli.remote.request import RemoteRequest

_PAGE = 500
_LOOK_SECONDS = 0.5


def start_mission(request: RemoteRequest) -> int:
    """Start a mission in a project of the server, and follow it unless `--detach` is given."""
    from chargehand.app.runs import request_text
    from chargehand.configuration.run_options import RunRequest

    options = request.parameters
    text = request_text(RunRequest(text=options["text"], file=options["file"]))
    if options["repo"] is None:
        raise UsageError(
            "a server is in no repository: in which project is the mission?",
            code="project_needed",
            hint="name it: --repo PROJECT, as `chargehand project list` shows it",
        )
    key = options["idempotency_key"]
    if key is not None and not options["detach"]:
        raise UsageError("--idempotency-key needs --detach", hint="add --detach")
    # The server stores the key with the mission: a resent request does not start a second one.
    stops = tuple(filter(None, (each.strip() for each in (options["break_at"] or "").split(","))))
    made = request.ask(request=text, key=key or uuid.uuid4().hex, break_at=stops or None)
    return _follow_started(request, made.document)


def continue_mission(request: RemoteRequest) -> int:
    """Continue a mission with a follow-up request, and follow it."""
    return _follow_started(request, request.ask().document)


def fork_mission(request: RemoteRequest) -> int:
    """Start a mission from one of another's replies, and follow it."""
    from chargehand.app.runs import request_text
    from chargehand.configuration.run_options import RunRequest

    reply = request.parameters["reply"]
    if reply is not None and reply.startswith("@"):
        reply = request_text(RunRequest(file=reply[1:]))
    return _follow_started(request, request.ask(reply=reply).document)


def watch_mission(request: RemoteRequest) -> int:
    """Follow a mission until it is settled."""
    mission = find_outcome(request, request.parameters["mission"])["mission"]
    with_lines = request.out.detail != "result"
    if not _follow(request, mission, with_lines=with_lines, with_documents=True):
        return _leave(request, mission)
    if not request.out.as_json:
        rendering.show_mission(request.out, find_outcome(request, mission))
    return 0


def show_log(request: RemoteRequest) -> int:
    """Print a mission's log or its conversation; with --follow, new events too."""
    out, options = request.out, request.parameters
    if options["transcript"]:
        for page in request.pages():
            for entry in page["lines"]:
                out.document(entry)
                by = " ".join(filter(None, (entry["speaker"], entry["model"], entry["tool"])))
                out.text(f"{entry['reply'] or entry['attempt']}  {by}", bold=True)
                out.text("\n".join(f"    {line}" for line in entry["text"].splitlines()))
        return 0
    mission = find_outcome(request, options["mission"])["mission"]
    if options["follow"]:
        return 0 if _follow(request, mission, with_documents=True) else _leave(request, mission)
    for _ in _new_lines(request, mission, 0, with_lines=True, with_documents=True):
        pass
    return 0


def mission_exit_code(request: RemoteRequest, document: dict[str, Any]) -> int:
    """Return the exit code for a mission's result."""
    from chargehand.cli.terminal.rendering import details_exit_code
    from chargehand.reports.documents import MissionDetails

    details = request.ask_route("get_missions_mission", mission=document["mission"]).document
    return details_exit_code(convert_to(details, MissionDetails))


def follow_action(request: RemoteRequest, action: str, *, to_end: bool) -> str:
    """Print an action's output, with `to_end` until it ends or asks; return its id."""
    after = 0
    while True:
        page = request.ask_route("get_actions_action_log", action=action, after=after).document
        for line in page["lines"]:
            request.out.document(line)
            if not request.out.as_json:
                content = line["line"].encode("utf-8", "surrogateescape") + b"\n"
                request.out.raw(content, err=line["stream"] == "stderr")
        after = page["next"]
        if not to_end or request.out.closed or page["status"] not in ("queued", "running"):
            return str(page["action"])
        time.sleep(_LOOK_SECONDS)


def _follow_started(request: RemoteRequest, document: dict[str, Any]) -> int:
    out, mission, url = request.out, document["mission"], request.connection.url
    if request.parameters["detach"]:
        out.document(document)
        out.text(f"mission   {mission}")
        out.text(f"The server runs it. Follow it with: chargehand --server {url} mission watch {mission}")
        return 0
    if out.detail != "result":
        out.text(f"mission   {mission}")
    if not _follow(request, mission, with_lines=out.detail != "result"):
        return _leave(request, mission)
    ended = find_outcome(request, mission)
    out.document(ended)
    if not out.as_json:
        rendering.show_mission(out, ended)
    return mission_exit_code(request, ended)


def _follow(
    request: RemoteRequest, mission: str, *, with_lines: bool = True, with_documents: bool = False
) -> bool:
    """Show new events of a mission until it is settled; return `False` if a person interrupted."""
    seen = 0
    try:
        # Open the feed first: it reports every later event.
        for signal in request.connection.follow(mission):
            if signal.name == "message" and signal.data.get("seq", 0) <= seen:
                continue
            try:
                for last, settled in _new_lines(
                    request, mission, seen, with_lines=with_lines, with_documents=with_documents
                ):
                    seen = last
                    if settled:
                        return True
            except InfrastructureError as error:
                # The feed detects whether the server comes back.
                request.out.notice(f"{error.message}; waiting for it.")
            if request.out.closed:
                return True
    except KeyboardInterrupt:
        return False
    return False


def _new_lines(
    request: RemoteRequest, mission: str, after: int, *, with_lines: bool, with_documents: bool
) -> Iterator[tuple[int, bool]]:
    """Print a log's lines after one; yield each page's last line number and whether the mission is settled."""
    out, more = request.out, True
    while more and not out.closed:
        page = request.ask_route("get_missions_mission_log", mission=mission, after=after, limit=_PAGE).document
        events = page["events"]
        if with_documents:
            for event in events:
                out.document(event)
        if with_lines and not out.as_json and events:
            told = request.ask_route(
                "get_missions_mission_events", mission=mission, after=after, limit=len(events)
            ).document
            for line in told["events"]:
                step, time_ = line["step"] or "", local_time(line["time"], seconds=True)
                if line["text"] or request.command == "mission log":
                    out.text(f"{line['seq']:>4}  {time_}  {step:<11}  {line['type']:<20}  {line['text']}")
        after = events[-1]["seq"] if events else after
        more = page["next"] is not None
        yield after, page["settled"] and not more


def find_outcome(request: RemoteRequest, mission: str) -> dict[str, Any]:
    """Return a mission's result, as commands that change a mission print it."""
    found: dict[str, Any] = request.ask_route("get_missions_mission_outcome", mission=mission).document
    return found


def _leave(request: RemoteRequest, mission: str) -> int:
    """Report that a mission continues after its follower was interrupted."""
    chargehand = f"chargehand --server {request.connection.url} mission"
    hint = f"follow it again: {chargehand} watch {mission}\nend it: {chargehand} cancel {mission}"
    show_error("interrupted", f"interrupted; mission {mission} continues", hint, as_json=request.out.as_json)
    return INTERRUPTED
