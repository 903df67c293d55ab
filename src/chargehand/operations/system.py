"""Routes of missions' surroundings: projects, agents, models, configuration, workers, the log as a whole."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from chargehand.app import agents, configuration, diagnosis, models, projects, storage
from chargehand.app.agents import AgentList, RoleList, RoleView, TeamList
from chargehand.app.composition import App
from chargehand.app.configuration import ConfigurationView
from chargehand.app.diagnosis import SystemView
from chargehand.app.models import ModelList, ModelView
from chargehand.app.projects import ProjectList, ProjectView
from chargehand.app.storage import AuditView, ProvenanceDocument
from chargehand.identity.accounts import Caller
from chargehand.operations.operation import (
    MissionName,
    NoArguments,
    OperationTable,
    RestArguments,
    Short,
    Text,
    Words,
    project_path,
)
from chargehand.reports import rollouts, statistics
from chargehand.reports.reading import StateReader
from chargehand.reports.rollouts import RolloutList
from chargehand.reports.statistics import (
    AlertsDocument,
    InvoiceDocument,
    ModelStatisticsDocument,
    StatisticsDocument,
    StatisticsRequest,
    TrialDocument,
)

OPERATIONS = OperationTable()


class ProjectQuery(RestArguments, frozen=True):
    """The project of a view; by default outside any project."""

    project: Short | None = None


class OneProject(RestArguments, frozen=True):
    """A registered project, by its id or path."""

    project: Short


class NewProject(RestArguments, frozen=True):
    """A repository on the server's machine."""

    path: Words


class ConfigurationQuery(ProjectQuery, frozen=True, kw_only=True):
    """The configuration to show, with or without the origins of its values."""

    origins: bool = True


class StatisticsQuery(RestArguments, frozen=True):
    """The missions to count."""

    project: Short | None = None
    since: Annotated[str, Meta(max_length=40, description="7d, 12h or a date (UTC).")] | None = None


class OneModel(ProjectQuery, frozen=True, kw_only=True):
    """A model, by its name in the configuration or PROVIDER:MODEL."""

    model: Words


class OneRole(ProjectQuery, frozen=True, kw_only=True):
    """A role, by its name."""

    role: Short


class ProvenanceQuery(RestArguments, frozen=True):
    """The mission whose provenance is verified."""

    mission: MissionName


class VerifyBody(RestArguments, frozen=True):
    """The log to check: of a mission, or all; `deep` reads artifacts and commits too.

    `head` has signed heads stored elsewhere, one on each line, to compare with.
    """

    mission: Annotated[str, Meta(max_length=64)] | None = None
    deep: bool = False
    head: Text | None = None


def _statistics_request(reader: StateReader, call: StatisticsQuery) -> StatisticsRequest:
    return StatisticsRequest(
        repo=project_path(reader, call.project), everywhere=call.project is None, since=call.since
    )


@OPERATIONS.add("GET", "/projects", action="project.list", commands=("project list",))
def list_projects(reader: StateReader, call: NoArguments, by: Caller) -> ProjectList:
    """List the registered repositories."""
    return projects.list_projects(reader)


@OPERATIONS.add("POST", "/projects", action="project.trust", status=201)
def register_project(app: App, call: NewProject, by: Caller) -> ProjectView:
    """Register a repository of this machine."""
    return projects.show_project(app, app.preparation.register_project(Path(call.path)).path)


@OPERATIONS.add("GET", "/projects/{project}", action="project.list", commands=("project show",))
def show_project(app: App, call: OneProject, by: Caller) -> ProjectView:
    """Show the settings that a mission would use."""
    return projects.show_project(app, project_path(app, call.project))


@OPERATIONS.add("GET", "/agents", action="agent.list", commands=("agent list",))
def list_agents(app: App, call: ProjectQuery, by: Caller) -> AgentList:
    """List agents and other installed programs."""
    return agents.list_agents(app, project_path(app, call.project))


@OPERATIONS.add("GET", "/roles", action="agent.list", commands=("role list",))
def list_roles(app: App, call: ProjectQuery, by: Caller) -> RoleList:
    """List roles."""
    return agents.list_roles(app, project_path(app, call.project))


