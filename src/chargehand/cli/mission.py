"""`chargehand mission …`: look at missions, and decide on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chargehand.cli.terminal.options import (
    CommandGroup,
    ContinueCommand,
    TextCommand,
    complete_missions,
    detail_options,
    follow_up_options,
    json_option,
    mission_argument,
    named_mission_argument,
    pager_option,
    task_option,
)

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output
    from chargehand.core.events import Event
    from chargehand.missions.waiting import Addressee
    from chargehand.reports.documents import MissionListDocument

_TITLE_CHARACTERS, _LISTED_MISSIONS = 48, 20
_STATUSES = (
    *("planned", "running", "waiting", "paused", "promoted", "rolled-back", "refused", "failed", "exhausted"),
    *("cancelled", "discarded"),
)


@click.group(cls=CommandGroup)
def mission() -> None:
    """Look at missions, and decide on them.

    MISSION is an id, its beginning or its end, or 'last' for the newest one.
    """


@mission.command("list")
@click.option(
    "--repo", "--project", "repo", type=click.Path(path_type=Path), help="The missions of this repository."
)
@click.option("--all", "everywhere", is_flag=True, help="List the missions of all projects.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    metavar="STATUS",
    type=click.Choice(_STATUSES),
    help="Only missions with this status, such as refused or rolled-back.",
)
@click.option("--since", metavar="WHEN", help="Only missions created since then: 7d, 12h or a date (UTC).")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help="At most this many, the newest, with their tasks; 0 for all (default: 20; JSON: all).",
)
@json_option
def list_(limit: int | None, out: Output, **options: Any) -> None:
    """List missions, the newest first."""
    from chargehand.app.missions import ListRequest, list_missions
    from chargehand.reports.reading import StateReader

    if limit is None:
        limit = 0 if out.as_json else _LISTED_MISSIONS
    request = ListRequest(repository=options.pop("repo"), limit=limit, **options)
    with StateReader.open() as reader:
        found = list_missions(reader, request)
    out.document(found)
    show_listed(out, found, chosen=bool(request.statuses or request.since))


def show_listed(out: Output, found: MissionListDocument, *, chosen: bool) -> None:
    """Write missions as a table, the newest first; `chosen` says whether the list is filtered."""
    from chargehand.app.missions import listed_status
    from chargehand.cli.terminal.output import count_text, local_time, status_colour

    if not found.missions:
        out.text("No such missions." if chosen else 'No missions yet. Start one: chargehand run "TEXT"')
        return
    listed = {each.mission for each in found.missions}
    tree = []
    # The newest mission first; missions of tasks follow below their coordinator, the oldest first.
    missions = found.missions
    if missions[0].created >= missions[-1].created:  # an older server has the oldest first
        missions = missions[::-1]
    for each in reversed(missions):
        if each.parent not in listed:
            tree.append((each, ""))
            tree += [(child, "  ") for child in missions if child.parent == each.mission]
    rows = []
    for each, indent in tree:
        title = (each.request or "").strip().partition("\n")[0]
        title = title if len(title) <= _TITLE_CHARACTERS else title[: _TITLE_CHARACTERS - 1] + "…"
        status = listed_status(each) + (", damaged" if each.damaged else "")
        if (
            each.tasks is not None
            and each.tasks.total
            and each.status not in ("promoted", "refused", "cancelled", "discarded")
        ):
            status += f" {each.tasks.ended}/{each.tasks.total}"
        title = f"{each.task}: {title}" if each.task else title
        rows.append((indent + each.mission, status, local_time(each.created), title, each.branch or "-"))
    headers = ("MISSION", "STATUS", "CREATED", "REQUEST", "BRANCH")
    needed = sum(max(map(len, column)) + 2 for column in zip(headers, *rows, strict=True)) - 2
    # The branch repeats the words of the request, so it is omitted if the terminal is too narrow.
    shown = len(headers) - (out.width is not None and out.width < needed)
    colours = [status_colour(listed_status(each)) for each, _ in tree]
    out.table(headers[:shown], [row[:shown] for row in rows], colours=colours, coloured=1)
    for each in reversed(missions):
        if each.waits is not None:
            out.text(f"{each.mission} waits: {each.waits.message}")
    if found.left_out:
        out.text(f"{count_text(found.left_out, 'older mission')} not listed; --limit 0 lists all.")


@mission.command()
@mission_argument
@json_option
def show(mission: str, out: Output) -> None:
    """Show everything about a mission: request, base, attempts, verdicts, reasons, export, cost."""
    from chargehand.cli.terminal.rendering import show_details
    from chargehand.reports.reading import StateReader
    from chargehand.reports.showing import show_mission

    with StateReader.open() as reader:
        state, details = show_mission(reader, mission)
    out.document(details)
    if not out.as_json:
        show_details(out, state, details)


@mission.command()
@mission_argument
@json_option
def forecast(mission: str, out: Output) -> None:
    """Forecast a mission's success, cost and time.

    Of a plan, all its unfinished tasks are simulated. Of a mission that has ended, the forecast from its start is
    compared with what happened. It needs `decisions.learned`.
    """
    from chargehand.app.forecasts import forecast_mission
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        found = forecast_mission(reader, mission)
    out.document(found)
    for line in found.summary:
        out.text(line)


@mission.command()
@mission_argument
@click.option("--output", type=click.Path(path_type=Path), help="Write to this new file (default: stdout).")
@click.option("--otlp", is_flag=True, help="Its trace instead: spans as OTLP in JSON, for a collector.")
@json_option
def report(mission: str, output: Path | None, otlp: bool, out: Output) -> None:
    """Report what was asked, done, refused, checked, decided and spent, and how to undo it, as Markdown.

    With --json, write one document instead. The report can be filed or sent: text from agents and files cannot be
    mistaken for anything else.
    """
    from chargehand.app.storage import AuditExport, write_new_file
    from chargehand.reports.reading import StateReader
    from chargehand.reports.showing import report_mission
    from chargehand.reports.statistics import mission_trace

    with StateReader.open() as reader:
        made, markdown = report_mission(reader, mission)
        trace = mission_trace(reader, made.mission) if otlp else None
    content = out.encode(trace or made) if otlp or out.as_json else markdown.encode()
    if output is None:
        out.raw(content)
        return
    size = write_new_file(output, [content])
    out.document(AuditExport(output=str(output), missions=(made.mission,), bytes=size))
    out.text(f"Wrote the report on {made.mission} to {output} ({size} bytes).")


@mission.command()
@mission_argument
@click.option("--dot", "form", flag_value="dot", help="As a graph in the language of Graphviz.")
@click.option("--mermaid", "form", flag_value="mermaid", help="As a graph in the language of Mermaid.")
@click.option("--set", "file", metavar="FILE", help="Go on with the plan in this file instead.")
@click.option("--start", "task", metavar="TASK", help="Start a held task now, despite its collision.")
@json_option
def plan(mission: str, form: str | None, file: str | None, task: str | None, out: Output) -> None:
    """Show a mission's tasks, what each waits for and who did it, or change them while it runs."""
    from chargehand.cli.plan import print_plan, set_plan, start_task

    if file is not None and task is not None:
        raise click.UsageError("--set and --start do not go together: set the plan first, then start the task")
    if task is not None:
        start_task(out, mission, task)
    elif file is not None:
        set_plan(out, mission, file)
    else:
        print_plan(out, mission, form)


