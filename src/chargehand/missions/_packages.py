"""Where cargo and go keep in an environment layer what setup fetched, and what tells them of it later."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from chargehand.core.errors import RefusedError
from chargehand.missions._services import Registries
from chargehand.sandbox.contract import WORKSPACE, Sandbox

_PLACE = ".chargehand"
CARGO_HOME, GO_MODULES = f"{_PLACE}/cargo", f"{_PLACE}/go"
"""Below the workspace, so that they lie in the layer: $HOME ends with each sandbox."""
CARGO_SIGNS, GO_SIGNS = ("Cargo.toml",), ("go.mod", "go.work")
_CARGO_COMMAND, _GO_COMMAND = re.compile(r"\bcargo\b"), re.compile(r"\bgo\b")
_WRITE = 'umask 022 && mkdir -p "${1%/*}" && cat > "$1"'


def setup_variables(setup: str, signs: frozenset[str]) -> Mapping[str, str]:
    """Return the variables of a setup with network, for the clients that its command or the base's files show."""
    found = {}
    if signs.intersection(CARGO_SIGNS) or _CARGO_COMMAND.search(setup):
        found["CARGO_HOME"] = f"{WORKSPACE}/{CARGO_HOME}"
    if signs.intersection(GO_SIGNS) or _GO_COMMAND.search(setup):
        found["GOMODCACHE"] = f"{WORKSPACE}/{GO_MODULES}"
    return found


def layer_variables(environment: Path | None) -> Mapping[str, str]:
    """Return what tells cargo and go of the packages in a layer, and that there are no others to be had."""
    found: dict[str, str] = {}
    if environment is not None and (environment / CARGO_HOME / "registry").is_dir():
        found |= {"CARGO_HOME": f"{WORKSPACE}/{CARGO_HOME}", "CARGO_NET_OFFLINE": "true"}
    if environment is not None and (environment / GO_MODULES / "cache").is_dir():
        found |= {"GOMODCACHE": f"{WORKSPACE}/{GO_MODULES}", "GOPROXY": "off", "GOFLAGS": "-modcacherw"}
    return found


async def point_cargo(sandbox: Sandbox, registries: Registries) -> None:
    """Write the settings that put the mirror in the place of cargo's sources; they stay in the layer."""
    path = f"{WORKSPACE}/{CARGO_HOME}/config.toml"
    done = await sandbox.exec(
        ["/bin/sh", "-c", _WRITE, "sh", path], stdin=registries.cargo_settings().encode(), timeout=60.0
    )
    if done.exit_code != 0:
        raise RefusedError(
            f"setup failed: {path} cannot be written",
            code="setup_failed",
            hint=f"the repository must have no file {_PLACE!r}",
        )
