"""Builds the product from its configuration; the only place that knows concrete classes."""

from chargehand.app._app import App, Detected, Found, Session, named_agent
from chargehand.app._config_agents import agent_from_option, find_agent
from chargehand.app._config_edit import set_user_value
from chargehand.app._config_files import state_home, user_config_path
from chargehand.app._config_model import REPOSITORY_FILE, Option, RepositoryFile, Resolved, UntrustedKey
from chargehand.app._config_reference import render_reference
from chargehand.app._config_resolve import resolve
from chargehand.app._start import ensure_worker
from chargehand.app._tiers import require_tier
from chargehand.app._trust import describe_untrusted, require_trust, trust_needed
from chargehand.app._worker import SLOTS, Worker

__all__ = [
    "REPOSITORY_FILE",
    "SLOTS",
    "App",
    "Detected",
    "Found",
    "Option",
    "RepositoryFile",
    "Resolved",
    "Session",
    "UntrustedKey",
    "Worker",
    "agent_from_option",
    "describe_untrusted",
    "ensure_worker",
    "find_agent",
    "named_agent",
    "render_reference",
    "require_tier",
    "require_trust",
    "resolve",
    "set_user_value",
    "state_home",
    "trust_needed",
    "user_config_path",
]
