"""The merge of a request with its target branch that moved: judged again, or worked on if the two conflict."""

from __future__ import annotations

from msgspec.structs import replace

from chargehand.app.composition import App
from chargehand.app.forge.texts import conflict_request
from chargehand.app.requests import is_recorded, record_follow_up
from chargehand.app.runs import allowed_attempts, branch_slug
from chargehand.configuration.run_options import RunRequest
from chargehand.core.records import IssueLink
from chargehand.missions.fork import create_rejudged, rebase_result
from chargehand.missions.steering import last_whole_attempt
from chargehand.workspace.merge import conflict_report


def update_mission(app: App, name: str, link: IssueLink, *, made: str, works: bool) -> tuple[str, str] | None:
    """Merge the present tip of the target branch with a promoted result, as a new mission `made` on that tip.

    Returns the mission and a text with the conflicts, if any. Without conflicts, the merged tree is judged and
    promoted without an agent. Otherwise the agent gets the branch with the rest of its change and the conflicts;
    so does that of a plan, which has no attempt that could be judged again. Without `works` no agent may be asked,
    and the mission is "" if that were necessary. `None` if the result contains the tip, or the tip all of its
    changes. Raises `RepositoryError`, `ConfigError`, `RefusedError` (`unrelated`).
    """
    state = app.mission_state(name)
    assert state.request is not None
    assert state.commit is not None
    depot = app.projects.mission_depot(state)
    tip = depot.resolve_base(link.target)
    if depot.contains(state.commit, tip.commit):
        return None
    rebase = rebase_result(depot, state, tip, made=made)
    if rebase is None:
        return None
    link = replace(link, onto=state.commit, round=link.round + (1 if rebase.count else 0))
    text = f"Merge {link.target} into the change for {link.repository}#{link.number}"
    if not rebase.count and last_whole_attempt(state):
        if not is_recorded(app, made):
            request = replace(state.request, text=text, slug=branch_slug(text), issue=link)
            create_rejudged(app.store, depot, state.id, request, tip, rebase.checkpoint, made=made)
        return made, ""
    conflicts = conflict_report(rebase.conflicts, ours=link.target, theirs="the request") if rebase.count else ""
    if not works:
        return "", conflicts
    if not is_recorded(app, made):
        app.preparation.require_recorded_agent(state)
        found = app.preparation.find(revision=tip.commit, mission=state)
        resolved = app.preparation.configuration(found, options=RunRequest().configuration(), head=False)
        record_follow_up(
            app,
            state,
            f"{text}\n\n{conflict_request(link.target, conflicts)}",
            tip,
            tree=rebase.tree,
            attempts=allowed_attempts(resolved, state.request.agent),
            seconds=resolved.config.limits.time,
            issue=link,
            made=made,
        )
    return made, conflicts
