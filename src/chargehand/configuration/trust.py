"""Trust in a repository's own file: what needs it, and asking a person for it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from chargehand.configuration.records import ResolvedConfig
from chargehand.core.errors import WaitingError

TRUST_HINT = "chargehand project trust"

# Asks a person whether they trust what these lines describe; returns `False` if not.
ConfirmTrust = Callable[[tuple[str, ...]], bool]


def trust_needed(resolved: ResolvedConfig) -> bool:
    """Return whether trust of the repository's file would change the configuration in force."""
    return bool(resolved.untrusted)


def describe_untrusted(resolved: ResolvedConfig) -> tuple[str, ...]:
    """Return one line for each key that needs trust, fit to show a person before they answer."""
    return tuple(f"{key.place}: {key.key} = {key.value} {key.reason}" for key in resolved.untrusted)


def add_stranger(resolved: ResolvedConfig, agent: str, model: str | None) -> ResolvedConfig:
    """Return `resolved` with an agent that needs trust added to the untrusted keys.

    An agent needs trust if it spends the user's money on `model` and its program comes from an untrusted file of
    the repository.
    """
    stranger = resolved.strangers.get(agent)
    if stranger is None or model is None:
        return resolved
    return replace(resolved, untrusted=(*resolved.untrusted, stranger))


def settle_trust(resolved: ResolvedConfig, confirm: ConfirmTrust | None, grant: Callable[[str], object]) -> None:
    """Ask a person once, if `confirm` is given, whether they trust the repository's file.

    `grant` records their trust in the content with that digest. Raises `WaitingError` if no one can be asked or
    the answer is no.
    """
    if not trust_needed(resolved):
        return
    if confirm is not None and confirm(describe_untrusted(resolved)):
        grant(resolved.digest)
        return
    require_trust(resolved)


def require_trust(resolved: ResolvedConfig) -> None:
    """Raise `WaitingError` (exit 3, code `trust_needed`) if any key needs trust."""
    if not trust_needed(resolved):
        return
    keys = "; ".join(describe_untrusted(resolved))
    raise WaitingError(f"chargehand.toml needs trust for: {keys}", code="trust_needed", hint=TRUST_HINT)