@OPERATIONS.add("GET", "/teams", action="agent.list", commands=("team list",))
def list_teams(app: App, call: NoArguments, by: Caller) -> TeamList:
    """List teams."""
    return agents.list_teams(app.environ)


@OPERATIONS.add("GET", "/models", action="model.list", commands=("model list",))
def list_models(app: App, call: ProjectQuery, by: Caller) -> ModelList:
    """List models."""
    return models.list_models(app, project_path(app, call.project))


@OPERATIONS.add("GET", "/stats", action="stats.show", commands=("stats",))
def show_mission_statistics(reader: StateReader, call: StatisticsQuery, by: Caller) -> StatisticsDocument:
    """Show the outcomes of missions, and of checks."""
    return statistics.mission_statistics(reader, _statistics_request(reader, call))


@OPERATIONS.add("GET", "/stats/models", action="stats.show", commands=("model stats",))
def show_model_statistics(reader: StateReader, call: StatisticsQuery, by: Caller) -> ModelStatisticsDocument:
    """Show the results of each model."""
    return statistics.model_statistics(reader, _statistics_request(reader, call))


@OPERATIONS.add("GET", "/rollouts", action="stats.show", commands=("decision rollouts",))
def list_rollouts(reader: StateReader, call: NoArguments, by: Caller) -> RolloutList:
    """List roll-outs of models and policies with their outcomes."""
    return rollouts.list_rollouts(reader)


@OPERATIONS.add("GET", "/config", action="config.show", commands=("config show",))
def show_configuration(app: App, call: ConfigurationQuery, by: Caller) -> ConfigurationView:
    """Show the configuration with its origins."""
    return configuration.show_configuration(app, project_path(app, call.project), with_origins=call.origins)


@OPERATIONS.add("GET", "/models/{model}", action="model.list", commands=("model show",))
def show_model(app: App, call: OneModel, by: Caller) -> ModelView:
    """Show all known facts of a model."""
    return models.show_model(app, call.model, project_path(app, call.project))


@OPERATIONS.add("GET", "/roles/{role}", action="agent.list", commands=("role show",))
def show_role(app: App, call: OneRole, by: Caller) -> RoleView:
    """Show a role as it is in force."""
    return agents.show_role(app, call.role, project_path(app, call.project))[0]


@OPERATIONS.add("GET", "/stats/invoice", action="stats.show", commands=("model invoice",))
def show_invoice(reader: StateReader, call: StatisticsQuery, by: Caller) -> InvoiceDocument:
    """List the calls that providers charge for."""
    return statistics.model_invoice(reader, _statistics_request(reader, call))


@OPERATIONS.add("GET", "/audit/provenance", action="audit.verify", is_costly=True, commands=("audit provenance",))
def verify_provenance(reader: StateReader, call: ProvenanceQuery, by: Caller) -> ProvenanceDocument:
    """Verify a promotion's signed provenance."""
    return storage.verify_provenance(reader, reader.find_mission(call.mission))


@OPERATIONS.add("GET", "/system", action="system.show")
def show_system(reader: StateReader, call: NoArguments, by: Caller) -> SystemView:
    """Show workers, queue and disk."""
    return diagnosis.describe_system(reader)


@OPERATIONS.add("GET", "/alerts", action="system.show", commands=("alerts list",))
def list_alerts(reader: StateReader, call: NoArguments, by: Caller) -> AlertsDocument:
    """List raised and ended alerts."""
    return statistics.list_alerts(reader)


@OPERATIONS.add("POST", "/alerts/test", action="alert.test", commands=("alerts test",))
def try_alert_channels(app: App, call: NoArguments, by: Caller) -> TrialDocument:
    """Send a trial notice by each configured channel."""
    return statistics.try_channels(app)


@OPERATIONS.add("POST", "/audit/verify", action="audit.verify", is_costly=True, commands=("audit verify",))
def verify_log(app: App, call: VerifyBody, by: Caller) -> AuditView:
    """Check the log against its hashes and signatures."""
    head = None if call.head is None else io.BytesIO(call.head.encode())
    return storage.verify_log(app, call.mission, head=head, deep=call.deep)
