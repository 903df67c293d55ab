"""Every code that the source can produce has a cause class, and the table of causes names no other code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from tests.architecture.trees import parse

from chargehand.agents.native.model_client import _UNCARRIED
from chargehand.core.records import CheckStatus
from chargehand.forges.contract import ForgeProblem
from chargehand.missions.attempt.admission import _MENDED_BY_PERSONS
from chargehand.missions.causes import load_causes
from chargehand.missions.services import _KNOWN
from chargehand.models.refusals import RefusalCode
from chargehand.sandbox.contract import LimitName
from chargehand.store.database.connection import _HINTS

SOURCE = Path(__file__).parents[2] / "src/chargehand"
WORDS = {"code", "rule"}
"""The keywords and keys under which a code is passed on."""
ALERTS = ("Alert", "AlertDocument", "NoticeDocument", "Reading")
"""The records of alerts, whose rules are not codes."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def first_of_returned_tuples(file: str, function: str) -> set[str]:
    """Return the constants that are first in the tuples that a function returns."""
    (node,) = (each for each in functions(parse(SOURCE / file)) if each.name == function)
    returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
    firsts = [value.elts[0] for value in returned if isinstance(value, ast.Tuple)]
    return {first.value for first in firsts if isinstance(first, ast.Constant)}


MADE: dict[tuple[str, str], Callable[[], set[str]]] = {
    # file and function whose code is not a constant: how to list all its possible codes
    ("agents/programs/command.py", "_outcome"): lambda: (
        {"agent_failed", "agent_missing", *get_args(LimitName)} - {"wall_time"}
    ),
    ("agents/native/model_client.py", "_translate_error"): lambda: (
        {*get_args(RefusalCode), _UNCARRIED, "model_failed", "upstream_page", "upstream_untrusted"} - {""}
    ),
    ("checks/areas.py", "findings"): lambda: first_of_returned_tuples("checks/areas.py", "_broken"),
    ("forges/contract.py", "__init__"): lambda: {f"forge_{problem}" for problem in get_args(ForgeProblem)},
    ("missions/attempt/admission.py", "_ask_person"): lambda: (
        {*_MENDED_BY_PERSONS, "breaker_open", "provider_down"}
    ),
    ("missions/verdict/judgement.py", "judge_verdict"): lambda: (
        {f"check_{s}" for s in get_args(CheckStatus)} - {"check_passed"}
    ),
    # the code comes from a server, whose codes are all listed here
    ("cli/remote/connection.py", "_answer"): set,
    ("missions/services.py", "system_errors"): lambda: {code for code, _ in _KNOWN.values()},
    ("store/database/connection.py", "_failure"): lambda: set(_HINTS),
    ("store/database/connection.py", "typed_errors"): lambda: set(_HINTS),
    ("workspace/scan.py", "_scan_leaf"): lambda: first_of_returned_tuples(
        "workspace/tree/names.py", "file_problem"
    ),
}


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@dataclass(frozen=True, slots=True)
class Forwarder:
    """A function that passes one of its arguments on as a code: its position, and the number of its arguments."""

    name: str
    argument: str
    position: int
    least: int
    most: int


class Collector:
    """Finds the codes of one package: in keywords, class attributes and replies, through its functions."""

    def __init__(self, files: dict[str, ast.Module]) -> None:
        self.files = files
        self.codes: set[str] = set()
        self.unknown: set[tuple[str, str, str]] = set()
        self._forwarders: list[Forwarder] = []

    def collect(self) -> None:
        for file, tree in self.files.items():
            self._attributes(tree)
            self._each_call(file, tree, _keyword_values)
        for forwarder in self._forwarders:  # grows during the iteration: one may call another
            for file, tree in self.files.items():
                self._each_call(file, tree, lambda call, to=forwarder: _argument_values(call, to))

    def _attributes(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                self._constants(v for k, v in pairs if isinstance(k, ast.Constant) and k.value in WORDS)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                self._constants([node.value] if _name(target) == "default_code" else [])

    def _constants(self, values: Iterator[ast.expr] | list[ast.expr]) -> None:
        self.codes |= {v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)}

    def _each_call(self, file: str, tree: ast.Module, values: Callable[[ast.Call], list[ast.expr]]) -> None:
        for call, function in _calls(tree):
            for value in values(call):
                self._take(file, function, value)

    def _take(self, file: str, function: Function | None, value: ast.expr) -> None:
        if isinstance(value, ast.Constant):
            self.codes |= {value.value} if value.value else set()
        elif isinstance(value, ast.IfExp):
            self._take(file, function, value.body)
            self._take(file, function, value.orelse)
        elif _is_handed_on(value):
            return
        elif function is not None and (file, function.name) in MADE:
            self.codes |= MADE[file, function.name]()
        elif (forwarder := _forwarder(function, value)) is not None:
            if forwarder not in self._forwarders:
                self._forwarders.append(forwarder)
        else:
            self.unknown.add((file, function.name if function else "", ast.unparse(value)))