@mission.command()
@mission_argument
@detail_options
@json_option
def watch(mission: str, out: Output) -> None:
    """Follow a mission until it ends or needs a person; JSON lines with --json."""
    from chargehand.app.missions import start_needed_worker
    from chargehand.cli.terminal.following import follow
    from chargehand.cli.terminal.menu import watch_menu
    from chargehand.cli.terminal.rendering import show_header, show_result
    from chargehand.reports.outcome import explain_failures
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        found = reader.find_mission(mission)
        # Without a worker the mission never settles, and this command would follow it forever.
        start_needed_worker(reader, found)
        if out.detail != "result" and not out.as_json:
            show_header(out, reader.mission_reader.state(found))
        with watch_menu(out, found) as menu:
            state = follow(reader, out, found, menu)
        if state is not None and not out.as_json:
            show_result(out, state, explain_failures(reader.store, state))


@mission.command()
@mission_argument
@click.option("--follow", is_flag=True, help="Continue until the mission is settled.")
@click.option("--transcript", is_flag=True, help="Show the agent's conversation instead.")
@json_option
def log(mission: str, follow: bool, transcript: bool, out: Output) -> None:
    """Show a mission's events, or the conversation behind them; JSON lines with --json."""
    from chargehand.app.missions import follow_mission, read_events, read_transcript
    from chargehand.cli.terminal.output import local_time
    from chargehand.core.events import Event
    from chargehand.core.records import Reason
    from chargehand.reports.documents import event_step
    from chargehand.reports.reading import StateReader
    from chargehand.reports.story import describe_event

    with StateReader.open() as reader:
        if transcript:
            for entry in read_transcript(reader, mission):
                out.document(entry)
                headings = _REPORTED_HEADINGS if entry.own_word else _HEADINGS
                out.text(headings[entry.speaker].format(entry=entry), bold=True)
                out.text("\n".join(f"    {line}" for line in entry.text.splitlines()))
            return
        found = reader.find_mission(mission)
        for seen in follow_mission(reader, found) if follow else read_events(reader, found):
            if isinstance(seen, Event):
                step = event_step(seen)
                text = describe_event(seen)
                time = local_time(seen.time, seconds=True)
                _show_event(out, seen, f"{seen.seq:>4}  {time}  {step:<11}  {seen.type:<20}  {text}")
            elif isinstance(seen, Reason):
                out.text(f"          waits: {seen.message}")
            if out.closed:
                break


