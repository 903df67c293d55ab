"""For any configuration files: a repository never widens, every value has an origin, every error is ours."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec
from tests.conftest import examples

from chargehand.configuration.areas import meet_areas
from chargehand.configuration.edit import _insert
from chargehand.configuration.keys import entry_keys, section_keys
from chargehand.configuration.lines import scan
from chargehand.configuration.locations import UserFile
from chargehand.configuration.records import OptionValue, RepositoryFile, ResolvedConfig
from chargehand.configuration.resolve import resolve
from chargehand.configuration.sources import variable_name
from chargehand.core.config import Config
from chargehand.core.errors import ConfigError
from chargehand.core.text import printable
from chargehand.network.allow_list import AllowList

_AREAS = st.lists(st.sampled_from(["**", "src/**", "src/a/**", "docs/**", "**/a.py"]), max_size=3)
_HOSTS = st.lists(
    st.sampled_from(["a.org", "a.org:443", "a.org:*", "*.a.org", "b.a.org:9", "private:c.org", "10.0.0.1"]),
    max_size=3,
)
_PLACES = [(host, port) for host in ("a.org", "b.a.org", "c.org", "10.0.0.1") for port in (9, 80, 443)]
_COUNTS = st.integers(1, 10_000)
_COMMANDS = st.lists(st.sampled_from(["one", "two", "three"]), max_size=3)
_LIMITS = ("limits.time", "limits.check_time", "limits.attempts", "limits.budget_usd")
_MODEL_NAMES = st.sampled_from(["openai:a", "ollama:b:c"])
_SIZES = ("sandbox.memory_mb", "sandbox.processes", "sandbox.tmp_mb", "sandbox.disk_mb")
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "project.checks": _COMMANDS,
    "project.setup": st.sampled_from(["make", "build"]),
    "project.setup_inputs": _AREAS,
    "project.allow": _AREAS,
    "project.forbid": _AREAS,
    "project.protect": _AREAS,
    "project.include": _AREAS,
    "project.strategy": st.sampled_from(["shadow", "direct"]),
    "sandbox.tier": st.sampled_from(["process", "none"]),
    "sandbox.network": _HOSTS,
    "sandbox.toolchain": st.lists(st.sampled_from(["/opt", "/usr/local"]), max_size=2),
    "limits.attempt_usd": _COUNTS,
    "limits.day_usd": _COUNTS,
    "limits.assume_usd_per_mtok": _COUNTS,
    "agents.fixer.command": st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=2),
    "agents.thinker.kind": st.just("native"),
    "models.local.provider": st.sampled_from(["openai", "openai-compatible"]),
    "models.local.model": st.sampled_from(["a", "b"]),
    "models.local.base_url": st.sampled_from(["http://127.0.0.1:1/v1", "https://a.org"]),
    "models.local.key": st.sampled_from(["ONE_KEY", "OTHER_KEY"]),
    "models.local.price": _COUNTS,
    "models.local.tools": st.booleans(),
    **dict.fromkeys((*_LIMITS, *_SIZES), _COUNTS),
}
_THINKING: dict[str, st.SearchStrategy[Any]] = {
    "agents.thinker.model": _MODEL_NAMES,
    "agents.thinker.fallback": st.lists(_MODEL_NAMES, max_size=2),
}


def _reached(rules: Sequence[str]) -> set[tuple[str, int, bool]]:
    """Return the places that the rules allow, with a flag for those allowed even if private."""
    listed = AllowList.parse(rules)
    found = {place: listed.find(*place) for place in _PLACES}
    let = {(*place, False) for place, rule in found.items() if rule is not None}
    return let | {(*place, True) for place, rule in found.items() if rule is not None and rule.private}


def _with_models(said: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Let a native agent name models: without its kind it would be a command agent without a command."""
    if "agents.thinker.kind" not in said:
        return st.just(said)
    return st.fixed_dictionaries({}, optional=_THINKING).map(lambda more: said | more)


_FILES = st.fixed_dictionaries({}, optional=_VALUES).flatmap(_with_models)
_USER = Path("/home/me/config.toml")


