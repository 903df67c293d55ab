"""Places where untrusted programs run, and the proof of what this machine can offer."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chargehand.sandbox._contract import (
    EGRESS_PORT,
    GATEWAY_PORT,
    REGISTRY_PORT,
    WORKSPACE,
    Converses,
    ExecResult,
    LimitName,
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
from chargehand.sandbox._mirror_reply import MirrorRequest
from chargehand.sandbox._probe import Part, ProbeReport, probe, scratch_plan
from chargehand.sandbox._process import ProcessTier
from chargehand.sandbox._processes import ProcessSeen
from chargehand.sandbox._toolchain import NotShown, Toolchain, discover
from chargehand.sandbox._toolchain_seen import ToolSeen, origin, tools_inside

if TYPE_CHECKING:
    from chargehand.sandbox._conformance import SandboxContract
    from chargehand.sandbox._conformance_kit import OpenedSandbox
    from chargehand.sandbox._container import ContainerTier
    from chargehand.sandbox._container_probe import probe_container
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
    from chargehand.sandbox._vm import VmTier
    from chargehand.sandbox._vm_guest import Guest, find_guest, set_up_guest
    from chargehand.sandbox._vm_layout import Machine
    from chargehand.sandbox._vm_machine import find_machine, virtual_machines
    from chargehand.sandbox._vm_probe import probe_vm

__all__ = [
    "EGRESS_PORT",
    "GATEWAY_PORT",
    "REGISTRY_PORT",
    "WORKSPACE",
    "AllowList",
    "ConsoleLine",
    "ContainerTier",
    "Converses",
    "EgressLimits",
    "EgressProxy",
    "EgressRequest",
    "ExecResult",
    "Guest",
    "LimitName",
    "Machine",
    "MirrorRequest",
    "NotShown",
    "OnOutput",
    "OpenSandbox",
    "OpenedSandbox",
    "Part",
    "ProbeReport",
    "ProcessSeen",
    "ProcessTier",
    "RegistryConfig",
    "RegistryMirror",
    "Resolve",
    "Rule",
    "Sandbox",
    "SandboxContract",
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
    "ToolSeen",
    "Toolchain",
    "VmTier",
    "discover",
    "find_guest",
    "find_machine",
    "language_of",
    "meet_rules",
    "mirror_environment",
    "origin",
    "parse_rule",
    "probe",
    "probe_container",
    "probe_snippets",
    "probe_vm",
    "run_snippet",
    "scratch_plan",
    "set_up_guest",
    "tools_inside",
    "virtual_machines",
    "without_grants",
]

_LAZY = {
    **dict.fromkeys(("RegistryMirror", "mirror_environment"), "_mirror"),
    "RegistryConfig": "_mirror_config",
    "EgressProxy": "_egress",
    "ContainerTier": "_container",
    "probe_container": "_container_probe",
    "SandboxContract": "_conformance",
    "OpenedSandbox": "_conformance_kit",
    **dict.fromkeys(
        ("ConsoleLine", "SnippetEngineError", "SnippetError", "SnippetResult", "SnippetSpec", "language_of"),
        "_isolate",
    ),
    "VmTier": "_vm",
    "Machine": "_vm_layout",
    "probe_vm": "_vm_probe",
    **dict.fromkeys(("Guest", "find_guest", "set_up_guest"), "_vm_guest"),
    **dict.fromkeys(("find_machine", "virtual_machines"), "_vm_machine"),
    **dict.fromkeys(("SnippetPool", "probe_snippets", "run_snippet"), "_isolate_pool"),
}
"""What most commands never use: the mirror's HTTP client costs them 0.2 s, the contract needs pytest."""


def __getattr__(name: str) -> Any:
    """Import what is in `_LAZY` when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