def _show_event(out: Output, event: Event, line: str) -> None:
    from chargehand.reports.documents import event_document

    out.document(event_document(event))
    out.text(line)


_HEADINGS = {
    "person": "{entry.attempt}  to the agent",
    "model": "{entry.reply}  {entry.model}",
    "call": "{entry.reply}  {entry.model} calls {entry.tool}",
    "result": "{entry.reply}  result of {entry.tool}",
}
# For entries that only the agent itself reports: calls of another program bypass Chargehand.
_REPORTED_HEADINGS = {
    "agent": "{entry.attempt}  the agent says",
    "thought": "{entry.attempt}  the agent thinks",
    "call": "{entry.attempt}  the agent says it calls {entry.tool}",
    "result": "{entry.attempt}  the agent's result of {entry.tool}",
    "error": "{entry.attempt}  the agent reports an error",
}


@mission.command()
@mission_argument
@click.option("--stat", is_flag=True, help="Show only how many lines each file gained and lost.")
@click.option("--checkpoint", metavar="COMMIT", help="Up to this checkpoint instead of the result.")
@pager_option
@json_option
def diff(mission: str, stat: bool, checkpoint: str | None, out: Output) -> None:
    """Show a mission's changes against its base, as a patch for git apply."""
    from chargehand.app.checkpoints import mission_difference
    from chargehand.cli.terminal.differences import show_difference
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        found = mission_difference(reader, mission, checkpoint=checkpoint)
        show_difference(out, found, stat=stat)


@mission.command()
@named_mission_argument
@click.option("--reason", default="", metavar="TEXT", help="Why; it is recorded.")
@json_option
def pause(mission: str, reason: str, out: Output) -> None:
    """Freeze a mission at once, both agent and checks; paused time counts towards no limit."""
    from chargehand.app.composition import App
    from chargehand.app.missions import pause_mission
    from chargehand.cli.terminal.rendering import print_result

    with App.open() as app:
        print_result(out, pause_mission(app, mission, reason=reason), app.store)


@mission.command()
@named_mission_argument
@click.option("--step", is_flag=True, help="Pause again before the next of its steps.")
@click.option("--to-end", is_flag=True, help="Ignore its remaining breakpoints.")
@json_option
def resume(mission: str, step: bool, to_end: bool, out: Output) -> None:
    """Resume a mission from its last recorded step.

    It was paused or cancelled, lost its worker, or failed through no fault of its work. A question that expired is
    asked again; a mission that waits for an earlier one starts despite it.
    """
    from chargehand.app.composition import App
    from chargehand.app.missions import resume_mission
    from chargehand.cli.terminal.rendering import print_result

    with App.open() as app:
        change = resume_mission(app, mission, step=step, to_end=to_end)
        if change.worker_started:
            out.notice("Started a worker for it.")
        print_result(out, change.state, app.store)


