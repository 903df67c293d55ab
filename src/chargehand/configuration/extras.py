"""The optional parts of the installation: what each gives, whether it is installed, and how to install it."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from chargehand.core.errors import UsageError


class Extra(Struct, frozen=True, kw_only=True):
    """One extra of the distribution; `gives` completes "needed for", `modules` are those that it must have."""

    name: str
    gives: str
    modules: tuple[str, ...]

    @property
    def installed(self) -> bool:
        """Whether all its modules can be found; imports none of them."""
        return all(_is_found(module) for module in self.modules)


# No other module imports these distributions outside the packages that these extras stand for; a test checks that.
EXTRAS = (
    Extra(
        name="server",
        gives="the dashboard and its API (chargehand up)",
        modules=("granian", "starlette", "prometheus_client"),
    ),
    Extra(
        name="mcp",
        gives="the MCP server for other agents (chargehand mcp)",
        modules=("mcp", "mcp_types", "pydantic", "starlette", "uvicorn"),
    ),
    Extra(name="postgres", gives="several machines on one PostgreSQL database", modules=("psycopg",)),
    Extra(name="keyring", gives="secrets in the system's keyring", modules=("keyring",)),
)


class NotInstalledError(UsageError):
    """An optional part is not installed; the hint is the command that installs it."""

    default_code = "not_installed"


def require_extra(name: str) -> None:
    """Raise `NotInstalledError` unless an extra is installed."""
    extra = next(each for each in EXTRAS if each.name == name)
    if not extra.installed:
        raise NotInstalledError(
            f"{extra.gives} needs the optional part {name!r}, which is not installed",
            hint=install_command(name),
        )


def install_command(name: str) -> str:
    """Return the command that adds an extra to this installation: of pipx, of `uv tool`, or of pip."""
    prefix = Path(sys.prefix)
    # pipx and uv make the environment anew, without the extras that are not named.
    names = sorted({name, *(each.name for each in EXTRAS if each.installed)})
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx install --force 'chargehand[{','.join(names)}]'"
    if (prefix / "uv-receipt.toml").exists():
        return f"uv tool install 'chargehand[{','.join(names)}]'"
    # The first pip on PATH may be that of another environment.
    pip = shutil.which("pip")
    ours = pip is not None and Path(pip).parent == Path(sys.executable).parent
    return f"{'pip' if ours else f'{sys.executable} -m pip'} install 'chargehand[{name}]'"


def _is_found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a finder that refuses, or a module without a spec
        return False
