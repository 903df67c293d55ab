"""Routes of what missions stand on: projects, agents, models, configuration, workers, the log as a whole."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from chargehand.app.accounts import Caller
from chargehand.app.agents import (
    AgentList,
    RoleList,
    RoleView,
    TeamList,
    list_agents,
    list_roles,
    list_teams,
    show_role,
)
from chargehand.app.composition import App
from chargehand.app.configuration import ConfigurationView, show_configuration
from chargehand.app.diagnosis import SystemView, describe_system
from chargehand.app.models import ModelList, ModelView, list_models, show_model
from chargehand.app.projects import ProjectList, ProjectView, list_projects, show_project
from chargehand.app.reading import StateReader
from chargehand.app.statistics import (
    AlertsDocument,
    InvoiceDocument,
    ModelStatisticsDocument,
    StatisticsDocument,
    StatisticsRequest,
    TrialDocument,
    list_alerts,
    mission_statistics,
    model_invoice,
    model_statistics,
    try_channels,
)
from chargehand.app.storage import AuditView, ProvenanceDocument, verify_log, verify_provenance
from chargehand.server._routes import MissionName, RestArguments, Route, Short, Text, Words


class ProjectQuery(RestArguments, frozen=True):
    """Which project's view is given; outside of any by default."""

    project: Short | None = None


class OneProject(RestArguments, frozen=True):
    """A registered project, by its id or path."""

    project: Short


class NewProject(RestArguments, frozen=True):
    """A repository on the server's machine."""

    path: Words


class ConfigurationQuery(ProjectQuery, frozen=True, kw_only=True):
    """Whose configuration is shown, and whether with where each value comes from."""

    origins: bool = True


class StatisticsQuery(RestArguments, frozen=True):
    """Which missions count."""

    project: Short | None = None
    since: Annotated[str, Meta(max_length=40, description="7d, 12h or a date (UTC).")] | None = None


class OneModel(ProjectQuery, frozen=True, kw_only=True):
    """A model, by its name in the configuration or PROVIDER:MODEL."""

    model: Words


class OneRole(ProjectQuery, frozen=True, kw_only=True):
    """A role, by its name."""

    role: Short


class ProvenanceQuery(RestArguments, frozen=True):
    """Whose provenance is verified."""

    mission: MissionName


class VerifyBody(RestArguments, frozen=True):
    """Which log is checked: a mission's, or all; `deep` reads artifacts and commits too.

    `head` has signed heads that were kept elsewhere, one on each line, to compare with.
    """

    mission: Annotated[str, Meta(max_length=64)] | None = None
    deep: bool = False
    head: Text | None = None


def _repository(reader: StateReader, project: str | None) -> Path | None:
    return None if project is None else reader.store.projects.find(project).path


def _register(app: App, call: NewProject, by: Caller) -> ProjectView:
    return show_project(app, app.register_project(Path(call.path)).path)


def _statistics_request(reader: StateReader, call: StatisticsQuery) -> StatisticsRequest:
    return StatisticsRequest(
        repo=_repository(reader, call.project), everywhere=call.project is None, since=call.since
    )


