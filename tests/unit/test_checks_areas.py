"""Areas, secrets and blobs: the permitted paths of a change, and its permitted content."""

from __future__ import annotations

import pytest
from tests.unit._inspecting import findings, rules

from chargehand.checks.areas import Areas
from chargehand.checks.inspection import inspect
from chargehand.checks.trees import MemoryTrees
from chargehand.core.errors import ConfigError


def one(path: str, **areas: object) -> list[tuple[str, str]]:
    return [(rule, severity) for rule, severity, _ in rules({}, {path: "x\n"}, **areas)]


OUTSIDE, FORBIDDEN = [("area_outside", "error")], [("area_forbidden", "error")]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("src/a.txt", []),
        ("src/deep/er/a.txt", []),
        ("README.txt", OUTSIDE),
        ("src-evil/a.txt", OUTSIDE),
        ("srcs", OUTSIDE),
        ("src", OUTSIDE),
        ("other/src/a.txt", OUTSIDE),
        ("src/generated/a.txt", FORBIDDEN),
        ("src/generated\n/a.txt", []),
        ("src/generated/a\nb.txt", FORBIDDEN),
    ],
)
def test_allow_and_forbid_are_by_components(path: str, expected: list[tuple[str, str]]):
    assert one(path, allow=("src/**",), forbid=("src/generated/**",)) == expected


def test_without_allow_only_the_configuration_is_protected():
    assert one("anything/at/all.txt") == []
    assert one("chargehand.toml") == [("config_protected", "error")]
    assert one("chargehand.toml", allow=("**",)) == [("config_protected", "error")]
    assert one("docs/chargehand.toml.md") == []
    # A file in a subdirectory applies to missions that work there.
    assert one("services/api/chargehand.toml") == [("config_protected", "error")]
    assert one("services/api/chargehand.toml/x") == [("config_protected", "error")]
    assert one("services/api/chargehand.cedar") == []


def test_a_trailing_line_break_in_a_name_is_significant():
    assert one("a.txt\n", allow=("/a.txt",)) == OUTSIDE


def test_protected_areas_need_a_person_and_forbid_wins():
    (finding,) = findings({}, {"legal/terms.txt": "x"}, protect=("legal/",))
    assert (finding.rule, finding.severity, finding.needs_person) == ("area_protected", "warning", True)
    (finding,) = findings({}, {"legal/terms.txt": "x"}, protect=("legal/",), forbid=("*.txt",))
    assert (finding.rule, finding.needs_person) == ("area_forbidden", False)
    assert findings({}, {"legalese/terms.txt": "x"}, protect=("legal/",)) == ()


def test_a_deletion_in_a_forbidden_area_is_found():
    assert rules({"secret/a.txt": "x"}, {}, forbid=("secret/**",)) == [("area_forbidden", "error", "secret/a.txt")]


def test_an_invalid_pattern_is_the_configurations_fault():
    trees = MemoryTrees()
    with pytest.raises(ConfigError) as caught:
        inspect((), trees, trees.add({}), Areas(allow=("!",)))
    assert caught.value.code == "area_invalid"
    assert "'!'" in caught.value.message


SECRETS = [
    "AKIA" + "QWERTYUIOPASDFGH",
    "-----BEGIN RSA " + "PRIVATE KEY-----",
    "-----BEGIN " + "PRIVATE KEY-----",
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2_" * 16,
    "glpat-" + "abcdefghij0123456789",
    "sk-ant-" + "api03-" + "aB3-" * 24,
    "sk-proj-" + "aB3_" * 20,
    "sk-" + "a" * 20 + "T3BlbkFJ" + "b" * 20,
    "AIza" + "a" * 35,
    "xoxb-" + "123456789012-" + "a" * 24,
    "sk_live_" + "a1" * 12,
]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_in_an_added_line_is_found_and_not_repeated(secret: str):
    (finding,) = findings({"a.txt": "x\n"}, {"a.txt": f"x\ny\nkey = '{secret}'\n"})
    assert (finding.rule, finding.severity, finding.path, finding.line) == ("secret", "error", "a.txt", 3)
    assert secret not in finding.message
    assert findings({"a.txt": f"key = '{secret}'\n"}, {"a.txt": f"new\nkey = '{secret}'\n"}) == ()


@pytest.mark.parametrize("text", ["AKIA" + "IOSFODNN7EXAMPLE", "ghp_short", "sk-learn-is-a-library", "AKIA" * 30])
def test_text_slightly_similar_to_a_secret_is_ignored(text: str):
    assert findings({}, {"a.txt": text}) == ()


def test_large_and_binary_blobs_warn():
    assert rules({}, {"a.txt": "x" * 2000}, large_bytes=1999) == [("large_file", "warning", "a.txt")]
    assert rules({}, {"a.txt": "x" * 2000}, large_bytes=2000) == []
    assert rules({}, {"a.bin": b"\0\1"}) == [("binary_file", "warning", "a.bin")]


def test_unchanged_content_and_links_are_not_searched():
    secret = SECRETS[0]
    assert findings({"a.sh": secret}, {"a.sh": secret}, modes={"a.sh": 0o100755}) == ()
    assert findings({}, {"a": secret}, modes={"a": 0o120000}) == ()