@mission.command(cls=TextCommand)
@named_mission_argument
@click.argument("text")
@task_option
@click.option("--critical", is_flag=True, help="Freeze the agent and ask if it is not acknowledged in 10 s.")
@json_option
def send(mission: str, text: str, task: str | None, critical: bool, out: Output) -> None:
    """Send the agent a message. An agent that does not listen while it works gets it with its next attempt."""
    from chargehand.app.composition import App
    from chargehand.app.missions import addressed_mission, message_document, send_message
    from chargehand.cli.terminal.rendering import delivery_text

    with App.open() as app:
        meant = addressed_mission(app, mission, "send", task=task)
        _name_task(out, meant)
        sent = message_document(send_message(app, meant.mission, text, critical=critical))
    out.document(sent)
    out.text(delivery_text(sent))
    if critical:
        out.text("If the agent does not acknowledge it within 10 s, it is frozen and you are asked.")


@mission.command(cls=TextCommand)
@named_mission_argument
@click.argument("text", required=False)
@task_option
@json_option
def answer(mission: str, text: str | None, task: str | None, out: Output) -> int:
    """Answer the question of a mission's agent; without TEXT, show or ask it.

    If a coordinator has no question itself, the answer goes to its one task that has a question.
    """
    from chargehand.app.composition import App
    from chargehand.app.missions import addressed_mission, answer_mission, question_document
    from chargehand.cli.terminal.lines import option_lines
    from chargehand.cli.terminal.prompts import ask_question, question_heading
    from chargehand.cli.terminal.rendering import print_result

    with App.open() as app:
        meant = addressed_mission(app, mission, "answer", task=task)
        _name_task(out, meant)
        asked = meant.question
        if text is None and asked is not None:
            # In a pipe the question itself is the result: a program reads it and calls again with TEXT.
            text = ask_question(out, asked) if out.can_ask else None
            if text is None:
                out.document(question_document(meant.mission, asked))
                out.text(question_heading(asked), bold=True)
                out.text(asked.text)
                for line in option_lines(asked.options, asked.meanings):
                    out.text(line)
                if asked.deadline:
                    out.text(asked.deadline)
                out.text(f"answer:   chargehand mission answer {meant.mission} TEXT")
                return 3
        # Also without a question: only the use case knows what to refuse, and with which hint.
        change = answer_mission(app, meant, text or "")
        if change.worker_started:
            out.notice("Started a worker for it.")
        print_result(out, change.state, app.store)
    return 0


@mission.command()
@named_mission_argument
@click.option("--at", metavar="[ATTEMPT.]TURN", help="The reply to fork at (default: the last one).")
@click.option("--model", metavar="NAME", help="The model that answers from there on.")
@click.option("--reply", metavar="TEXT|@FILE", help="The reply to continue with instead of asking a model.")
@click.option("--detach", is_flag=True, help="Return at once; a background worker runs it.")
@detail_options
@json_option
def fork(mission: str, at: str | None, model: str | None, reply: str | None, detach: bool, out: Output) -> int:
    """Start a new mission from one of a native agent's replies; earlier replies are not paid for again."""
    from chargehand.app.composition import App
    from chargehand.app.requests import ForkRequest, fork_mission
    from chargehand.cli.terminal.running import (
        continue_mission,
        continue_with_answers,
        leave_to_worker,
        show_outcome,
    )

    with App.open() as app:
        made, forked_at = fork_mission(app, ForkRequest(mission=mission, at=at, model=model, reply=reply))
        out.notice(f"Mission {made} continues from reply {forked_at}.")
        if detach:
            return leave_to_worker(app, out, made)
        return show_outcome(app, out, continue_with_answers(app, out, continue_mission(app, out, made)))


