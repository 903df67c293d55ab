"""Rules in Cedar: read from several places, checked against the known facts, evaluated together.

Every rule is given to Cedar as a `permit`, whatever its effect: Cedar then names all matching rules (if a `forbid`
decided a request, Cedar would name no other rule), and the strongest effect is found here.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from importlib.machinery import PathFinder
from importlib.resources import files
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType
from typing import Any, Literal

from msgspec import Struct

from chargehand.core.errors import ConfigError, nearest
from chargehand.core.text import late_pattern
from chargehand.policy.actions import Effect

Origin = Literal["default", "user", "repository"]
_ANNOTATIONS = frozenset({"id", "decision", "reason", "overrides"})
_ID = late_pattern(r"[a-z0-9][a-z0-9_.-]{0,63}")
_TOKENS = late_pattern(r'//[^\n]*|"(?:\\.|[^"\\])*"|;|\s+|[^\s/";]+|.', re.DOTALL)
# Most answers in the cache: an agent runs the same commands repeatedly.
_MOST_KNOWN = 2_000
# Largest size of one source of rules, in characters.
LARGEST = 1_000_000
# Cedar's typed syntax tree: it takes ten times as long to load as all the rest of Cedar, and is not used here.
_UNUSED = "cedarpy.pst"


@cache
def cedar() -> ModuleType:
    """Import `cedarpy` and return it; its syntax tree is loaded on first use."""
    package = find_spec("cedarpy")
    if package is not None and _UNUSED not in sys.modules:
        tree = PathFinder.find_spec(_UNUSED, package.submodule_search_locations)
        if tree is not None and tree.loader is not None:
            tree.loader = LazyLoader(tree.loader)
            sys.modules[_UNUSED] = module = module_from_spec(tree)
            tree.loader.exec_module(module)
    import cedarpy

    return cedarpy


class Statement(Struct, frozen=True, kw_only=True):
    """The text of one rule, and its first line."""

    line: int
    text: str


class Rule(Struct, frozen=True, kw_only=True):
    """One rule; `key` is its name among all rules, `overrides` the shipped rule that it sets aside."""

    key: str
    id: str
    effect: Effect
    reason: str
    origin: Origin
    place: str
    overrides: str
    order: int


class Source(Struct, frozen=True, kw_only=True):
    """Text with rules: `name` is the file as a person knows it."""

    origin: Origin
    name: str
    text: str

    def parse(self) -> Iterator[tuple[Statement, dict[str, Any]]]:
        """Yield the rules as written and as Cedar's JSON; templates and unknown facts are errors as well."""
        found = list(statements(self.text))
        if self.origin == "default":  # known to be valid: parsed as a whole, which is several times as fast
            whole = json.loads(cedar().policies_to_json_str(self.text))["staticPolicies"]
            yield from zip(found, (whole[f"policy{number}"] for number in range(len(whole))), strict=True)
            return
        schema = cedar().Schema.from_str(facts_schema())
        for statement in found:
            id_written = re.search(r'@id\("([^"]*)"\)', statement.text)
            name = id_written[1] if id_written else ""
            try:
                policies = list(
                    json.loads(cedar().policies_to_json_str(statement.text))["staticPolicies"].values()
                )
            except ValueError as error:
                raise self.invalid(statement.line, name, str(error)) from error
            if len(policies) != 1:
                raise self.invalid(statement.line, name, "templates are not supported")
            # Without this, a misspelt fact would fail only at the first request that uses it.
            checked = cedar().validate_policies(statement.text, schema)
            if not checked.validation_passed:
                message = re.sub(r"^for policy `policy0`, ", "", checked.errors[0].error)
                raise self.invalid(statement.line, name, message)
            yield statement, policies[0]

    def build_rule(self, statement: Statement, effect: str, annotations: Mapping[str, str], order: int) -> Rule:
        """Return the rule of a statement; raises `ConfigError` if an annotation is invalid."""
        # A rule that is not understood must not be skipped: an agent would be allowed what it was meant to forbid.
        name, decision = annotations.get("id", ""), annotations.get("decision")
        reason, overrides = annotations.get("reason", ""), annotations.get("overrides", "")
        made: Effect = "deny" if effect == "forbid" else "ask" if decision else "allow"
        unknown = next((key for key in annotations if key not in _ANNOTATIONS), None)
        problem = ""
        if not _ID.fullmatch(name):
            problem = 'a rule needs an @id("…") of small letters, digits, ".", "_" and "-"'
        elif unknown is not None:
            problem = f"there is no annotation @{unknown}: {nearest(unknown, _ANNOTATIONS)}"
        elif decision not in (None, "ask") or (decision and effect == "forbid"):
            problem = '@decision can only be "ask", on a permit: permit is allow, forbid is deny'
        elif overrides and (self.origin != "user" or made == "deny"):
            problem = "only a permit in your own file can override a rule"
        elif overrides and not reason.strip():
            problem = 'a rule that overrides another needs a @reason("…")'
        elif self.origin == "repository" and made == "allow":
            problem = "a repository's rules can only ask or deny, never allow"
        if problem:
            raise self.invalid(statement.line, name, problem)
        return Rule(
            key=f"{self.origin}:{name}",
            id=name if self.origin == "default" else f"{self.origin}:{name}",
            effect=made,
            reason=reason or f"rule {name} says so",
            origin=self.origin,
            place=f"{self.name}:{statement.line}",
            overrides=overrides,
            order=order,
        )

    def invalid(self, line: int, rule: str, message: str) -> ConfigError:
        """Return the error of a rule that begins at a line; `rule` is "" if it has no name."""
        named = f" rule {rule!r}:" if rule else ""
        return ConfigError(
            f"{self.name}:{line}:{named} {message}",
            code="policy_invalid",
            hint="correct the rule: `chargehand policy show --facts` lists the facts that rules can use",
        )


