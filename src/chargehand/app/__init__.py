"""Builds the product from its configuration; the only place that knows concrete classes."""

from chargehand.app._actions import Actions, OnOutputLine
from chargehand.app._agent_probe import probe_agent
from chargehand.app._app import App
from chargehand.app._choice import AGENT_PROGRAMS, DEFAULT_MODELS, Choice, choose, programs_on_path
from chargehand.app._config_agents import NATIVE, agent_from_option, find_agent, named_agent
from chargehand.app._config_areas import meet_areas
from chargehand.app._config_edit import check_user_value, set_user_value, set_user_values
from chargehand.app._config_files import state_home, user_config_path
from chargehand.app._config_model import REPOSITORY_FILE, Option, RepositoryFile, Resolved, UntrustedKey
from chargehand.app._config_reference import render_reference, shown_value
from chargehand.app._config_resolve import resolve
from chargehand.app._gateways import ledger_by_hand
from chargehand.app._model_probe import ModelProbe, probe_model
from chargehand.app._model_reports import Reports, kept_reports
from chargehand.app._model_trials import try_model
from chargehand.app._models import (
    USUAL_KEYS,
    address_of,
    every,
    facts_of,
    has_key,
    is_loopback,
    key_name,
    model_config,
    provider_limits,
    served_chain,
    served_model,
)
from chargehand.app._ollama import find_ollama
from chargehand.app._policy import REPOSITORY_RULES, add_override, user_rules_path
from chargehand.app._profile import Profile, machine_facts
from chargehand.app._role_map import DEFAULT_ROLE, levels_of
from chargehand.app._roles import REPOSITORY_ROLES, FoundRole, RoleFile, Roles, user_roles_path
from chargehand.app._session import Detected, Found, Session
from chargehand.app._start import ensure_worker, start_worker
from chargehand.app._tiers import require_tier
from chargehand.app._trust import describe_untrusted, require_trust, trust_needed
from chargehand.app._worker import SLOTS, Worker

__all__ = [
    "AGENT_PROGRAMS",
    "DEFAULT_MODELS",
    "DEFAULT_ROLE",
    "NATIVE",
    "REPOSITORY_FILE",
    "REPOSITORY_ROLES",
    "REPOSITORY_RULES",
    "SLOTS",
    "USUAL_KEYS",
    "Actions",
    "App",
    "Choice",
    "Detected",
    "Found",
    "FoundRole",
    "ModelProbe",
    "OnOutputLine",
    "Option",
    "Profile",
    "Reports",
    "RepositoryFile",
    "Resolved",
    "RoleFile",
    "Roles",
    "Session",
    "UntrustedKey",
    "Worker",
    "add_override",
    "address_of",
    "agent_from_option",
    "check_user_value",
    "choose",
    "describe_untrusted",
    "ensure_worker",
    "every",
    "facts_of",
    "find_agent",
    "find_ollama",
    "has_key",
    "is_loopback",
    "kept_reports",
    "key_name",
    "ledger_by_hand",
    "levels_of",
    "machine_facts",
    "meet_areas",
    "model_config",
    "named_agent",
    "probe_agent",
    "probe_model",
    "programs_on_path",
    "provider_limits",
    "render_reference",
    "require_tier",
    "require_trust",
    "resolve",
    "served_chain",
    "served_model",
    "set_user_value",
    "set_user_values",
    "shown_value",
    "start_worker",
    "state_home",
    "trust_needed",
    "try_model",
    "user_config_path",
    "user_roles_path",
    "user_rules_path",
]