@cache
def _calls(tree: ast.Module) -> list[tuple[ast.Call, Function | None]]:
    """Return all calls, each with its innermost enclosing function."""
    around: dict[ast.AST, Function] = {}
    for function in functions(tree):  # outer functions come first
        around.update(dict.fromkeys(ast.walk(function), function))
    return [(node, around.get(node)) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _name(node: ast.expr) -> str:
    """Return the last part of a dotted name, "" for any other expression."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _keyword_values(call: ast.Call) -> list[ast.expr]:
    # Excluded: the records of the table itself; calls that name a rule of the policy, and reasons
    # of choices, which end no mission.
    if isinstance(call.func, ast.Name) and call.func.id in ("Cause", "Judgement", "Part", "ChoiceReason", *ALERTS):
        return []
    return [keyword.value for keyword in call.keywords if keyword.arg in WORDS]


def _argument_values(call: ast.Call, to: Forwarder) -> list[ast.expr]:
    given = len(call.args) + len(call.keywords)
    # The number of arguments distinguishes the findings' `add` from that of a set.
    if _name(call.func) != to.name or not to.least <= given <= to.most:
        return []
    named = [keyword.value for keyword in call.keywords if keyword.arg == to.argument]
    return named or call.args[to.position : to.position + 1]


def _is_handed_on(value: ast.expr) -> bool:
    """Return whether a code was created elsewhere: `error.code`, `found.rule`, `reply["code"]`."""
    if isinstance(value, ast.Attribute):
        return value.attr in WORDS
    return (
        isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant) and value.slice.value in WORDS
    )


def _forwarder(function: Function | None, value: ast.expr) -> Forwarder | None:
    if function is None or not isinstance(value, ast.Name):
        return None
    names = [each.arg for each in function.args.args if each.arg not in ("self", "cls")]
    everything = [*names, *(each.arg for each in function.args.kwonlyargs)]
    if value.id not in everything:
        return None
    position = names.index(value.id) if value.id in names else len(names)
    optional = [*function.args.defaults, *(each for each in function.args.kw_defaults if each is not None)]
    return Forwarder(function.name, value.id, position, len(everything) - len(optional), len(everything))


def collected(files: dict[str, ast.Module]) -> Collector:
    made = Collector(files)
    made.collect()
    return made


PACKAGES = sorted(path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__")


@cache
def package(name: str) -> Collector:
    return collected(
        {str(path.relative_to(SOURCE)): parse(path) for path in sorted((SOURCE / name).rglob("*.py"))}
    )


TABLE = {code for remedy in load_causes().remedies for code in remedy.codes}
OLDER: set[str] = set()
"""Codes that only older versions wrote: their logs can still be read."""


@pytest.mark.parametrize("name", PACKAGES)
def test_every_code_that_the_source_makes_has_a_class(name: str) -> None:
    found = package(name)
    assert not found.unknown, "these are no constants: say in MADE how to know what they can be"
    missing = sorted(found.codes - TABLE - load_causes().causeless)
    assert not missing, "add them to chargehand/missions/causes.toml, with what a person can do"


def test_the_table_names_no_code_that_is_not_made() -> None:
    made = set().union(*(package(name).codes for name in PACKAGES))
    assert not sorted(TABLE - made - OLDER)


def test_codes_made_by_rules_and_forwarding_functions_are_found() -> None:
    assert {"test_deleted", "assertions_removed", "area_outside", "secret"} <= package("checks").codes
    assert {"quota", "entry_setuid", "entry_special", "entry_name", "no_space"} <= package("workspace").codes
    assert {"store_corrupt", "store_busy"} <= package("store").codes
    assert {"check_timed_out", "too_many_files"} <= package("missions").codes
    assert "agent_failed" in package("agents").codes


@pytest.mark.parametrize(
    ("source", "codes"),
    [
        ("raise RefusedError('x', code='new')", {"new"}),
        ("class E(ChargehandError):\n    default_code: str = 'new'", {"new"}),
        ("def f(a, rule):\n    Finding(path=a, rule=rule)\nf(1, 'new' if a else 'other')", {"new", "other"}),
        ("def g(rule):\n    f(1, rule)\ndef f(a, rule):\n    Finding(rule=rule)\ng('new')", {"new"}),
        ("def f(*, code):\n    E(code=code)\nf(code='new')", {"new"}),
        ("reply = {'code': 'new'}", {"new"}),
        ("Reason(code=error.code)", set()),
    ],
)
def test_a_new_code_is_found(source: str, codes: set[str]) -> None:
    found = collected({"some.py": ast.parse(source)})
    assert (found.codes, found.unknown) == (codes, set())


@pytest.mark.parametrize(
    "source", ["Reason(code=f'a_{b}')", "Reason(code=names[0])", "def f():\n    Reason(code=x)"]
)
def test_an_undeterminable_code_is_reported(source: str) -> None:
    assert collected({"some.py": ast.parse(source)}).unknown
