"""The optional parts of the installation: what each gives, whether it is installed, and how to install it."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

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
    Extra(
        name="decisions",
        gives="choices and forecasts learned from outcomes, and belief networks",
        modules=("numpy",),
    ),
    Extra(
        name="knowledge",
        gives="the repository map and the reference library (chargehand map, chargehand library)",
        modules=(
            *("tree_sitter_c", "tree_sitter_c_sharp", "tree_sitter_cpp", "tree_sitter_go", "tree_sitter_java"),
            *("tree_sitter_javascript", "tree_sitter_php", "tree_sitter_python", "tree_sitter_ruby"),
            *("tree_sitter_rust", "tree_sitter_typescript"),
        ),
    ),
    Extra(name="postgres", gives="several machines on one PostgreSQL database", modules=("psycopg",)),
    Extra(name="aws", gives="secrets from AWS Secrets Manager", modules=("boto3",)),
    Extra(name="keyring", gives="secrets in the system's keyring", modules=("keyring",)),
)


class NotInstalledError(UsageError):
    """An optional part is not installed; the hint is the command that installs it."""

    default_code = "not_installed"


def has_extra(name: str) -> bool:
    """Return whether an extra is installed."""
    return next(each for each in EXTRAS if each.name == name).installed


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
    names = ",".join(sorted({name, *(each.name for each in EXTRAS if each.installed)}))
    source, editable = _find_source()
    flag = "--editable " if editable else ""
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx install --force {flag}'{source}[{names}]'"
    if (prefix / "uv-receipt.toml").exists():
        return f"uv tool install {flag}'{source}[{names}]'"
    # The first pip on PATH may be that of another environment.
    pip = shutil.which("pip")
    ours = pip is not None and Path(pip).parent == Path(sys.executable).parent
    return f"{'pip' if ours else f'{sys.executable} -m pip'} install {flag}'{source}[{name}]'"


def _find_source() -> tuple[str, bool]:
    """Return the name of the distribution, or the path that it was installed from; and whether it is editable."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        recorded = json.loads(distribution("chargehand").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        recorded = {}
    url = urlsplit(str(recorded.get("url", "")))
    if url.scheme != "file":
        return "chargehand", False
    return unquote(url.path), bool(recorded.get("dir_info", {}).get("editable"))


def _is_found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a finder that refuses, or a module without a spec
        return False
