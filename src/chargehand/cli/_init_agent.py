"""The part of `chargehand init` that asks for an agent: nothing is written until all is answered."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import click

from chargehand.app.composition import App
from chargehand.app.config.edit import check_user_value
from chargehand.app.locations import user_config_path
from chargehand.app.providers.ollama import find_ollama
from chargehand.app.providers.probe import ModelProbe, probe_model
from chargehand.app.providers.served import USUAL_KEYS, is_loopback
from chargehand.app.selection.agents import NATIVE
from chargehand.app.selection.choice import DEFAULT_MODELS, programs_on_path
from chargehand.cli._agents import installed_words, ways_of
from chargehand.cli._models import probe_words
from chargehand.cli._output import Output
from chargehand.core.config import Config, ModelConfig, Provider
from chargehand.core.errors import ConfigError
from chargehand.core.ports import KeySource

_TITLES: Mapping[Provider, str] = {"anthropic": "Anthropic", "openai": "OpenAI"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A key as it was pasted, and the name it is to be kept under; its representation hides it."""

    name: str
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """An agent as it was answered: keys and values for the user's own file, and a key to keep."""

    name: str
    values: Mapping[str, str]
    secret: Secret | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    """The keys that are there, and before them the one that was just pasted."""

    kept: KeySource
    pasted: Secret | None

    def get(self, name: str) -> str | None:
        if self.pasted is not None and name == self.pasted.name:
            return self.pasted.value
        return self.kept.get(name)


class _AgainError(Exception):
    """The person wants to choose anew."""


def ask_agent(app: App, out: Output) -> AgentPlan | None:
    """Ask which agent is to work; `None` for none. Raises `click.Abort` where the person stops."""
    config = app.user_configuration().config
    offers = _offers(app, out, config)
    for name, path, how in ways_of(programs_on_path()):
        out.notice(installed_words(name, path, how))
    out.notice(f"An agent for your own configuration ({user_config_path(app.environ)}):")
    for number, (title, _) in enumerate(offers, 1):
        out.notice(f"  {number}  {title}")
    while True:
        number = click.prompt("Which one?", type=click.IntRange(1, len(offers)), default=1, err=True)
        try:
            return offers[number - 1][1]()
        except _AgainError:
            continue


Offer = tuple[str, Callable[[], AgentPlan | None]]


def _offers(app: App, out: Output, config: Config) -> list[Offer]:
    found: list[Offer] = []
    for provider, title in _TITLES.items():
        key = USUAL_KEYS[provider]
        if app.credentials.get(key):
            plan = partial(_provider, app, out, config, provider, pasted=False)
            found.append((f"a model of {title}: {key} is there", plan))
    found += [
        (f"{model}, which Ollama serves on this machine", partial(_ollama, app, out, config, model))
        for model in find_ollama(app.environ)[:3]
    ]
    pasting: list[Offer] = [
        (f"a model of {title}, with a key to paste", partial(_provider, app, out, config, provider, pasted=True))
        for provider, title in _TITLES.items()
    ]
    return [
        *found,
        *pasting,
        ("an OpenAI-compatible endpoint", partial(_endpoint, app, out, config)),
        ("a command of your own", _command),
        ("none now", lambda: None),
    ]


def _provider(app: App, out: Output, config: Config, provider: Provider, *, pasted: bool) -> AgentPlan:
    name = _free(config, provider)
    usual = DEFAULT_MODELS[provider].partition(":")[2]
    model = _valid("Model", f"models.{name}.model", default=usual)
    found = ModelConfig(provider=provider, model=model)
    return _tried(app, out, config, name, found, USUAL_KEYS[provider] if pasted else None)


def _ollama(app: App, out: Output, config: Config, model: str) -> AgentPlan:
    return _tried(app, out, config, _free(config, "ollama"), ModelConfig(provider="ollama", model=model), None)


