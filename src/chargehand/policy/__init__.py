"""Rules for what agents do: every action is judged allow, ask or deny before it happens."""

from chargehand.policy._actions import (
    Action,
    Command,
    Effect,
    FileRead,
    FileWrite,
    GitAction,
    Judgement,
    Network,
    Other,
    Part,
    Several,
    Shell,
    Surroundings,
)
from chargehand.policy._judge import judge
from chargehand.policy._rules import Origin, Rule, Rules, Source, default_source, facts_schema, statements
from chargehand.policy._tiers import AUTO, choose_tier, in_question, needed_tier, only_documentation

__all__ = [
    "AUTO",
    "Action",
    "Command",
    "Effect",
    "FileRead",
    "FileWrite",
    "GitAction",
    "Judgement",
    "Network",
    "Origin",
    "Other",
    "Part",
    "Rule",
    "Rules",
    "Several",
    "Shell",
    "Source",
    "Surroundings",
    "choose_tier",
    "default_source",
    "facts_schema",
    "in_question",
    "judge",
    "needed_tier",
    "only_documentation",
    "statements",
]
