"""Single values: accepted ones, and the messages about refused ones."""

from __future__ import annotations

import subprocess

import pytest

from chargehand.configuration.keys import (
    AGENTS,
    agent_keys,
    find_key,
    format_value,
    known_names,
    parse_text,
    parse_value,
    section_keys,
)
from chargehand.core.config import Config
from chargehand.core.errors import ConfigError
from chargehand.core.text import format_seconds


def _value(key: str, value: object) -> object:
    row = find_key(key)
    assert row is not None
    return parse_value(row, value, "here")


def _text(key: str, text: str) -> object:
    row = find_key(key)
    assert row is not None
    return parse_text(row, text, "here")


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("1d", 86400),
        (45, 45),
        (0.5, 0.5),
    ],
)
def test_durations_are_seconds(written: object, seconds: float) -> None:
    assert _value("limits.time", written) == seconds
    assert _text("limits.time", str(written)) == seconds


@pytest.mark.parametrize(
    "written",
    [
        "",
        "soon",
        "30 m m",
        "m30",
        "30min",
        "-5m",
        "1m1h",
        "٣m",
        0,
        -1,
        "0s",
        float("nan"),
        float("inf"),
        pytest.param(10**400, id="huge"),
        True,
        [],
        None,
    ],
)
def test_bad_durations_are_named_with_the_value(written: object) -> None:
    with pytest.raises(ConfigError, match="here: time must be ") as caught:
        _value("limits.time", written)
    if not isinstance(written, int | float):
        assert format_value(written) in caught.value.message


@pytest.mark.parametrize("written", [0, -3, 1_000_001, "2", 1.0, True, None, pytest.param(1 << 20_000, id="huge")])
def test_an_invalid_count_is_refused(written: object) -> None:
    with pytest.raises(ConfigError, match="attempts must be"):
        _value("limits.attempts", written)


def test_a_command_as_a_string_is_explained() -> None:
    with pytest.raises(ConfigError, match="a list of strings, got 'ruff check'") as caught:
        _value("agents.fixer.command", "ruff check")
    assert caught.value.hint == 'a command does not go through a shell: write ["ruff", "check"]'


@pytest.mark.parametrize("written", [[], [""], ["  ", "x"], ["a", "\0"], ["a", 3], [["a"]], "unbalanced '"])
def test_a_command_names_a_program(written: object) -> None:
    with pytest.raises(ConfigError):
        _value("agents.fixer.command", written)


def test_a_command_keeps_repeated_words() -> None:
    assert _value("agents.fixer.command", ["p", "-v", "-v", ""]) == ("p", "-v", "-v", "")


def test_an_unknown_agent_kind_lists_existing_kinds() -> None:
    with pytest.raises(ConfigError, match="unknown agent kind 'comand'") as caught:
        _value("agents.fixer.kind", "comand")
    assert "'command'" in caught.value.hint


@pytest.mark.parametrize(
    "pattern", ["", " src", "src ", "!src/**", "#x", "../x", "a/../b", "./a", "a//b", "//a", "/", "a\nb", "a\0"]
)
@pytest.mark.parametrize("key", ["allow", "forbid", "protect"])
def test_areas_are_plain_patterns(key: str, pattern: str) -> None:
    with pytest.raises(ConfigError, match=key):
        _value(f"project.{key}", [pattern])


@pytest.mark.parametrize("host", ["", "https://x.org", "x.org/y", "a b", "-x.org", "x..org", "*.org", "x" * 300])
def test_hosts_are_names(host: str) -> None:
    with pytest.raises(ConfigError, match="not a rule for hosts"):
        _value("sandbox.network", [host])


def test_hosts_are_lowercased_and_deduplicated() -> None:
    assert _value("sandbox.network", ["PyPI.org", "pypi.org", "[::1]:80"]) == ("pypi.org", "[::1]:80")


def test_a_toolchain_is_absolute() -> None:
    assert _value("sandbox.toolchain", ["/opt/bin"]) == ("/opt/bin",)
    with pytest.raises(ConfigError, match="not an absolute path"):
        _value("sandbox.toolchain", ["opt/bin"])


def test_lists_in_text_are_toml_or_separated_by_commas() -> None:
    assert _text("project.allow", "src/**, tests/**") == ("src/**", "tests/**")
    assert _text("project.allow", '["a,b", "c"]') == ("a,b", "c")
    assert _text("project.checks", "[]") == ()
    assert _text("agents.x.command", "ruff") == ("ruff",)
    assert _text("agents.x.command", "ruff,check") == ("ruff", "check")


@pytest.mark.parametrize("text", ["[", '["a"', "[" * 5000, "ruff check", "[1]"])
def test_an_invalid_list_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError):
        _text("agents.x.command", text)