ROUTES = (
    Route(
        method="GET", path="/projects", action="project.list",
        summary="List the registered repositories.",
        gives=ProjectList, call=lambda reader, call, by: list_projects(reader), commands=("project list",),
    ),
    Route(
        method="POST", path="/projects", action="project.trust",
        summary="Register a repository of this machine.",
        takes=NewProject, gives=ProjectView, call=_register, status=201,
    ),
    Route(
        method="GET", path="/projects/{project}", action="project.list",
        summary="Show what would be in force for a mission.",
        takes=OneProject, gives=ProjectView, commands=("project show",),
        call=lambda app, call, by: show_project(app, _repository(app, call.project)),
    ),
    Route(
        method="GET", path="/agents", action="agent.list",
        summary="List agents and what else is installed.",
        takes=ProjectQuery, gives=AgentList, commands=("agent list",),
        call=lambda app, call, by: list_agents(app, _repository(app, call.project)),
    ),
    Route(
        method="GET", path="/roles", action="agent.list",
        summary="List roles.", takes=ProjectQuery, gives=RoleList,
        call=lambda app, call, by: list_roles(app, _repository(app, call.project)), commands=("role list",),
    ),
    Route(
        method="GET", path="/teams", action="agent.list", summary="List teams.", gives=TeamList,
        call=lambda app, call, by: list_teams(app.environ), commands=("team list",),
    ),
    Route(
        method="GET", path="/models", action="model.list",
        summary="List models.", takes=ProjectQuery, gives=ModelList,
        call=lambda app, call, by: list_models(app, _repository(app, call.project)), commands=("model list",),
    ),
    Route(
        method="GET", path="/stats", action="stats.show",
        summary="Show how missions ended, and what checks found.",
        takes=StatisticsQuery, gives=StatisticsDocument, commands=("stats",),
        call=lambda reader, call, by: mission_statistics(reader, _statistics_request(reader, call)),
    ),
    Route(
        method="GET", path="/stats/models", action="stats.show", summary="Show how each model did.",
        takes=StatisticsQuery, gives=ModelStatisticsDocument, commands=("model stats",),
        call=lambda reader, call, by: model_statistics(reader, _statistics_request(reader, call)),
    ),
    Route(
        method="GET", path="/config", action="config.show",
        summary="Show the configuration and where it comes from.",
        takes=ConfigurationQuery, gives=ConfigurationView, commands=("config show",),
        call=lambda app, call, by: show_configuration(
            app, _repository(app, call.project), with_origins=call.origins
        ),
    ),
    Route(
        method="GET", path="/models/{model}", action="model.list", summary="Show all that is known of a model.",
        takes=OneModel, gives=ModelView, commands=("model show",),
        call=lambda app, call, by: show_model(app, call.model, _repository(app, call.project)),
    ),
    Route(
        method="GET", path="/roles/{role}", action="agent.list", summary="Show a role as it is in force.",
        takes=OneRole, gives=RoleView, commands=("role show",),
        call=lambda app, call, by: show_role(app, call.role, _repository(app, call.project))[0],
    ),
    Route(
        method="GET", path="/stats/invoice", action="stats.show",
        summary="List the calls that providers charge for.",
        takes=StatisticsQuery, gives=InvoiceDocument, commands=("model invoice",),
        call=lambda reader, call, by: model_invoice(reader, _statistics_request(reader, call)),
    ),
    Route(
        method="GET", path="/audit/provenance", action="audit.verify",
        summary="Verify a promotion's signed provenance.",
        takes=ProvenanceQuery, gives=ProvenanceDocument, commands=("audit provenance",),
        call=lambda reader, call, by: verify_provenance(reader, reader.find_mission(call.mission)),
    ),
    Route(
        method="GET", path="/system", action="system.show",
        summary="Show workers, queue and disk.", gives=SystemView,
        call=lambda reader, call, by: describe_system(reader),
    ),
    Route(
        method="GET", path="/alerts", action="system.show", summary="List alerts that are raised, and that were.",
        gives=AlertsDocument, call=lambda reader, call, by: list_alerts(reader), commands=("alerts list",),
    ),
    Route(
        method="POST", path="/alerts/test", action="alert.test",
        summary="Send a trial notice each way that is configured.", gives=TrialDocument,
        call=lambda reader, call, by: try_channels(reader), commands=("alerts test",),
    ),
    Route(
        method="POST", path="/audit/verify", action="audit.verify",
        summary="Check the log against its hashes and signatures.",
        takes=VerifyBody, gives=AuditView, commands=("audit verify",),
        call=lambda reader, call, by: verify_log(
            reader,
            call.mission,
            head=None if call.head is None else io.BytesIO(call.head.encode()),
            deep=call.deep,
        ),
    ),
)  # fmt: skip
