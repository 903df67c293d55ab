"""Places where untrusted programs run, and the proof of what this machine can offer."""

from typing import TYPE_CHECKING, Any

from chargehand.sandbox._contract import (
    GATEWAY_PORT,
    WORKSPACE,
    ExecResult,
    OnOutput,
    OpenSandbox,
    Sandbox,
    SandboxLimits,
    SandboxSpec,
    SandboxUsage,
    ShowsProcesses,
    Stream,
)
from chargehand.sandbox._probe import Part, ProbeReport, probe
from chargehand.sandbox._process import ProcessTier
from chargehand.sandbox._processes import ProcessSeen
from chargehand.sandbox._toolchain import Toolchain, discover

if TYPE_CHECKING:
    from chargehand.sandbox._mirror import RegistryMirror, mirror_environment
    from chargehand.sandbox._mirror_config import RegistryConfig

__all__ = [
    "GATEWAY_PORT",
    "WORKSPACE",
    "ExecResult",
    "OnOutput",
    "OpenSandbox",
    "Part",
    "ProbeReport",
    "ProcessSeen",
    "ProcessTier",
    "RegistryConfig",
    "RegistryMirror",
    "Sandbox",
    "SandboxLimits",
    "SandboxSpec",
    "SandboxUsage",
    "ShowsProcesses",
    "Stream",
    "Toolchain",
    "discover",
    "mirror_environment",
    "probe",
]


def __getattr__(name: str) -> Any:
    """Import the registry mirror when it is first used: its HTTP client would cost every command 0.2 s."""
    if name == "RegistryConfig":
        from chargehand.sandbox._mirror_config import RegistryConfig

        return RegistryConfig
    if name in ("RegistryMirror", "mirror_environment"):
        from chargehand.sandbox import _mirror

        return getattr(_mirror, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