def _toml(said: dict[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in said.items())


def _error(**sources: Any) -> ConfigError | None:
    try:
        resolve(**sources)
    except ConfigError as error:
        return error
    return None


def _resolve(user: dict[str, Any], repo: dict[str, Any], *, trusted: bool = False) -> ResolvedConfig | None:
    """Return the resolved configuration, or `None` if the two have no area in common."""
    sources: dict[str, Any] = {
        "user": UserFile(path=_USER, text=_toml(user)),
        "repository": RepositoryFile(content=_toml(repo).encode(), commit="0" * 40),
        "is_trusted": lambda digest: trusted,
    }
    error = _error(**sources)
    assert error is None or "no area may be changed" in error.message
    return resolve(**sources) if error is None else None


def _get(config: Config, key: str) -> Any:
    section, _, field = key.partition(".")
    return getattr(getattr(config, section), field)


@given(_FILES, _FILES)
def test_an_untrusted_repository_never_widens(user: dict[str, Any], repo: dict[str, Any]) -> None:
    without, resolved = _resolve(user, {}), _resolve(user, repo)
    assert without is not None
    if resolved is None:
        return
    for key in (*_LIMITS, *_SIZES):
        assert _get(resolved.config, key) <= _get(without.config, key)
        assert key not in repo or _get(resolved.config, key) <= repo[key]
    most, least = without.config.limits.attempt_usd, resolved.config.limits.attempt_usd
    assert most is None or (least is not None and least <= most)
    assert resolved.config.limits.day_usd == without.config.limits.day_usd
    assert resolved.config.limits.assume_usd_per_mtok == without.config.limits.assume_usd_per_mtok
    assert resolved.config.models == without.config.models
    models = {
        model for agent in resolved.config.agents.values() for model in (agent.model, *agent.fallback) if model
    }
    assert models <= {user.get("agents.thinker.model"), *user.get("agents.thinker.fallback", [])}
    for key in ("project.forbid", "project.protect"):
        assert set(_get(resolved.config, key)) == set(user.get(key, [])) | set(repo.get(key, []))
    assert _reached(resolved.config.sandbox.network) <= _reached(user.get("sandbox.network", []))
    assert resolved.config.sandbox.tier == without.config.sandbox.tier
    assert resolved.config.sandbox.toolchain == without.config.sandbox.toolchain
    assert set(user.get("project.checks", [])) <= set(resolved.config.project.checks or ())
    if user.get("project.allow") or repo.get("project.allow"):
        assert resolved.config.project.allow
    if resolved.config.sandbox.tier == "none":
        assert (resolved.config.project.setup, resolved.config.agents) == (
            without.config.project.setup,
            without.config.agents,
        )


@given(_FILES, _FILES)
def test_the_users_word_holds_against_a_trusted_repository(user: dict[str, Any], repo: dict[str, Any]) -> None:
    resolved = _resolve(user, repo, trusted=True)
    if resolved is None:
        return
    assert resolved.untrusted == ()
    for key in (*_LIMITS, *_SIZES):
        assert key not in user or _get(resolved.config, key) <= user[key]
    for key in ("sandbox.tier", "project.setup", "project.strategy"):
        assert key not in user or _get(resolved.config, key) == user[key]
    if "sandbox.network" in user:
        assert _reached(resolved.config.sandbox.network) <= _reached(user["sandbox.network"])
    if "agents.fixer.command" in user:
        assert list(resolved.config.agents["fixer"].command) == user["agents.fixer.command"]


@given(_FILES, _FILES)
def test_untrusted_keys_are_exactly_those_that_trust_changes(user: dict[str, Any], repo: dict[str, Any]) -> None:
    before, after = _resolve(user, repo), _resolve(user, repo, trusted=True)
    if before is None or after is None:
        return
    assert bool(before.untrusted) == (before.config != after.config)
    assert {key.key for key in before.untrusted} <= set(repo)


@given(_FILES, _FILES)
def test_commutative_meets_commute(user: dict[str, Any], repo: dict[str, Any]) -> None:
    one, other = _resolve(user, repo), _resolve(repo, user)
    assert (one is None) == (other is None)
    if one is None or other is None:
        return
    for key, row in section_keys().items():
        if key in user and key in repo and row.meet in {"min", "intersect", "union"} and not row.host:
            left, right = _get(one.config, key), _get(other.config, key)
            assert left == right or set(left) == set(right)


@given(_FILES, _FILES, st.booleans())
def test_every_value_has_an_origin(user: dict[str, Any], repo: dict[str, Any], trusted: bool) -> None:
    resolved = _resolve(user, repo, trusted=trusted)
    if resolved is None:
        return
    tables = {"agents": resolved.config.agents, "models": resolved.config.models}
    entries = {f"{t}.{name}.{field}" for t, named in tables.items() for name in named for field in entry_keys(t)}
    assert set(resolved.origins) == set(section_keys()) | entries
    ignored = {key.key for key in resolved.untrusted}
    for key, origin in resolved.origins.items():
        if key not in user and key not in repo:
            assert origin == "default"
        if key in user:
            assert str(_USER) in origin
        if key in ignored:
            assert "chargehand.toml" not in origin


@given(_FILES, _FILES, _FILES)
def test_sources_override_in_order(user: dict[str, Any], env: dict[str, Any], options: dict[str, Any]) -> None:
    resolved = resolve(
        user=UserFile(path=_USER, text=_toml(user)),
        environ={
            variable_name(key): value if isinstance(value, str) else json.dumps(value)
            for key, value in env.items()
        },
        options={
            key: OptionValue(value=value, name="--x") for key, value in options.items() if key.startswith("limits")
        },
    )
    for key in _LIMITS:
        expected = options.get(key, env.get(key, user.get(key, section_keys()[key].default)))
        assert _get(resolved.config, key) == expected
    for key in ("project.setup", "sandbox.tier"):
        assert _get(resolved.config, key) == env.get(key, user.get(key, section_keys()[key].default))


_WORDS = [
    *section_keys(),
    "agents.f.command",
    "agents",
    "project",
    "limits",
    "x",
    "'q k'",
    '"time"',
    "[",
    "]",
    "[[",
]
_PIECES = [*_WORDS, "]]", "{", "}", "=", "=", ",", ".", "\n", "\n", "\r\n", " ", "#", '"', "'", '"""', "'''", "\\"]
_LITERALS = [
    "1",
    "-1",
    "1e400",
    "nan",
    "inf",
    "true",
    "'30m'",
    '"a"',
    "['a']",
    "[]",
    "0x" + "f" * 5000,
    "1979-05-27",
]
_SOUP = st.lists(st.sampled_from([*_PIECES, *_LITERALS]) | st.text(max_size=3), max_size=30).map("".join)
_JUNK = (
    st.sampled_from(_LITERALS)
    | st.text(max_size=5).map(json.dumps)
    | st.lists(st.text(max_size=5)).map(json.dumps)
)
_ASSIGNMENTS = st.lists(st.tuples(st.sampled_from(_WORDS), _JUNK).map(" = ".join), max_size=4).map("\n".join)
_TEXTS = st.text() | _SOUP | _ASSIGNMENTS


@settings(max_examples=examples(300))
@given(_TEXTS, _TEXTS)
def test_any_text_resolves_or_is_a_configuration_error(user: str, repo: str) -> None:
    content = repo.encode("utf-8", "surrogatepass")
    error = _error(user=UserFile(path=_USER, text=user), repository=RepositoryFile(content=content))
    assert error is None or error.message.startswith((str(_USER), "chargehand.toml"))
    assert error is None or printable(error.message) == error.message


@given(st.binary(max_size=40))
def test_any_bytes_resolve_or_are_a_configuration_error(content: bytes) -> None:
    error = _error(repository=RepositoryFile(content=content))
    assert error is None or error.message.startswith("chargehand.toml")


@given(st.dictionaries(st.sampled_from([variable_name(key) for key in section_keys()]), st.text(max_size=20)))
def test_any_environment_resolves_or_is_a_configuration_error(environ: dict[str, str]) -> None:
    error = _error(environ=environ)
    assert error is None or error.message.startswith("environment CHARGEHAND_")


_KEYS = st.text("ab.-\"' #=[]é", min_size=1, max_size=4)
_TREES = st.recursive(
    st.integers() | st.text(max_size=6) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=8,
)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)} = {_written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[ # [\n" + ",\n".join(map(_written, value)) + "\n]"
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


@given(st.dictionaries(_KEYS, _TREES, max_size=4))
def test_the_scan_finds_every_value_at_its_line(tree: dict[str, Any]) -> None:
    text = "# start\n"
    lines = {}
    for key, value in tree.items():
        lines[key] = text.count("\n") + 1
        text += f"{_quoted(key)} = {_written(value)} # [x]\n"
    found = {entry.path[0]: entry for entry in scan(text) if entry.kind == "line"}
    assert {key: entry.line for key, entry in found.items()} == lines
    for key, entry in found.items():
        assert tomllib.loads(f"v = {text[entry.value : entry.end]}")["v"] == tree[key]


def _in_tables(said: dict[str, Any]) -> str:
    tables: dict[str, str] = {}
    for key, value in said.items():
        table, _, field = key.rpartition(".")
        tables[table] = tables.get(table, f"[{table}] # keep\n") + f"{field} = {json.dumps(value)} # keep\n"
    return "\n".join(tables.values())


@given(_FILES, st.sampled_from(_LIMITS), _COUNTS, st.booleans())
def test_an_edit_changes_a_single_value(said: dict[str, Any], key: str, value: int, tables: bool) -> None:
    text = _in_tables(said) if tables else _toml(said)
    before = tomllib.loads(text)
    edited = _insert(text, tuple(key.split(".")), str(value))
    section, _, field = key.partition(".")
    assert tomllib.loads(edited) == before | {section: before.get(section, {}) | {field: value}}
    assert edited.count("# keep") == text.count("# keep")


_PLAIN = ["a", "b", "ab", "*", "a*", "*b", "?", "a?", "**"]
_ODD = ["[ab]", "a**b", "\\*", "***", "[!a]b"]


def _patterns(segments: list[str], *, ends: list[str]) -> st.SearchStrategy[str]:
    body = st.lists(st.sampled_from(segments), min_size=1, max_size=4).map("/".join)
    return st.tuples(st.sampled_from(["", "/"]), body, st.sampled_from(ends)).map("".join)


_EXACT = _patterns(_PLAIN, ends=["", "/**"]).filter(lambda text: not text.endswith("/*"))
_ANY = _patterns(_PLAIN + _ODD, ends=["", "/", "/**", "/*"])
_PATHS = st.lists(st.sampled_from(["a", "b", "ab", "aab", "abb", "cb", "ac", "c"]), min_size=1, max_size=6).map(
    "/".join
)


def _match(patterns: tuple[str, ...] | list[str], path: str) -> bool:
    return not patterns or GitIgnoreSpec.from_lines(patterns).match_file(path)


@given(st.lists(_ANY, max_size=3), st.lists(_ANY, max_size=3), st.lists(_PATHS, min_size=5, max_size=25))
@example(["src/**"], ["src/*"], ["src/a/b"])
@example(["a"], ["/*/"], ["a", "a/b"])
def test_never_wider_than_either_side(ours: list[str], theirs: list[str], paths: list[str]) -> None:
    try:
        met = meet_areas(ours, theirs)
    except ConfigError:
        return
    assert bool(met) == bool(ours or theirs)
    for path in paths:
        assert not _match(met, path) or (_match(ours, path) and _match(theirs, path))


@given(
    st.lists(_EXACT, min_size=1, max_size=2),
    st.lists(_EXACT, min_size=1, max_size=2),
    st.lists(_PATHS, min_size=5, max_size=25),
)
def test_a_meet_of_areas_matches_exactly_the_common_paths(
    ours: list[str], theirs: list[str], paths: list[str]
) -> None:
    both = [path for path in paths if _match(ours, path) and _match(theirs, path)]
    try:
        met = meet_areas(ours, theirs)
    except ConfigError:
        assert not both
        return
    assert [path for path in paths if _match(met, path)] == both


@given(st.lists(_ANY, min_size=1, max_size=3), st.lists(_ANY, min_size=1, max_size=3))
@example(["a*"], ["*b"])
def test_commutes(ours: list[str], theirs: list[str]) -> None:
    def outcome(left: list[str], right: list[str]) -> tuple[str, ...] | None:
        try:
            return meet_areas(left, right)
        except ConfigError:
            return None

    assert outcome(ours, theirs) == outcome(theirs, ours)


@pytest.mark.parametrize(
    ("ours", "theirs", "met"),
    [
        (["src/**"], ["src/pkg/**"], ["src/pkg/**"]),
        (["src/**"], ["**/*.py"], ["src/**/*.py"]),
        (["src"], ["/src/a.py"], ["src/a.py"]),
        (["*.py"], ["test_*"], ["**/*.py/**/test_*", "**/test_*.py"]),
        (["src/**", "tests/**"], ["tests/**", "src/**"], ["src/**", "tests/**"]),
        (["/src"], ["src/**", "docs/**"], ["src/**"]),
        (["**"], ["docs/*.md"], ["docs/*.md"]),
    ],
)
def test_a_meet_of_typical_areas_is_readable(ours: list[str], theirs: list[str], met: list[str]) -> None:
    found = meet_areas(ours, theirs)
    for wanted in met:
        assert wanted in found
    assert len(found) <= len(met) + 1


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(["src/**"], ["docs/**"]), (["/a.py"], ["/b.py"]), (["/a"], ["x/a"]), (["/[ab]"], ["/[ab]c"])],
)
def test_disjoint_areas_are_an_error(ours: list[str], theirs: list[str]) -> None:
    with pytest.raises(ConfigError, match="nothing in common"):
        meet_areas(ours, theirs)


def test_a_meet_that_would_be_too_large_is_an_error() -> None:
    left = "/".join(f"**/a{i}" for i in range(14))
    right = "/".join(f"**/b{i}" for i in range(14))
    with pytest.raises(ConfigError, match="cannot be joined"):
        meet_areas([left], [right])
    with pytest.raises(ConfigError, match="cannot be joined"):
        meet_areas(["*" + "a" * 3000], ["b" * 3000 + "*"])
    with pytest.raises(ConfigError, match="cannot be joined"):
        meet_areas([f"a{i}" for i in range(2000)], [f"b{i}" for i in range(2000)])
