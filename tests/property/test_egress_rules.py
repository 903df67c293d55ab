"""Rules and addresses: nothing has two readings, a meet never widens, only public addresses count as public."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chargehand.core.errors import ConfigError
from chargehand.network.allow_list import (
    AllowList,
    HostRule,
    classify_address,
    is_local_address,
    meet_rules,
    parse_rule,
    unwrap_ipv4,
    without_grants,
)

_NAMES = st.sampled_from(
    ["a.org", "b.a.org", "c.b.a.org", "xa.org", "127.0.0.1", "[::1]", "8.8.8.8", "[2606:4700::1]"]
)
_PORTS = st.sampled_from(["", ":80", ":443", ":8443", ":*"])
_RULES = st.builds(
    lambda private, below, name, port: f"{private}{below if name[0] in 'abcx' else ''}{name}{port}",
    st.sampled_from(["", "private:"]),
    st.sampled_from(["", "*."]),
    _NAMES,
    _PORTS,
)
_LISTS = st.lists(_RULES, max_size=5)
_HOSTS = [name.strip("[]") for name in ("a.org", "b.a.org", "c.b.a.org", "xa.org", "127.0.0.1", "::1", "8.8.8.8")]
_PLACES = [(host, port) for host in _HOSTS for port in (80, 443, 8443, 9)]


def reached(rules: tuple[str, ...] | list[str]) -> set[tuple[str, int]]:
    listed = AllowList.parse(rules)
    return {place for place in _PLACES if listed.find(*place)}


def granted(rules: tuple[str, ...] | list[str]) -> set[tuple[str, int]]:
    listed = AllowList.parse(rules)
    return {place for place in _PLACES if (rule := listed.find(*place)) and rule.private}


@given(_RULES)
def test_a_rule_says_itself(text: str) -> None:
    rule = parse_rule(text)
    assert parse_rule(str(rule)) == rule


@given(_LISTS, _LISTS)
def test_a_meet_reaches_the_common_hosts_and_keeps_our_grants(ours: list[str], theirs: list[str]) -> None:
    met = meet_rules(ours, theirs)
    assert reached(met) == reached(ours) & reached(theirs)
    assert granted(met) == granted(ours) & reached(theirs)


@given(_LISTS)
def test_rules_without_grants_contain_no_private_address(rules: list[str]) -> None:
    kept = [parse_rule(text) for text in without_grants(rules)]
    assert not [rule for rule in kept if rule.private]
    assert not [rule for rule in kept if rule.address is not None and classify_address(rule.address) != "public"]


@given(st.text(max_size=40) | st.from_regex(r"[a-z0-9.*:\[\]_-]{0,30}", fullmatch=True))
def test_any_text_is_a_rule_or_an_error_that_quotes_it(text: str) -> None:
    try:
        rule = parse_rule(text)
    except ConfigError as error:
        said = error.message
    else:
        said = repr(text)
        assert parse_rule(str(rule)) == rule
        assert rule.host == rule.host.lower()
        assert rule.host.isascii()
    assert repr(text) in said


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Example.ORG.", "example.org"),
        ("münchen.example", "xn--mnchen-3ya.example"),
        ("*.Example.org:*", "*.example.org:*"),
        ("[2001:DB8:0::1]:8443", "[2001:db8::1]:8443"),
        ("private:DB.internal:5432", "private:db.internal:5432"),
        ("10.0.0.1", "10.0.0.1"),
        ("localhost:8080", "localhost:8080"),
    ],
)
def test_rules_are_normal(text: str, normal: str) -> None:
    assert str(parse_rule(text)) == normal


@pytest.mark.parametrize(
    "text",
    [
        *(
            "*",
            "*.org",
            "*:80",
            "a..b",
            "-a.org",
            "a-.org",
            "a.org:0",
            "a.org:65536",
            "a.org:08",
            "a.org:",
            "a.org:x",
        ),
        *(
            "a.org:x",
            "::1",
            "[::1",
            "[::1]x",
            "[127.0.0.1]",
            "127.1",
            "0x7f.1",
            "017.0.0.1",
            "1.2.3.4.5",
            "[fe80::1%lo]",
        ),
        *("*.127.0.0.1", "a.*.org", "http://a.org", "a.org/x", "a@b.org", "straße.example", "private:", ""),
        *("private:private:a.org", "a.org:80-90", "10.0.0.0/8"),
    ],
)
def test_an_invalid_rule_is_quoted_in_the_error(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rule(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint


def test_a_wildcard_matches_only_subdomains() -> None:
    rule = parse_rule("*.a.org")
    assert rule.matches("b.a.org", 443)
    assert rule.matches("c.b.a.org", 80)
    assert not [host for host in ("a.org", "xa.org", "a.org.evil.test") if rule.matches(host, 443)]
    assert rule == HostRule(host="a.org", below=True)


_ADDRESSES = st.ip_addresses()


@given(_ADDRESSES)
@example(ipaddress.ip_address("169.254.169.254"))
@example(ipaddress.ip_address("100.64.0.1"))
@example(ipaddress.ip_address("::ffff:10.0.0.1"))
@example(ipaddress.ip_address("64:ff9b::a00:1"))
@example(ipaddress.ip_address("2002:a00:1::"))
@example(ipaddress.ip_address("fec0::1"))
@example(ipaddress.ip_address("8.8.8.8"))
def test_only_global_addresses_are_public(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    judged, kind = unwrap_ipv4(address), classify_address(address)
    if kind == "public":
        assert judged.is_global
    elsewhere = (judged.is_loopback, judged.is_link_local, judged.is_multicast, judged.is_reserved)
    if judged.is_private or judged.is_unspecified or any(elsewhere):
        assert kind != "public"


@given(st.ip_addresses(v=4))
def test_an_address_in_another_coat_is_judged_as_itself(address: ipaddress.IPv4Address) -> None:
    for network in ("::ffff:0:0", "64:ff9b::"):
        coat = ipaddress.IPv6Address(int(ipaddress.IPv6Address(network)) | int(address))
        assert classify_address(coat) == classify_address(address)
    assert classify_address(ipaddress.IPv6Address(0x2002 << 112 | int(address) << 80)) == "reserved"


def test_public_addresses_are_public() -> None:
    for text in (
        "1.1.1.1",
        "8.8.8.8",
        "151.101.0.223",
        "2606:4700::6810:84e5",
        "2a04:4e42::223",
        "64:ff9b::808:808",
    ):
        assert classify_address(ipaddress.ip_address(text)) == "public"


def test_this_machine_knows_itself() -> None:
    assert is_local_address(ipaddress.ip_address("127.0.0.1"))
    assert not is_local_address(ipaddress.ip_address("1.1.1.1"))