@mission.command("continue", cls=ContinueCommand)
@click.argument("mission", required=False, shell_complete=complete_missions)
@click.argument("text", required=False)
@follow_up_options
@detail_options
@json_option
def continue_(mission: str, text: str, detach: bool, out: Output, **limits: str | None) -> int:
    """Ask for more from a mission that ended, in the same conversation.

    A promoted mission stays as it is, and a new mission continues from its commit. Any other mission continues
    itself, from its last checkpoint. Without MISSION you pick one on a terminal.

    \b
    Example:
      chargehand mission continue last "also handle the empty list"
    """
    from chargehand.app.composition import App
    from chargehand.app.requests import FollowUp, follow_up_mission
    from chargehand.cli.terminal import running

    with App.open() as app:
        made = follow_up_mission(app, FollowUp(mission=mission, text=text, **limits))
        if detach:
            return running.leave_to_worker(app, out, made)
        state = app.mission_reader.state(made)
        if state.plan is not None or state.parent:  # only a worker resumes its tasks or its coordinator
            return running.follow_to_end(app, out, made)
        return running.show_outcome(
            app, out, running.continue_with_answers(app, out, running.continue_mission(app, out, made))
        )


@mission.command()
@named_mission_argument
@json_option
def cancel(mission: str, out: Output) -> None:
    """Stop a running mission, or close a waiting one."""
    from chargehand.app.composition import App
    from chargehand.app.missions import cancel_mission
    from chargehand.cli.terminal.rendering import print_result

    with App.open() as app:
        print_result(out, cancel_mission(app, mission), app.store)


@mission.command()
@named_mission_argument
@task_option
@click.option("--with-dependents", is_flag=True, help="With --task: also the tasks that are built on it.")
@click.option("--dry-run", is_flag=True, help="Only show what would happen to each file.")
@detail_options
@json_option
def rollback(mission: str, task: str | None, with_dependents: bool, dry_run: bool, out: Output) -> int:
    """Undo a promotion by a new commit on the mission's branch; no branch of yours moves back.

    With --task, undo only the changes of that task. Exits 3 if the commit could not be exported.
    """
    from chargehand.cli.terminal.rollback import preview_rollback, roll_back

    if with_dependents and task is None:
        raise click.UsageError("--with-dependents needs --task")
    do = preview_rollback if dry_run else roll_back
    return do(out, mission, task, with_dependents=with_dependents)


@mission.command()
@named_mission_argument
@click.option("--reason", default="", metavar="TEXT", help="Why you approve it; it is recorded.")
@click.option("--tree", default="", metavar="ID", help="Refuse if its tree is no longer this one.")
@task_option
@detail_options
@json_option
def promote(mission: str, reason: str, tree: str, task: str | None, out: Output) -> int:
    """Approve a waiting mission and promote it. Cannot override a failed check.

    For a coordinator, this promotes its one task that waits for an approval.
    """
    from chargehand.app.composition import App
    from chargehand.app.missions import addressed_mission, promote_mission
    from chargehand.cli.terminal.progress import run_with_progress
    from chargehand.cli.terminal.rendering import exit_code, print_result

    with App.open() as app:
        meant = addressed_mission(app, mission, "promote", task=task)
        _name_task(out, meant)
        state = run_with_progress(
            out,
            app.store,
            lambda shown: promote_mission(app, meant.mission, reason=reason, tree=tree, watch=shown.watch),
        )
        print_result(out, state, app.store)
    return exit_code(state)


@mission.command()
@named_mission_argument
@click.option("--reason", default="", metavar="TEXT", help="Why; it is recorded.")
@task_option
@json_option
def discard(mission: str, reason: str, task: str | None, out: Output) -> None:
    """Settle a mission as not wanted; its checkpoints stay until gc.

    For a coordinator with one task that waits for an approval, this discards that task.
    """
    from chargehand.app.composition import App
    from chargehand.app.missions import addressed_mission, discard_mission
    from chargehand.cli.terminal.rendering import print_result

    with App.open() as app:
        meant = addressed_mission(app, mission, "discard", task=task)
        _name_task(out, meant)
        print_result(out, discard_mission(app, meant.mission, reason=reason), app.store)


def _name_task(out: Output, meant: Addressee) -> None:
    if meant.task:
        out.notice(f"This is for task {meant.task}: mission {meant.mission}.")