def _endpoint(app: App, out: Output, config: Config) -> AgentPlan:
    name = _free(config, _entry_name("A name for it", "models.{}.model", default="endpoint"))
    base_url = _valid("Base URL, such as http://127.0.0.1:8000/v1", f"models.{name}.base_url")
    model = _valid("Model", f"models.{name}.model")
    price = _valid(
        "USD per million tokens (0: free, empty: not known)",
        f"models.{name}.price",
        default="0" if is_loopback(base_url) else "",
        optional=True,
    )
    key = f"{name.upper().replace('-', '_')[:40]}_API_KEY"
    key = key if key[0].isalpha() else f"MODEL_{key}"
    needs_key = click.confirm("Does it need a key?", default=not is_loopback(base_url), err=True)
    found = ModelConfig(
        model=model,
        base_url=base_url,
        price=float(price) if price else None,
        key=key if needs_key else None,
    )
    return _tried(app, out, config, name, found, key if needs_key else None)


def _command() -> AgentPlan:
    name = _entry_name("Its name", "agents.{}.command")
    while True:
        text = click.prompt("Its command", err=True)
        try:
            words = json.dumps(shlex.split(text), ensure_ascii=False)
            check_user_value(f"agents.{name}.command", words)
        except ValueError as error:
            click.echo(f"That cannot be taken: {error}", err=True)
            continue
        return AgentPlan(name=name, values={f"agents.{name}.command": words})


def _tried(
    app: App, out: Output, config: Config, name: str, model: ModelConfig, secret_name: str | None
) -> AgentPlan:
    """Ask for the key, ask the model once, and say how it went; a person decides what a failure means."""
    while True:
        secret = Secret(name=secret_name, value=_pasted()) if secret_name else None
        out.notice("asking it once, with a few tokens …")
        keys = _Keys(kept=app.credentials, pasted=secret)
        probe = asyncio.run(probe_model(name, model, keys=keys, limits=config.limits, environ=app.environ))
        out.notice(_result(name, probe))
        if probe.fine or _goes_on(secret_name):
            return AgentPlan(name=NATIVE, values=_values(name, model), secret=secret)


def _result(name: str, probe: ModelProbe) -> str:
    return f"{'works' if probe.fine else 'does not work yet'}: {name}: {probe_words(probe)}"


def _goes_on(secret_name: str | None) -> bool:
    """Return whether to keep it as it is (`False`: try again); raises `_AgainError` to choose anew."""
    again = "paste the key again" if secret_name else "try again"
    click.echo(f"again: {again}; keep: go on with it as it is; other: choose something else", err=True)
    answer = click.prompt("What now?", type=click.Choice(["again", "keep", "other"]), default="again", err=True)
    if answer == "other":
        raise _AgainError
    return bool(answer == "keep")


def _pasted() -> str:
    while True:
        value: str = click.prompt("Its key (nothing is shown)", hide_input=True, err=True).strip()
        if value.isascii() and value.isprintable() and value:
            return value
        click.echo("That is no key: it is empty, or has characters no key has", err=True)


def _values(name: str, model: ModelConfig) -> dict[str, str]:
    said = {
        "provider": model.provider,
        "model": model.model,
        "base_url": model.base_url,
        "key": model.key,
        "price": None if model.price is None else f"{model.price:.9f}".rstrip("0").rstrip("."),
    }
    values = {f"models.{name}.{field}": value for field, value in said.items() if value is not None}
    return values | {f"agents.{NATIVE}.kind": NATIVE, f"agents.{NATIVE}.model": name}


def _free(config: Config, name: str) -> str:
    """Return the name, with a number behind it where it is taken."""
    taken = config.models.keys()
    numbered = (f"{name}-{number}" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(each for each in numbered if each not in taken)


def _entry_name(question: str, key: str, *, default: str | None = None) -> str:
    while True:
        name: str = click.prompt(question, default=default, err=True).strip()
        try:
            check_user_value(key.format(name), "x")
        except ConfigError:
            click.echo("A name is letters, digits, '-' and '_', at most 64", err=True)
            continue
        return name


def _valid(question: str, key: str, *, default: str | None = None, optional: bool = False) -> str:
    """Ask until the answer is what the key holds; empty where that may be."""
    while True:
        value: str = click.prompt(question, default=default, show_default=bool(default), err=True).strip()
        if optional and not value:
            return ""
        try:
            check_user_value(key, value)
        except ConfigError as error:
            click.echo(f"That cannot be taken: {error.message.partition(': ')[2]}", err=True)
            continue
        return value
