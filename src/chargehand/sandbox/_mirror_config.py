"""The user's own package registries, as read on the host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from chargehand.sandbox._mirror_cargo_config import CargoConfig, read_cargo_config
from chargehand.sandbox._mirror_go_config import GoConfig, read_go_config
from chargehand.sandbox._mirror_npm_config import read_npm_config
from chargehand.sandbox._mirror_pip_config import read_pip_config
from chargehand.sandbox._mirror_settings import NpmConfig, PipConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """Where packages come from, with what credentials and trust; its repr shows no secret."""

    pip: PipConfig = field(default_factory=PipConfig)
    npm: NpmConfig = field(default_factory=NpmConfig)
    cargo: CargoConfig = field(default_factory=CargoConfig)
    go: GoConfig = field(default_factory=GoConfig)

    @classmethod
    def from_user(cls, environ: Mapping[str, str] | None = None) -> RegistryConfig:
        """Return the configuration of the user whose environment is `environ` (default: this process's).

        Asks the host's `pip config list` (about a second: call it off the event loop) and reads the files of npm,
        cargo and go; without configuration the public registries. Raises `ConfigError` for an unusable registry
        URL of pip or npm; what cargo or go name and cannot be served is told when it is asked for.
        """
        variables = os.environ if environ is None else environ
        return cls(
            pip=read_pip_config(variables),
            npm=read_npm_config(variables),
            cargo=read_cargo_config(variables),
            go=read_go_config(variables),
        )
