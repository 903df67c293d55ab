"""Which uses of a secret its entry of [secrets.keys] admits."""

from __future__ import annotations

from collections.abc import Sequence

from chargehand.core.own_config import SecretKeyConfig
from chargehand.core.ports import KeyUse


def admits(config: SecretKeyConfig, use: KeyUse) -> bool:
    """Return whether an entry admits a use; parts of the use that are not decided yet are admitted."""
    projects = None if use.projects is None else [each.rstrip("/") for each in use.projects]
    return (
        _is_listed([each.rstrip("/") for each in config.projects], projects)
        and _is_listed(config.roles, None if use.role is None else [use.role])
        and _is_listed(config.providers, None if use.provider is None else [use.provider])
    )


def _is_listed(allowed: Sequence[str], used: Sequence[str] | None) -> bool:
    return not allowed or used is None or any(each in allowed for each in used)


def describe_scope(config: SecretKeyConfig) -> str:
    """Return the scope of an entry in words."""
    parts = [
        f"{word} {', '.join(allowed)}"
        for word, allowed in (("project", config.projects), ("role", config.roles), ("provider", config.providers))
        if allowed
    ]
    return ", ".join(parts) or "any use"


def describe_use(use: KeyUse) -> str:
    """Return a use in words."""
    project = (
        "any project" if use.projects is None else f"project {use.projects[0]}" if use.projects else "no project"
    )
    role = "any role" if use.role is None else f"role {use.role}" if use.role else "no role"
    provider = (
        "any provider" if use.provider is None else f"provider {use.provider}" if use.provider else "no provider"
    )
    return f"{project}, {role}, {provider}"
