"""When a person has to say yes to the repository's own configuration, and how they are asked.

The grants themselves are kept elsewhere; here is only the rule. Trust is of one exact content: any change of
the file asks anew.
"""

from __future__ import annotations

from chargehand.app.config.records import ResolvedConfig, UntrustedKey
from chargehand.core.errors import WaitingError

TRUST_HINT = "chargehand project trust"


def trust_needed(resolved: ResolvedConfig) -> bool:
    """Return whether trust of the repository's file would change the configuration in force."""
    return bool(resolved.untrusted)


def describe_untrusted(resolved: ResolvedConfig) -> tuple[str, ...]:
    """Return one line for each key that asks for trust, fit to show a person before they answer."""
    return tuple(_line(key) for key in resolved.untrusted)


def require_trust(resolved: ResolvedConfig) -> None:
    """Raise `WaitingError` (exit 3, code `trust_needed`) unless nothing asks for trust."""
    if not trust_needed(resolved):
        return
    keys = "; ".join(describe_untrusted(resolved))
    raise WaitingError(
        f"chargehand.toml asks for more than it may have untrusted: {keys}", code="trust_needed", hint=TRUST_HINT
    )


def _line(key: UntrustedKey) -> str:
    return f"{key.place}: {key.key} = {key.value} {key.reason}"