class Match(Struct, frozen=True, kw_only=True):
    """The rules that match a request, in their order, and the errors of rules that Cedar could not evaluate."""

    rules: tuple[Rule, ...]
    errors: tuple[str, ...] = ()


def default_source() -> Source:
    """Return the shipped rules."""
    text = files("chargehand.policy").joinpath("default.cedar").read_text("utf-8")
    return Source(origin="default", name="default.cedar", text=text)


def facts_schema() -> str:
    """Return the facts that rules may use, as a Cedar schema."""
    return files("chargehand.policy").joinpath("facts.cedarschema").read_text("utf-8")


class Rules:
    """All rules in force: the shipped ones, the person's own, and restrictions by a repository.

    Parsed once, on first use. A person's rule may override a shipped one by its id (`@overrides("git-push")`); a
    repository's rules can only ask or deny. Raises `ConfigError` (`policy_invalid`) naming file, line and rule.
    """

    def __init__(self, sources: Iterable[Source] = ()) -> None:
        self.sources: tuple[Source, ...] = (default_source(), *sources)
        self._lock = threading.Lock()
        self._known: dict[str, Match] = {}
        self._parsed: _Loaded | None = None

    @cached_property
    def digest(self) -> str:
        """The digest that identifies these rules."""
        text = "\0".join(f"{source.origin}\0{source.text}" for source in self.sources)
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]

    @property
    def all(self) -> tuple[Rule, ...]:
        """Every rule, in order."""
        return tuple(self._ruleset.rules.values())

    @property
    def _ruleset(self) -> _Loaded:
        # Several threads judge attempts; the first to judge spends the parsing time, and only if any does.
        with self._lock:
            if self._parsed is None:
                self._parsed = _load(self.sources)
            return self._parsed

    def matching(self, requests: Sequence[Mapping[str, Any]]) -> list[Match]:
        """Return for each request in Cedar's form the rules that match it; answers are cached."""
        keys = [json.dumps(request) for request in requests]
        found = {key: self._known[key] for key in keys if key in self._known}
        new = {key: request for key, request in zip(keys, requests, strict=True) if key not in found}
        if new:
            rules, wanted = self._ruleset, [dict(request) for request in new.values()]
            for key, answer in zip(
                new, cedar().is_authorized_batch(wanted, rules.policies, rules.entities), strict=True
            ):
                matching = sorted(
                    (rules.rules[name] for name in answer.diagnostics.reasons), key=lambda r: r.order
                )
                found[key] = Match(rules=tuple(matching), errors=tuple(answer.diagnostics.errors))
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            self._known.update(found)
        return [found[key] for key in keys]

    def check(self) -> None:
        """Parse the rules now; raises `ConfigError`."""
        _ = self._ruleset


class _Loaded(Struct, frozen=True, kw_only=True):
    policies: Any
    entities: Any
    rules: Mapping[str, Rule]


@lru_cache(maxsize=8)
def _load(sources: tuple[Source, ...]) -> _Loaded:
    """Parse rules; cached, since a worker runs many missions under the same rules."""
    rules: dict[str, Rule] = {}
    policies: dict[str, Any] = {}
    for source in sources:
        if len(source.text) > LARGEST:
            raise source.invalid(1, "", f"the file has {len(source.text)} characters, more than {LARGEST}")
        for statement, policy in source.parse():
            annotations = {key: value or "" for key, value in policy.get("annotations", {}).items()}
            rule = source.build_rule(statement, policy["effect"], annotations, len(rules))
            if rule.key in rules:
                raise source.invalid(statement.line, rule.id, "another rule has the same id")
            # As a permit, whatever its effect: if a forbid decided a request, Cedar would name no other rule.
            rules[rule.key], policies[rule.key] = rule, {**policy, "effect": "permit"}

    known = [rule.id for rule in rules.values() if rule.origin == "default" and rule.effect != "allow"]
    for rule in rules.values():
        if rule.overrides and rule.overrides not in known:
            name, _, line = rule.place.rpartition(":")
            source = next(each for each in sources if each.name == name and each.origin == rule.origin)
            message = f"there is no rule {rule.overrides!r} to override: {nearest(rule.overrides, known)}"
            raise source.invalid(int(line), rule.id, message)
    whole = json.dumps({"templates": {}, "staticPolicies": policies, "templateLinks": []})
    return _Loaded(
        policies=cedar().PolicySet.from_json_str(whole),
        entities=cedar().Entities.from_json_str("[]"),
        rules=rules,
    )


def statements(text: str) -> Iterator[Statement]:
    """Yield the rules of a text with their first lines; and other text, for the parser to refuse."""
    line, start, held = 1, 1, ""
    for token in _TOKENS.findall(text):
        if not held.strip():
            held, start = ("", line) if token.isspace() or token.startswith("//") else (token, line)
        elif not token.startswith("//"):
            held += token
        line += token.count("\n")
        if token == ";":
            yield Statement(line=start, text=held)
            held = ""
    if held.strip():
        yield Statement(line=start, text=held)
