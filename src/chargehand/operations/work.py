"""Routes of work outside missions: git actions and commands, probes of agents and models, judging an action."""

from __future__ import annotations

import functools
import gzip
import threading
from typing import Annotated, Literal

from msgspec import Meta

from chargehand.app import agents, configuration, models
from chargehand.app.actions import ActionDocument, ActionOutputPage, Actions, action_document
from chargehand.app.agents import AgentProbes
from chargehand.app.composition import App
from chargehand.app.configuration import RuleList, RuleSchema
from chargehand.app.models import Catalogue, ModelProbes
from chargehand.identity.accounts import Caller
from chargehand.operations.operation import (
    EncodedDocument,
    NoArguments,
    Offset,
    OperationTable,
    RestArguments,
    Short,
    Text,
    Words,
    encode_document,
    project_path,
)
from chargehand.policy.actions import Judgement
from chargehand.reports.reading import StateReader

OPERATIONS = OperationTable()
_LONGEST_ACTION = 16_384


class ActionQuery(RestArguments, frozen=True):
    """The actions to list: all stored ones, or those that have not ended."""

    running: bool = False


class OneAction(RestArguments, frozen=True):
    """A git action or a command, by its id."""

    action: Short


class OutputQuery(OneAction, frozen=True, kw_only=True):
    """The output of an action to read: from a byte offset on, as given by `next`."""

    after: Offset = 0


class ActionAnswer(OneAction, frozen=True, kw_only=True):
    """An answer to an action's question; `yes` approves exactly that, once."""

    answer: Literal["yes", "no"]


class AgentTrial(RestArguments, frozen=True):
    """The agent to probe, all by default, as configured in a project."""

    agent: Words | None = None
    project: Short | None = None


class ModelTrial(RestArguments, frozen=True):
    """The model to probe, all by default; with `quick` no result is stored."""

    model: Words | None = None
    quick: bool = False
    project: Short | None = None


class CatalogueQuery(RestArguments, frozen=True):
    """The models of the shipped catalogue to list: of one provider, or all."""

    provider: Short | None = None


class PolicyQuery(RestArguments, frozen=True):
    """The project whose rules are shown; by default outside any project."""

    project: Short | None = None


class PolicyTrial(RestArguments, frozen=True):
    """One action to judge: a command as words, a shell line, a file to read or write, or an MCP call."""

    command: Annotated[tuple[Annotated[str, Meta(max_length=4096)], ...], Meta(max_length=1000)] = ()
    shell: Text | None = None
    read: Words | None = None
    write: Words | None = None
    mcp: Text | None = None
    cwd: Words | None = None
    project: Short | None = None

    def __post_init__(self) -> None:
        """Refuse an action that takes seconds to parse: the time grows faster than the length."""
        size = sum(map(len, (*self.command, self.shell or "", self.mcp or "")))
        if size > _LONGEST_ACTION:
            raise ValueError(f"an action has at most {_LONGEST_ACTION} characters, this one has {size}")


@OPERATIONS.add("GET", "/actions", action="action.list", commands=("action list",))
def list_actions(app: App, call: ActionQuery, by: Caller) -> list[ActionDocument]:
    """List git actions and commands."""
    return [action_document(each) for each in Actions(app).all(running=call.running)]


@OPERATIONS.add("GET", "/actions/{action}", action="action.list", commands=("action show",))
def show_action(app: App, call: OneAction, by: Caller) -> ActionDocument:
    """Show a git action or a command."""
    actions = Actions(app)
    return action_document(actions.state(actions.places.find(call.action)))


@OPERATIONS.add("GET", "/actions/{action}/log", action="action.log", commands=("action log",))
def read_action_output(app: App, call: OutputQuery, by: Caller) -> ActionOutputPage:
    """Read its output."""
    actions = Actions(app)
    return actions.read_output(actions.places.find(call.action), call.after)


@OPERATIONS.add("POST", "/actions/{action}/cancel", action="action.cancel", commands=("action cancel",))
def cancel_action(app: App, call: OneAction, by: Caller) -> ActionDocument:
    """Stop it with all its processes."""
    actions = Actions(app)
    return action_document(actions.cancel_and_wait(actions.places.find(call.action)))


@OPERATIONS.add("POST", "/actions/{action}/answer", action="action.answer", commands=("action answer",))
def answer_action(app: App, call: ActionAnswer, by: Caller) -> ActionDocument:
    """Answer its question; after a yes it runs in the background."""
    actions = Actions(app)
    found = actions.places.find(call.action)
    held = actions.answer(found, yes=call.answer == "yes")
    if held is not None:
        # The action outlives the server. While the server lives, this thread reaps the process once it has ended.
        threading.Thread(target=actions.start(held).wait, daemon=True).start()
    return action_document(actions.state(found))


@OPERATIONS.add("POST", "/agents/probe", action="agent.probe", commands=("agent probe",))
async def probe_agents(app: App, call: AgentTrial, by: Caller) -> AgentProbes:
    """Probe whether agents can work."""
    return await agents.probe_agents(app, call.agent, project_path(app, call.project))


@OPERATIONS.add("POST", "/models/probe", action="model.probe", commands=("model probe",))
async def probe_models(app: App, call: ModelTrial, by: Caller) -> ModelProbes:
    """Call models with a few tokens, and store their abilities."""
    return await models.probe_models(app, call.model, project_path(app, call.project), quick=call.quick)


@OPERATIONS.add("GET", "/catalogue", action="model.list", gives=Catalogue, commands=("model list",))
def list_catalogue(reader: StateReader, call: CatalogueQuery, by: Caller) -> EncodedDocument:
    """List models of the shipped catalogue."""
    return _encode_catalogue(call.provider)


# The catalogue is part of the program, 2.4 MB of it, and never changes while the server runs.
@functools.lru_cache(maxsize=4)
def _encode_catalogue(provider: str | None) -> EncodedDocument:
    content = encode_document(models.list_catalogue(provider))
    return EncodedDocument.of(content, gzip.compress(content, mtime=0))


@OPERATIONS.add("GET", "/policy", action="agent.list", commands=("policy show",))
def list_rules(app: App, call: PolicyQuery, by: Caller) -> RuleList:
    """Show the rules for agents' actions."""
    return configuration.list_rules(app, project_path(app, call.project))


@OPERATIONS.add("GET", "/policy/facts", action="agent.list", commands=("policy show",))
def show_rule_schema(reader: StateReader, call: NoArguments, by: Caller) -> RuleSchema:
    """Show the facts available to rules."""
    return configuration.rule_schema()


@OPERATIONS.add("POST", "/policy/test", action="policy.test", is_costly=True, commands=("policy test",))
def judge_action(app: App, call: PolicyTrial, by: Caller) -> Judgement:
    """Judge an action without running it."""
    kinds = {name: getattr(call, name) for name in ("shell", "read", "write", "mcp")}
    return configuration.judge_action(
        app, {"command": call.command or None, **kinds}, cwd=call.cwd, repo=project_path(app, call.project)
    )
