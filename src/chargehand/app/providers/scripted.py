"""Scripted models: a script or a recording answers instead of a provider."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chargehand.core.config import ModelConfig
from chargehand.core.errors import ConfigError
from chargehand.models.contract import Price, ServedModel


def scripted_model(name: str, config: ModelConfig, *, attempts: Mapping[str, int]) -> ServedModel:
    """Return a model whose replies come from a file, by attempt (`attempts`: id to number) and turn.

    Its price is the entry's, free by default. Raises `ConfigError` (`no_script`), `UsageError`.
    """
    from chargehand.models.catalogue import find_price
    from chargehand.models.replay import load_script
    from chargehand.models.script_upstream import ScriptUpstream

    if config.script is None:
        raise ConfigError(
            f"model {name!r} is scripted and names no file",
            code="no_script",
            hint=f"chargehand config set models.{name}.script /path/to/script.jsonl",
        )
    path = Path(config.script).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"model {name!r}: its script {str(path)!r} is not there",
            code="no_script",
            hint=f"chargehand config set models.{name}.script /path/to/script.jsonl",
        )
    free = Price(input=0.0, output=0.0, source="script")
    return ServedModel(
        name=name,
        dialect="openai",
        model=config.model or name,
        upstream=ScriptUpstream(load_script(path), attempts=attempts),
        price=find_price(config.provider, config.model or name, config, assume=None) or free,
        max_output=config.max_output,
        images=config.images is not False,
        files=config.images is not False,
        tools=config.tools is not False,
    )
