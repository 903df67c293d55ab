"""The entries of the tables of tables, `[agents.NAME]` and so on: whole ones, and what they refer to."""

from __future__ import annotations

from collections.abc import Mapping

from chargehand.app._config_keys import AGENTS, MCP, MODELS, ROLES, entry_keys
from chargehand.app._config_meet import default_of
from chargehand.app._config_model import Said
from chargehand.app._config_toml import check_agent
from chargehand.app._config_values import fail, shown
from chargehand.core.errors import nearest

SHORT = ("openai", "openai-responses", "anthropic", "gemini", "ollama", "resetdata")
"""The providers whose address is known, so that `provider:model` says everything."""


def entry_names(said: Mapping[str, Said], table: str) -> list[str]:
    """Return the names of a table's entries, in the order they are first said."""
    names = [dotted.split(".")[1] for dotted in said if dotted.startswith(f"{table}.")]
    return list(dict.fromkeys(names))


def entry_values(said: Mapping[str, Said], table: str, name: str) -> dict[str, Said]:
    """Return what is said of one entry, by dotted key in the order of the key table."""
    names = [f"{table}.{name}.{field}" for field in entry_keys(table)]
    return {dotted: said[dotted] for dotted in names if dotted in said}


def completed(table: str, name: str, said: Mapping[str, Said]) -> dict[str, Said]:
    """Return every key of one entry, with the default where nothing is said."""
    return {f"{table}.{name}.{field}": default_of(key) for field, key in entry_keys(table).items()} | dict(said)


def complete_agent(name: str, said: Mapping[str, Said]) -> dict[str, Said]:
    """Return every key of an agent; raises `ConfigError` where its kind and command contradict each other."""
    whole = completed(AGENTS, name, said)
    has = {dotted.rpartition(".")[2] for dotted, value in whole.items() if value.value}
    place = next(iter(said.values())).place
    check_agent(name, whole[f"{AGENTS}.{name}.kind"].value, has=has, place=place)
    return whole


def is_short_form(model: str) -> bool:
    """Return whether a text names provider and model, such as `ollama:qwen3:8b`."""
    provider, colon, rest = model.partition(":")
    return bool(colon and rest) and provider in SHORT


def check_references(said: Mapping[str, Said], known: Mapping[str, Said]) -> None:
    """Raise `ConfigError` for what an agent or a role refers to and `known` has no entry of."""
    names, servers = entry_names(known, MODELS), entry_names(known, MCP)
    for server in entry_names(said, MCP):
        if f"{MCP}.{server}.command" not in known:
            place = next(iter(entry_values(said, MCP, server).values())).place
            raise fail(
                place, f"the MCP server {server!r} has no command", 'add command = ["program", "argument", …]'
            )
    for dotted, value in said.items():
        section, *_, field = dotted.split(".")
        if section in (AGENTS, ROLES) and field in {"model", "fallback"}:
            for model in _models(value):
                if model not in names and not is_short_form(model):
                    raise fail(value.place, f"{field}: no model named {shown(model)}", model_hint(model, names))
        if section == AGENTS and field == "mcp":
            for server in _models(value):
                if server not in servers:
                    hint = f"{nearest(server, servers)}; configure one with [{MCP}.NAME]"
                    raise fail(value.place, f"{field}: no MCP server named {shown(server)}", hint)


def _models(said: Said) -> tuple[str, ...]:
    if isinstance(said.value, str):
        return (said.value,)
    return said.value if isinstance(said.value, tuple) else ()


def model_hint(model: str, names: list[str]) -> str:
    """Return what a person may have meant by the name of a model, and how to name one."""
    forms = "or write " + " or ".join(f"{provider}:MODEL" for provider in SHORT)
    guess = nearest(model, names)
    known = f"{guess} known: {', '.join(sorted(names))}" if guess.startswith("did") else guess
    return f"{known}; configure one with [{MODELS}.NAME], {forms}"
