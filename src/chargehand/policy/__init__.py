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

__all__ = [
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
    "default_source",
    "facts_schema",
    "judge",
    "statements",
]
