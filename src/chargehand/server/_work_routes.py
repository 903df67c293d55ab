"""Routes of work beside missions: git actions and commands, trials of agents and models, judging an action."""

from __future__ import annotations

import functools
import gzip
import threading
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from chargehand.app.accounts import Caller
from chargehand.app.actions import ActionDocument, ActionOutputPage, Actions, action_document
from chargehand.app.agents import AgentProbes, probe_agents
from chargehand.app.composition import App
from chargehand.app.configuration import RuleList, RuleSchema, judge_action, list_rules, rule_schema
from chargehand.app.models import Catalogue, ModelProbes, list_catalogue, probe_models
from chargehand.app.reading import StateReader
from chargehand.policy.actions import Judgement
from chargehand.server._responses import encode_document
from chargehand.server._routes import EncodedDocument, Offset, RestArguments, Route, Short, Text, Words


class ActionQuery(RestArguments, frozen=True):
    """Which actions are listed: all that are kept, or those that have not ended."""

    running: bool = False


class OneAction(RestArguments, frozen=True):
    """A git action or a command, by its id."""

    action: Short


class OutputQuery(OneAction, frozen=True, kw_only=True):
    """Which lines an action printed: those from a byte of its output on, as `next` names it."""

    after: Offset = 0


class ActionAnswer(OneAction, frozen=True, kw_only=True):
    """An answer to what an action asks; `yes` approves exactly that, once."""

    answer: Literal["yes", "no"]


class AgentTrial(RestArguments, frozen=True):
    """Which agent is tried, all by default, as a project has them."""

    agent: Words | None = None
    project: Short | None = None


class ModelTrial(RestArguments, frozen=True):
    """Which model is asked, all by default; with `quick` nothing is kept of it."""

    model: Words | None = None
    quick: bool = False
    project: Short | None = None


class CatalogueQuery(RestArguments, frozen=True):
    """Which models of the shipped catalogue: of one provider, or all."""

    provider: Short | None = None


class PolicyQuery(RestArguments, frozen=True):
    """Whose rules are shown; outside of any project by default."""

    project: Short | None = None


class PolicyTrial(RestArguments, frozen=True):
    """One action to judge: a command as its words, a shell line, a file to read or write, or a call of MCP."""

    command: Annotated[tuple[Annotated[str, Meta(max_length=4096)], ...], Meta(max_length=1000)] = ()
    shell: Text | None = None
    read: Words | None = None
    write: Words | None = None
    mcp: Text | None = None
    cwd: Words | None = None
    project: Short | None = None


def _repository(reader: StateReader, project: str | None) -> Path | None:
    return None if project is None else reader.store.projects.find(project).path


def _state(app: App, call: OneAction, by: Caller) -> ActionDocument:
    actions = Actions(app)
    return action_document(actions.state(actions.places.find(call.action)))


def _output(app: App, call: OutputQuery, by: Caller) -> ActionOutputPage:
    actions = Actions(app)
    return actions.read_output(actions.places.find(call.action), call.after)


def _cancel(app: App, call: OneAction, by: Caller) -> ActionDocument:
    actions = Actions(app)
    return action_document(actions.cancel_and_wait(actions.places.find(call.action)))


def _answer(app: App, call: ActionAnswer, by: Caller) -> ActionDocument:
    actions = Actions(app)
    found = actions.places.find(call.action)
    held = actions.answer(found, yes=call.answer == "yes")
    if held is not None:
        # It outlives the server; as long as that lives, nothing that ended is left for the system to remember.
        threading.Thread(target=actions.start(held).wait, daemon=True).start()
    return action_document(actions.state(found))


def _judge(app: App, call: PolicyTrial, by: Caller) -> Judgement:
    kinds = {name: getattr(call, name) for name in ("shell", "read", "write", "mcp")}
    return judge_action(
        app, {"command": call.command or None, **kinds}, cwd=call.cwd, repo=_repository(app, call.project)
    )


async def _probe_agents(app: App, call: AgentTrial, by: Caller) -> AgentProbes:
    return await probe_agents(app, call.agent, _repository(app, call.project))


async def _probe_models(app: App, call: ModelTrial, by: Caller) -> ModelProbes:
    return await probe_models(app, call.model, _repository(app, call.project), quick=call.quick)


@functools.lru_cache(maxsize=4)
def _catalogue(provider: str | None) -> EncodedDocument:
    """Return the models as they are sent: they are part of the program, 2.4 MB of them, and never change."""
    content = encode_document(list_catalogue(provider))
    return EncodedDocument.of(content, gzip.compress(content, mtime=0))


ROUTES = (
    Route(
        method="GET", path="/actions", action="action.list", summary="List git actions and commands.",
        takes=ActionQuery, gives=list[ActionDocument], commands=("action list",),
        call=lambda app, call, by: [action_document(each) for each in Actions(app).all(running=call.running)],
    ),
    Route(
        method="GET", path="/actions/{action}", action="action.list", summary="Show a git action or a command.",
        takes=OneAction, gives=ActionDocument, call=_state, commands=("action show",),
    ),
    Route(
        method="GET", path="/actions/{action}/log", action="action.log", summary="Read what it printed.",
        takes=OutputQuery, gives=ActionOutputPage, call=_output, commands=("action log",),
    ),
    Route(
        method="POST", path="/actions/{action}/cancel", action="action.cancel",
        summary="Stop it and all that it started.",
        takes=OneAction, gives=ActionDocument, call=_cancel, commands=("action cancel",),
    ),
    Route(
        method="POST", path="/actions/{action}/answer", action="action.answer",
        summary="Answer what it asks; after a yes it runs in the background.",
        takes=ActionAnswer, gives=ActionDocument, call=_answer, commands=("action answer",),
    ),
    Route(
        method="POST", path="/agents/probe", action="agent.probe", summary="Try whether agents can work.",
        takes=AgentTrial, gives=AgentProbes, call=_probe_agents, commands=("agent probe",),
    ),
    Route(
        method="POST", path="/models/probe", action="model.probe",
        summary="Call models with a few tokens, and keep what they can do.",
        takes=ModelTrial, gives=ModelProbes, call=_probe_models, commands=("model probe",),
    ),
    Route(
        method="GET", path="/catalogue", action="model.list", summary="List models of the shipped catalogue.",
        takes=CatalogueQuery, gives=Catalogue, commands=("model list",),
        call=lambda reader, call, by: _catalogue(call.provider),
    ),
    Route(
        method="GET", path="/policy", action="agent.list", summary="Show the rules for what agents do.",
        takes=PolicyQuery, gives=RuleList, commands=("policy show",),
        call=lambda app, call, by: list_rules(app, _repository(app, call.project)),
    ),
    Route(
        method="GET", path="/policy/facts", action="agent.list", summary="Show what rules can ask about.",
        gives=RuleSchema, commands=("policy show",), call=lambda reader, call, by: rule_schema(),
    ),
    Route(
        method="POST", path="/policy/test", action="policy.test", summary="Judge an action without doing it.",
        takes=PolicyTrial, gives=Judgement, call=_judge, commands=("policy test",),
    ),
)  # fmt: skip
