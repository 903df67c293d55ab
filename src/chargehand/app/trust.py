"""When a person has to trust the repository's own configuration, and how they are asked.

The grants are kept in the store; here is only the rule. Trust is of one exact content: any change of the file asks
anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from chargehand.app.config.records import ResolvedConfig
from chargehand.core.errors import WaitingError

if TYPE_CHECKING:
    from chargehand.app.reading import StateReader
    from chargehand.app.wiring.session import ConfiguredBase

TRUST_HINT = "chargehand project trust"

ConfirmTrust = Callable[[tuple[str, ...]], bool]
"""Asks a person whether they trust what these lines describe; `False` where they do not."""


def trust_needed(resolved: ResolvedConfig) -> bool:
    """Return whether trust of the repository's file would change the configuration in force."""
    return bool(resolved.untrusted)


def describe_untrusted(resolved: ResolvedConfig) -> tuple[str, ...]:
    """Return one line for each key that asks for trust, fit to show a person before they answer."""
    return tuple(f"{key.place}: {key.key} = {key.value} {key.reason}" for key in resolved.untrusted)


def settle_trust(reader: StateReader, found: ConfiguredBase, confirm: ConfirmTrust | None) -> None:
    """Ask a person once, if `confirm` is given, whether the repository's file may have what it asks for.

    Raises `WaitingError` where nobody can be asked or the answer is no.
    """
    if not trust_needed(found.resolved):
        return
    if confirm is not None and confirm(describe_untrusted(found.resolved)):
        reader.store.trust.grant(found.project.id, found.resolved.digest, identity=reader.identity())
        return
    require_trust(found.resolved)


def require_trust(resolved: ResolvedConfig) -> None:
    """Raise `WaitingError` (exit 3, code `trust_needed`) unless nothing asks for trust."""
    if not trust_needed(resolved):
        return
    keys = "; ".join(describe_untrusted(resolved))
    raise WaitingError(
        f"chargehand.toml asks for more than it may have untrusted: {keys}", code="trust_needed", hint=TRUST_HINT
    )