def test_an_integer_in_text_is_plain_digits() -> None:
    assert _text("limits.attempts", " 3 ") == 3
    for text in ("three", "3.0", "0", "-1", "9" * 30):
        with pytest.raises(ConfigError):
            _text("limits.attempts", text)


@pytest.mark.parametrize("url", ["http://127.0.0.1:11434/v1", "https://example.org", "http://[::1]:8000/v1/"])
def test_addresses_of_providers(url: str) -> None:
    assert _value("models.m.base_url", url) == url


@pytest.mark.parametrize(
    "url",
    [
        "https://me:sesame@example.org/v1",
        "https://sesame@example.org/v1",
        "https://example.org/v1?key=sesame",
        "https://example.org/v1#sesame",
        "ftp://example.org/sesame",
        "https:///sesame",
        "https://example.org/ sesame",
        "https://[sesame",
        "https://example.org:sesame/",
        "sesame",
        "",
    ],
)
def test_addresses_with_more_than_an_address_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url is not a plain http address") as caught:
        _value("models.m.base_url", url)
    assert "sesame" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("name", ["", "sk-ant-api03-sesame", "openai", "1KEY", "A", "A B", "A" * 65])
def test_an_invalid_key_name_is_refused_and_not_repeated(name: str) -> None:
    assert _value("models.m.key", "OPENAI_API_KEY") == "OPENAI_API_KEY"
    with pytest.raises(ConfigError, match="key is not the name of a secret") as caught:
        _value("models.m.key", name)
    assert "sesame" not in caught.value.message


@pytest.mark.parametrize(("text", "amount"), [("2.5", 2.5), (" 3 ", 3.0), ("0", 0.0)])
def test_money_in_text(text: str, amount: float) -> None:
    assert _text("models.m.price", text) == amount


@pytest.mark.parametrize("written", ["1e3", "x", "", "-1", True, None, [], float("nan"), float("inf"), -0.1, 2e6])
def test_an_invalid_price_is_refused(written: object) -> None:
    with pytest.raises(ConfigError, match="price must be"):
        _text("models.m.price", written) if isinstance(written, str) else _value("models.m.price", written)


def test_a_budget_must_be_more_than_zero() -> None:
    assert _value("limits.budget_usd", 1) == 1.0
    with pytest.raises(ConfigError, match="greater than 0"):
        _value("limits.budget_usd", 0)


def test_tokens_may_be_more_than_other_counts() -> None:
    assert _value("models.m.context", 2_000_000) == 2_000_000
    with pytest.raises(ConfigError, match="from 1 to 100000000"):
        _value("models.m.context", 10**9)


def test_flags() -> None:
    assert (_text("models.m.tools", "True"), _text("models.m.tools", "false")) == (True, False)
    for wrong in ("yes", "1", ""):
        with pytest.raises(ConfigError, match="tools must be true or false"):
            _text("models.m.tools", wrong)


def test_values_are_shown_short_and_safe() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert len(format_value("x" * 10_000)) <= 100
    assert "\x1b" not in format_value("\x1b[31mred")
    assert format_value(deep) == "<list>"
    while deep:  # unwound by hand: freeing it at once would recurse
        deep = deep[0]
    assert (format_value(True), format_value(("a",))) == ("true", "['a']")


@pytest.mark.parametrize(("seconds", "text"), [(1800.0, "30m"), (5400.0, "1h30m"), (90.0, "1m30s"), (0.5, "0.5s")])
def test_durations_are_shown_as_written(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
    assert _value("limits.time", text) == seconds


def test_the_table_has_every_key_of_the_sections() -> None:
    config = Config()
    for key in section_keys().values():
        assert getattr(getattr(config, key.section), key.field) == key.default
        assert key.doc
        assert key.meet in {"min", "intersect", "union", "repo", "user", "file"}
    assert set(agent_keys()) == {"kind", "command", "cli", "patch", "model", "fallback", "mcp", "offers"}
    assert f"{AGENTS}.NAME.command" in known_names()
    assert find_key("agents.a.b.command") is None
    assert find_key("models.a.base_url") is not None
    assert find_key("models.a.command") is None
    assert find_key("limits.nothing") is None


@pytest.mark.parametrize("prefix", ["chargehand/", "team/agent/", "bot-", "a.b/c_", "x" * 99 + "/"])
def test_a_branch_prefix_makes_names_that_git_takes(prefix: str) -> None:
    name = f"refs/heads/{_value('project.branch_prefix', prefix)}fix-it"
    assert subprocess.run(["git", "check-ref-format", name], check=False).returncode == 0


@pytest.mark.parametrize(
    "prefix", ["", "chargehand", "/a/", "a//b/", "-a/", ".a/", "a/.b/", "a..b/", "a b/", "a.lock/", "é/", "a;b/"]
)
def test_a_prefix_that_git_or_a_shell_would_misread_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="branch_prefix") as caught:
        _value("project.branch_prefix", prefix)
    assert "team/agent/" in caught.value.hint
