"""Classification of addresses without any look-up; none of these functions raises for a malformed one."""

from __future__ import annotations

import ipaddress
from urllib.parse import urljoin, urlsplit

from chargehand.core.text import late_pattern

# Lone surrogates cannot be written to the log, which is UTF-8.
_NOT_PLAIN = late_pattern(r"[?#@\s\\\x00-\x1f\x7f\ud800-\udfff]")


def host_of(address: str) -> str:
    """Return the host of a URL in small letters, "" without one."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:  # for example an unclosed IPv6 address
        return ""


def is_loopback(address: str) -> bool:
    """Return whether a URL points to this machine."""
    host = host_of(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_web_url(url: str) -> bool:
    """Return whether `url` is an http or https URL with a host."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_plain_web_url(url: str) -> bool:
    """Return whether `url` is an http or https URL without user, password, query and fragment."""
    return is_web_url(url) and not _NOT_PLAIN.search(url)


def join_web_url(base: str, reference: str) -> str:
    """Return `reference` resolved against `base`, "" if that is not an http or https URL."""
    try:
        url = urljoin(base, reference)
    except ValueError:
        return ""
    return url if is_web_url(url) else ""
