"""The first steps of a person: a chargehand.toml, their models and agents, and the next command to type."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec.structs import replace

from chargehand.app.agents import InstalledProgram, agent_option, installed_programs
from chargehand.app.diagnosis import Diagnosis, UsableModel, diagnose
from chargehand.app.models import describe_probe, list_models
from chargehand.app.providers.ollama import find_ollama
from chargehand.app.providers.probe import probe_model
from chargehand.app.providers.served import existing_keys, has_key
from chargehand.app.selection.agents import NATIVE
from chargehand.app.selection.choice import DEFAULT_MODELS
from chargehand.checks.detection import find_licence_header, find_project
from chargehand.configuration.edit import check_user_value, set_user_values, unset_user_value
from chargehand.configuration.extras import has_extra
from chargehand.configuration.locations import user_config_path
from chargehand.configuration.records import REPOSITORY_FILE
from chargehand.core.config import Config, ModelConfig
from chargehand.core.errors import ChargehandError, ConfigError, RepositoryError, UsageError
from chargehand.core.ports import KeySource
from chargehand.core.text import shown_path
from chargehand.missions.services import DepotReader
from chargehand.models.registries import usual_key
from chargehand.network.addresses import is_loopback

if TYPE_CHECKING:
    from chargehand.app.composition import App

_PROVIDERS: Mapping[str, str] = {"anthropic": "Anthropic", "openai": "OpenAI", "gemini": "Google Gemini"}
# The provider whose models an agent CLI uses.
_CLI_PROVIDERS: Mapping[str, str] = {"claude": "anthropic", "codex": "openai", "gemini": "gemini"}
_OLLAMA_OFFERS = 3
_HEAD = """\
# Checks that missions must pass, and paths they may change. `chargehand config show --origin` explains each value.
[project]
"""


class InitResult(msgspec.Struct, frozen=True, kw_only=True):
    """The file that was written, or that already existed (then `created` is false, and the rest null).

    `ignored` is true if a `.gitignore` covers the file, so that `git add` needs `--force`.
    """

    path: str
    created: bool
    checks: tuple[str, ...] | None
    setup: str | None
    agent: str | None
    ignored: bool = False


class ModelAdded(msgspec.Struct, frozen=True, kw_only=True):
    """The entry of `[models]` that was added, and the file that has it."""

    model: str
    path: str


class Prompts(Protocol):
    """Asks a person one question at a time; each method raises what ends the command if the person stops."""

    def notice(self, text: str, /) -> None:
        """Show a line."""
        ...

    def confirm(self, question: str, /, *, default: bool) -> bool:
        """Return yes or no."""
        ...

    def text(self, question: str, /, *, default: str | None = None, hidden: bool = False) -> str:
        """Return a line without blanks at its ends; `hidden` hides the input."""
        ...

    def number(self, question: str, /, *, largest: int) -> int:
        """Return a number from 1, which is the default, to `largest`."""
        ...

    def word(self, question: str, /, *, words: Sequence[str]) -> str:
        """Return one of the words, of which the first is the default."""
        ...

    def installed(self, program: InstalledProgram, /) -> None:
        """Show a coding agent that is installed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A pasted key, and the name to store it under; its representation hides the value."""

    name: str
    value: str = field(repr=False)


class AgentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A chosen agent: keys and values for the user's own file, and a key to store."""

    name: str
    values: Mapping[str, str]
    model: str | None = None
    secret: Secret | None = None


