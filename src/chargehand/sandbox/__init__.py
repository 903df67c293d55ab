"""Places where untrusted programs run, and the proof of what this machine can offer."""

from importlib import import_module
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
    from chargehand.sandbox._isolate import (
        ConsoleLine,
        SnippetEngineError,
        SnippetError,
        SnippetResult,
        SnippetSpec,
        language_of,
    )
    from chargehand.sandbox._isolate_pool import SnippetPool, probe_snippets, run_snippet
    from chargehand.sandbox._mirror import RegistryMirror, mirror_environment
    from chargehand.sandbox._mirror_config import RegistryConfig

__all__ = [
    "EGRESS_PORT",
    "GATEWAY_PORT",
    "WORKSPACE",
    "AllowList",
    "ConsoleLine",
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
    "SnippetEngineError",
    "SnippetError",
    "SnippetPool",
    "SnippetResult",
    "SnippetSpec",
    "Stream",
    "Toolchain",
    "discover",
    "language_of",
    "meet_rules",
    "mirror_environment",
    "parse_rule",
    "probe",
    "probe_snippets",
    "run_snippet",
    "without_grants",
]

_LAZY = {
    **dict.fromkeys(("RegistryMirror", "mirror_environment"), "_mirror"),
    "RegistryConfig": "_mirror_config",
    "EgressProxy": "_egress",
    **dict.fromkeys(
        ("ConsoleLine", "SnippetEngineError", "SnippetError", "SnippetResult", "SnippetSpec", "language_of"),
        "_isolate",
    ),
    **dict.fromkeys(("SnippetPool", "probe_snippets", "run_snippet"), "_isolate_pool"),
}
"""What most commands never use, by the module that has it; the registry mirror's HTTP client alone costs 0.2 s."""


def __getattr__(name: str) -> Any:
    """Import what is in `_LAZY` when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
