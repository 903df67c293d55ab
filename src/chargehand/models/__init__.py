"""The model endpoint that every agent talks through, and who answers behind it."""

from chargehand.models._contract import (
    PATHS,
    Call,
    CallRecord,
    CallStatus,
    Dialect,
    Price,
    ServedModel,
    Upstream,
    UpstreamReply,
    Usage,
)

__all__ = [
    "PATHS",
    "Call",
    "CallRecord",
    "CallStatus",
    "Dialect",
    "Price",
    "ServedModel",
    "Upstream",
    "UpstreamReply",
    "Usage",
]