class _PastedKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The stored keys, preceded by the key that was just pasted."""

    stored: KeySource
    pasted: Secret | None

    def get(self, name: str) -> str | None:
        if self.pasted is not None and name == self.pasted.name:
            return self.pasted.value
        return self.stored.get(name)


class _ChooseAgainError(Exception):
    """The person wants to choose another agent."""


def initialise(app: App, repo: Path | None, prompts: Prompts | None) -> InitResult:
    """Write chargehand.toml into a person's project, and ask for an agent; an existing file is not changed.

    Without `prompts` it uses the detected checks and asks for no agent. Raises `RepositoryError` (`bare`),
    `UsageError`, `ConfigError`.
    """
    located = app.preparation.find(repo)
    project = located.project
    depot = located.depot
    if depot.repository.bare:
        raise RepositoryError(
            f"{str(project.path)!r} is a bare repository, which has no working tree to write a file to",
            code="bare",
            hint="commit a chargehand.toml from a clone",
        )
    reader = DepotReader(depot)
    directory = find_project(reader, located.base.tree, located.start)
    path = project.path / directory / REPOSITORY_FILE
    found = app.preparation.detected(depot, located.base, directory)
    # A dangling link counts as a file, too.
    if os.path.lexists(path):
        offered = None if prompts is None else _offer_agent(app, prompts)
        return InitResult(path=str(path), created=False, checks=None, setup=None, agent=offered)
    # An unconfirmed setup is not written: a mission tries the detected ones.
    checks = found.checks
    setup: str | None = None
    name: str | None = None
    if prompts is not None:
        prompts.notice(f"Project {project.name}{f', in {shown_path(directory)}' if directory else ''}")
        checks = tuple(
            command
            for command, why in zip(found.checks, found.why, strict=True)
            if prompts.confirm(f"Check with `{command}` ({why})?", default=True)
        )
        more = prompts.text("Another check (empty: none)", default="")
        checks = (*checks, more) if more else checks
        if found.setup is not None and prompts.confirm(
            f'Install what the checks need with "{found.setup}" before each mission?', default=True
        ):
            setup = found.setup
        name = _ask_agent(app, prompts)
    # A build may refuse files without the project's licence header, and it also runs in the missions' checks.
    header = find_licence_header(reader, located.base.tree, directory) or find_licence_header(
        reader, located.base.tree
    )
    created = _write_project_file(path, header, checks, setup, found.setup)
    ignored = depot.repository.ignores(path)
    return InitResult(path=str(path), created=created, checks=checks, setup=setup, agent=name, ignored=ignored)


def _offer_agent(app: App, prompts: Prompts) -> str | None:
    """Offer an agent to a person whose project already has its file, for example from a colleague."""
    config = app.user_configuration().config
    missing = not config.models and not config.agents
    if not missing and not prompts.confirm("You have an agent or model. Set up another one?", default=False):
        return None
    return _ask_agent(app, prompts)


def _ask_agent(app: App, prompts: Prompts) -> str | None:
    """Ask for an agent, write it into the user's configuration, and return its name (`None`: no agent)."""
    questions = _AgentQuestions(app, prompts)
    agent = questions.ask()
    if agent is None:
        return None
    _keep_plan(app, prompts, agent)
    before = app.user_configuration().config
    agents = {*before.agents, agent.name} - {NATIVE}
    models = {*before.models, *filter(None, [agent.model])}
    # Models are chosen among for the native agent, which other agents displace.
    is_choice = len(agents or models) > 1
    if is_choice and not before.decisions.learned and has_extra("decisions"):
        _keep_worth(app, questions.ask_worth(), prompts)
    return agent.name


def _keep_worth(app: App, worth: float, prompts: Prompts) -> None:
    """Have models and agents chosen by what they achieve and cost, unless a solved task is worth nothing."""
    if worth > 0:
        learned = {"decisions.learned": "true", "decisions.worth_usd": f"{worth:g}"}
        set_user_values(user_config_path(app.environ), learned)
        # A model that the configuration names for the native agent would leave no choice.
        unset_user_value(user_config_path(app.environ), f"agents.{NATIVE}.model")
        prompts.notice("`chargehand decision why last` will explain each choice.")


