"""Places where untrusted programs run, and the proof of what this machine can offer."""

from typing import TYPE_CHECKING, Any

from chargehand.sandbox._contract import (
    EGRESS_PORT,
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
from chargehand.sandbox._egress_contract import EgressLimits, EgressRequest, Resolve
from chargehand.sandbox._egress_rules import AllowList, Rule, meet_rules, parse_rule, without_grants
from chargehand.sandbox._probe import Part, ProbeReport, probe
from chargehand.sandbox._process import ProcessTier
from chargehand.sandbox._processes import ProcessSeen
from chargehand.sandbox._toolchain import Toolchain, discover

if TYPE_CHECKING:
    from chargehand.sandbox._egress import EgressProxy
    from chargehand.sandbox._mirror import RegistryMirror, mirror_environment
    from chargehand.sandbox._mirror_config import RegistryConfig

__all__ = [
    "EGRESS_PORT",
    "GATEWAY_PORT",
    "WORKSPACE",
    "AllowList",
    "EgressLimits",
    "EgressProxy",
    "EgressRequest",
    "ExecResult",
    "OnOutput",
    "OpenSandbox",
    "Part",
    "ProbeReport",
    "ProcessSeen",
    "ProcessTier",
    "RegistryConfig",
    "RegistryMirror",
    "Resolve",
    "Rule",
    "Sandbox",
    "SandboxLimits",
    "SandboxSpec",
    "SandboxUsage",
    "ShowsProcesses",
    "Stream",
    "Toolchain",
    "discover",
    "meet_rules",
    "mirror_environment",
    "parse_rule",
    "probe",
    "without_grants",
]


def __getattr__(name: str) -> Any:
    """Import the mirror and the proxy when they are first used: an HTTP client would cost every command 0.2 s."""
    if name == "EgressProxy":
        from chargehand.sandbox._egress import EgressProxy

        return EgressProxy
    if name == "RegistryConfig":
        from chargehand.sandbox._mirror_config import RegistryConfig

        return RegistryConfig
    if name in ("RegistryMirror", "mirror_environment"):
        from chargehand.sandbox import _mirror

        return getattr(_mirror, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
