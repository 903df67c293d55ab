"""The model endpoint that every agent talks through, and who answers behind it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from chargehand.models._contract import (
    PATHS,
    Call,
    CallRecord,
    CallStatus,
    Dialect,
    Operation,
    Price,
    QuotaRest,
    ServedModel,
    Upstream,
    UpstreamReply,
    Usage,
)

if TYPE_CHECKING:
    from chargehand.models._call_log import CallLog
    from chargehand.models._catalogue import (
        MODALITIES,
        Abilities,
        Fact,
        ModelFacts,
        Reported,
        find_abilities,
        find_facts,
    )
    from chargehand.models._faults import Faults, FaultyUpstream
    from chargehand.models._gateway import Gateway, new_token
    from chargehand.models._health import ProviderLimits, Providers
    from chargehand.models._http import HttpLimits
    from chargehand.models._http_upstream import HttpUpstream
    from chargehand.models._ledger import MemoryLedger
    from chargehand.models._meter import DEFAULT_OUTPUT
    from chargehand.models._modelsdev import Listed, listed_models, listed_providers
    from chargehand.models._prices import find_context, find_price
    from chargehand.models._probe import small_answer, small_request
    from chargehand.models._recording import Recording, RecordingUpstream, RecordingWriter
    from chargehand.models._redact import Redactor
    from chargehand.models._render import ScriptedCall, ScriptedReply
    from chargehand.models._replay import Divergence, ReplayUpstream, load_script, script_from
    from chargehand.models._script import Script, ScriptLine, ScriptUpstream
    from chargehand.models._trials import TRIALS, Trial, Tried, try_out

_LATER = {
    "CallLog": "_call_log",
    "DEFAULT_OUTPUT": "_meter",
    "TRIALS": "_trials",
    "Trial": "_trials",
    "Tried": "_trials",
    "try_out": "_trials",
    "Abilities": "_catalogue",
    "Divergence": "_replay",
    "MODALITIES": "_catalogue",
    "Fact": "_catalogue",
    "Faults": "_faults",
    "FaultyUpstream": "_faults",
    "Gateway": "_gateway",
    "HttpLimits": "_http",
    "HttpUpstream": "_http_upstream",
    "Listed": "_modelsdev",
    "MemoryLedger": "_ledger",
    "ModelFacts": "_catalogue",
    "ProviderLimits": "_health",
    "Providers": "_health",
    "Recording": "_recording",
    "RecordingUpstream": "_recording",
    "RecordingWriter": "_recording",
    "Redactor": "_redact",
    "ReplayUpstream": "_replay",
    "Reported": "_catalogue",
    "Script": "_script",
    "ScriptLine": "_script",
    "ScriptUpstream": "_script",
    "ScriptedCall": "_render",
    "ScriptedReply": "_render",
    "find_abilities": "_catalogue",
    "find_context": "_prices",
    "find_facts": "_catalogue",
    "find_price": "_prices",
    "listed_models": "_modelsdev",
    "listed_providers": "_modelsdev",
    "load_script": "_replay",
    "new_token": "_gateway",
    "script_from": "_replay",
    "small_answer": "_probe",
    "small_request": "_probe",
}
"""Where what a command agent never needs comes from: it is imported when it is first used."""

__all__ = [
    "DEFAULT_OUTPUT",
    "MODALITIES",
    "PATHS",
    "TRIALS",
    "Abilities",
    "Call",
    "CallLog",
    "CallRecord",
    "CallStatus",
    "Dialect",
    "Divergence",
    "Fact",
    "Faults",
    "FaultyUpstream",
    "Gateway",
    "HttpLimits",
    "HttpUpstream",
    "Listed",
    "MemoryLedger",
    "ModelFacts",
    "Operation",
    "Price",
    "ProviderLimits",
    "Providers",
    "QuotaRest",
    "Recording",
    "RecordingUpstream",
    "RecordingWriter",
    "Redactor",
    "ReplayUpstream",
    "Reported",
    "Script",
    "ScriptLine",
    "ScriptUpstream",
    "ScriptedCall",
    "ScriptedReply",
    "ServedModel",
    "Trial",
    "Tried",
    "Upstream",
    "UpstreamReply",
    "Usage",
    "find_abilities",
    "find_context",
    "find_facts",
    "find_price",
    "listed_models",
    "listed_providers",
    "load_script",
    "new_token",
    "script_from",
    "small_answer",
    "small_request",
    "try_out",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for now."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