def _keep_plan(app: App, prompts: Prompts, agent: AgentPlan) -> None:
    # The key first: a model without its key is useless, and a key without its model does no harm.
    if agent.secret is not None:
        place = app.credentials.set(agent.secret.name, agent.secret.value)
        prompts.notice(f"The key is stored as {agent.secret.name} in {place}.")
    set_user_values(user_config_path(app.environ), agent.values)


def add_model(app: App, prompts: Prompts | None) -> ModelAdded | None:
    """Ask for a model, try it, and write it into the user's configuration; `None` if the person adds no model.

    Raises `UsageError` without a person to ask.
    """
    if prompts is None:
        raise UsageError(
            "adding a model asks for its key and tries it, which needs a terminal",
            hint="without one: chargehand secret set ANTHROPIC_API_KEY, and `model` in [models.NAME] of "
            f"{user_config_path(app.environ)}",
        )
    plan = _AgentQuestions(app, prompts).ask(only_models=True)
    if plan is None or plan.model is None:
        return None
    _keep_plan(app, prompts, plan)
    return ModelAdded(model=plan.model, path=str(user_config_path(app.environ)))


async def examine(app: App) -> Diagnosis:
    """Test the abilities of this machine, its models and its agents, and find the next step."""
    found = await diagnose(app)
    with contextlib.suppress(ChargehandError):  # the failed parts say what to fix first
        return _with_agents(app, found)
    return found


def _with_agents(app: App, found: Diagnosis) -> Diagnosis:
    config = app.user_configuration().config
    models = tuple(
        UsableModel(name=each.name, ready=each.key.name is None or each.key.found, key=each.key.where)
        for each in list_models(app, None).models
    )
    programs = (agent_option(each.name) for each in installed_programs(app.environ))
    agents = (*sorted({*config.agents} - {NATIVE}), *filter(None, programs))
    has_agent = any(each.ready for each in models) or bool({*config.agents} - {NATIVE})
    return replace(found, models=models, agents=agents, next=_next_step(app, found, has_agent=has_agent))


def _next_step(app: App, found: Diagnosis, *, has_agent: bool) -> str:
    if found.tier is None:
        return ""
    if not has_agent:
        return "chargehand model add"
    try:
        located = app.preparation.find(only_reads=True)
    except ChargehandError:
        return "cd REPOSITORY && chargehand init"
    configured = located.repository_file(head=True) is not None
    return 'chargehand run "TEXT"' if configured else "chargehand init"


def _write_project_file(
    path: Path,
    header: Sequence[str],
    checks: tuple[str, ...],
    setup: str | None,
    detected_setup: str | None,
) -> bool:
    """Write a project's file atomically, unless it exists; return whether it was written."""

    def toml(value: object) -> str:
        # JSON's strings and lists are valid TOML, except for DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

    lines = [f"# {line}".rstrip() for line in header]
    lines += ["", _HEAD.rstrip("\n")] if header else [_HEAD.rstrip("\n")]
    if checks:
        lines.append(f"checks = {toml(list(checks))}")
    else:
        lines.append('# checks = ["python -m pytest -q"]   # none found: without checks a person must decide')
    if setup is not None:
        lines.append(f"setup = {toml(setup)}")
    elif detected_setup is not None:
        lines.append(f"# setup = {toml(detected_setup)}   # detected; used without this line if checks need it")
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with fresh.open("x", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        os.link(fresh, path)  # unlike a rename, it fails if another process was quicker
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(
            f"cannot write {str(path)!r}: {error.strerror}", hint="check the permissions of its directory"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()
    return True


Offer = tuple[str, Callable[[], AgentPlan | None]]


class _AgentQuestions:
    """Asks for an agent; nothing is written until all questions are answered, so that stopping has no effect."""

    def __init__(self, app: App, prompts: Prompts) -> None:
        self._app = app
        self._prompts = prompts
        self._config: Config = app.user_configuration().config

    def _has_key(self, provider: str) -> bool:
        return has_key(ModelConfig(provider=provider), existing_keys(self._app.credentials))

    def ask(self, *, only_models: bool = False) -> AgentPlan | None:
        """Return the chosen agent, `None` if the person chose no agent."""
        offers: list[Offer] = [
            (f"a model from {title} ({usual_key(provider)} is set)", partial(self._ask_provider, provider))
            for provider, title in _PROVIDERS.items()
            if self._has_key(provider)
        ]
        for model in find_ollama(self._app.environ)[:_OLLAMA_OFFERS]:
            entry = ModelConfig(provider="ollama", model=model)
            offer = partial(self._try_model, self._free_name("ollama"), entry, None)
            offers.append((f"{model}, served by Ollama on this machine", offer))
        offers += [
            (f"a model from {title}, with a key to paste", partial(self._ask_provider, provider, key=True))
            for provider, title in _PROVIDERS.items()
        ]
        offers.append(("an OpenAI-compatible endpoint", self._ask_endpoint))
        if not only_models:
            for program in installed_programs(self._app.environ):
                self._prompts.installed(program)
                if program.driven and (provider := _CLI_PROVIDERS.get(program.name)):
                    title = f"the program {program.name}, with a model from {_PROVIDERS[provider]}"
                    offers.append((title, partial(self._ask_cli, program.name, provider)))
            offers.append(("a command of your own", self._ask_command))
        offers.append(("none for now", lambda: None))
        what = "a model" if only_models else "an agent"
        self._prompts.notice(f"Choose {what} for your own configuration ({user_config_path(self._app.environ)}):")
        while True:
            for number, (title, _) in enumerate(offers, 1):
                self._prompts.notice(f"  {number}  {title}")
            number = self._prompts.number("Which one?", largest=len(offers))
            try:
                return offers[number - 1][1]()
            except _ChooseAgainError:
                continue

    def _ask_provider(self, provider: str, *, key: bool = False) -> AgentPlan:
        name = self._free_name(provider)
        usual = DEFAULT_MODELS[provider].partition(":")[2]
        model = self._ask_value("Model", f"models.{name}.model", default=usual)
        entry = ModelConfig(provider=provider, model=model)
        return self._try_model(name, entry, usual_key(provider) if key else None)

    def _ask_cli(self, program: str, provider: str) -> AgentPlan:
        plan = self._ask_provider(provider, key=not self._has_key(provider))
        # The program calls the model through the gateway, which has the key: its login is not in the sandbox.
        values = {key: value for key, value in plan.values.items() if key.startswith("models.")}
        model = next(iter(values)).split(".")[1]
        values |= {f"agents.{program}.kind": "cli", f"agents.{program}.cli": program}
        return AgentPlan(
            name=program, values=values | {f"agents.{program}.model": model}, model=model, secret=plan.secret
        )

    def _ask_endpoint(self) -> AgentPlan:
        name = self._free_name(self._ask_entry_name("A name for it", "models.{}.model", default="endpoint"))
        base_url = self._ask_value("Base URL, such as http://127.0.0.1:8000/v1", f"models.{name}.base_url")
        model = self._ask_value("Model", f"models.{name}.model")
        price = self._ask_value(
            "USD per million tokens (0: free, empty: unknown)",
            f"models.{name}.price",
            # No one charges for models that run on this machine.
            default="0" if is_loopback(base_url) else "",
            optional=True,
        )
        secret = None
        if self._prompts.confirm("Does it need a key?", default=not is_loopback(base_url)):
            # The name of a secret begins with a letter and has at most 64 characters.
            secret = re.sub("-", "_", f"{name.upper()[:40]}_API_KEY")
            secret = secret if secret[0].isalpha() else f"MODEL_{secret}"
        entry = ModelConfig(model=model, base_url=base_url, price=float(price) if price else None, key=secret)
        return self._try_model(name, entry, secret)

    def _ask_command(self) -> AgentPlan:
        name = self._ask_entry_name("Its name", "agents.{}.command")
        while True:
            text = self._prompts.text("Its command")
            try:
                words = json.dumps(shlex.split(text), ensure_ascii=False)
                check_user_value(f"agents.{name}.command", words)
            except ValueError as error:
                self._prompts.notice(f"That is not a command: {error}")
                continue
            return AgentPlan(name=name, values={f"agents.{name}.command": words})

    def _try_model(self, name: str, model: ModelConfig, secret_name: str | None) -> AgentPlan:
        """Ask for the key, call the model once, and show the result; a person decides after a failure."""
        while True:
            secret = None
            while secret_name and secret is None:
                value = self._prompts.text("Its API key (input is hidden)", hidden=True)
                # The key is sent in an HTTP header.
                if value.isascii() and value.isprintable() and value:
                    secret = Secret(name=secret_name, value=value)
                else:
                    self._prompts.notice("That is not a key: it is empty or has characters that no key can have.")
            self._prompts.notice("Calling it once, with a few tokens …")
            keys = _PastedKeys(stored=existing_keys(self._app.credentials), pasted=secret)
            limits = self._config.limits
            probe = asyncio.run(probe_model(name, model, keys=keys, limits=limits, environ=self._app.environ))
            self._prompts.notice(f"{'It works: ' if probe.fine else ''}{describe_probe(probe)}")
            if not probe.fine:
                again = "paste the key again" if secret_name else "try again"
                self._prompts.notice(f"  again  {again}\n  keep   use it as it is\n  other  choose something else")
                answer = self._prompts.word("What now?", words=("again", "keep", "other"))
                if answer == "other":
                    raise _ChooseAgainError
                if answer == "again":
                    continue
            said = {
                "provider": model.provider,
                "model": model.model,
                "base_url": model.base_url,
                "key": model.key,
                # Without an exponent: the parser of configuration values does not accept 1e-05 as a number.
                "price": None if model.price is None else f"{model.price:.9f}".rstrip("0").rstrip("."),
            }
            values = {f"models.{name}.{field}": value for field, value in said.items() if value is not None}
            values |= {f"agents.{NATIVE}.kind": NATIVE, f"agents.{NATIVE}.model": name}
            return AgentPlan(name=NATIVE, values=values, model=name, secret=secret)

    def _free_name(self, name: str) -> str:
        """Return the name, followed by a number if it is taken."""
        taken = self._config.models.keys()
        numbered = (f"{name}-{number}" for number in range(2, len(taken) + 3))
        return name if name not in taken else next(each for each in numbered if each not in taken)

    def ask_worth(self) -> float:
        """Ask what a solved task is worth in USD."""
        self._prompts.notice("Chargehand can choose among your models and agents by what they achieve and cost.")
        while True:
            value = self._prompts.text("What is a solved task worth to you in USD (0: choose none)", default="5")
            if value.strip() == "0":
                return 0.0
            try:
                check_user_value("decisions.worth_usd", value)
            except ConfigError as error:
                self._prompts.notice(f"{error.message.partition(': ')[2]}.")
                continue
            return float(value)

    def _ask_entry_name(self, question: str, key: str, *, default: str | None = None) -> str:
        while True:
            name = self._prompts.text(question, default=default)
            try:
                check_user_value(key.format(name), "x")
            except ConfigError:
                self._prompts.notice("A name is at most 64 letters, digits, '-' and '_'.")
                continue
            return name

    def _ask_value(self, question: str, key: str, *, default: str | None = None, optional: bool = False) -> str:
        """Ask until the answer is a valid value of the key; empty if that is allowed."""
        while True:
            value = self._prompts.text(question, default=default)
            if optional and not value:
                return ""
            try:
                check_user_value(key, value)
            except ConfigError as error:
                # Without the key's name in front: the person was just asked for it.
                self._prompts.notice(f"{error.message.partition(': ')[2]}.")
                continue
            return value
