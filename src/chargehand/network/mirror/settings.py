"""URLs, credentials, certificates and proxies of the user's package clients."""

from __future__ import annotations

import base64
import ipaddress
import netrc
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

import msgspec

from chargehand.core.errors import ConfigError
from chargehand.network.addresses import is_web_url

# The defaults of pip and npm without configuration.
PYPI = "https://pypi.org/simple/"
NPM = "https://registry.npmjs.org/"
_PORTS = {"http": 80, "https": 443}
_LEAST_TIMEOUT = 60.0


def basic_auth(user: str, password: str) -> str:
    """Return the value of an Authorization header for `user` and `password`."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def split_login(url: str) -> tuple[str, str]:
    """Return `url` without its userinfo, and that userinfo as an Authorization header value ("" if missing).

    A malformed URL is returned unchanged.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return url, ""
    userinfo, _, host = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    header = basic_auth(unquote(user), unquote(password)) if userinfo else ""
    return urlunsplit(parts._replace(netloc=host)), header


def host_for_log(url: str) -> str:
    """Return the host and port of `url` for logs: never userinfo, path or query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "?"
    return parts.netloc.rpartition("@")[2] if parts.scheme in _PORTS else f"{parts.scheme}:"


def check_url(url: str, *, option: str) -> str:
    """Return `url`; raise `ConfigError` that names `option` unless we can fetch it."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme == "file" or is_web_url(url)
    except ValueError:
        usable = False
    if not usable:
        # The message reaches logs and terminals, and there may be a login before the @.
        shown = url.rpartition("@")[2] if "@" in url else url
        raise ConfigError(
            f"{option} is set to {shown!r}, which is not an http, https or file URL",
            hint=f"correct {option} in your pip or npm configuration",
        )
    return url


def expand_home(value: str, environ: Mapping[str, str]) -> Path:
    """Return the path `value`, with a leading `~` replaced by the home in `environ`."""
    home = environ.get("HOME") or "/"
    return Path(home + value[1:] if value == "~" or value.startswith("~/") else value).absolute()


def url_port(parts: SplitResult) -> int:
    """Return the port of a split URL, by default that of the scheme."""
    return parts.port or _PORTS.get(parts.scheme, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logins:
    """Authorization headers by `//host:port/path/` (nearest wins), else by `//host:port`, else by host name."""

    by_prefix: Mapping[str, str] = field(default_factory=dict, repr=False)
    by_origin: Mapping[str, str] = field(default_factory=dict, repr=False)
    by_host: Mapping[str, str] = field(default_factory=dict, repr=False)

    def header(self, url: str) -> str:
        """Return the Authorization header value for `url`, "" if the user has no login for it."""
        parts = urlsplit(url)
        origin = origin_of(url)
        # The nearest path wins: repositories of one host may have separate logins.
        path = parts.path or "/"
        while path:
            found = self.by_prefix.get(origin + (path if path.endswith("/") else path + "/"))
            if found:
                return found
            path = path.rstrip("/").rpartition("/")[0]
        root = self.by_prefix.get(origin + "/")
        return root or self.by_origin.get(origin) or self.by_host.get(parts.hostname or "", "")


def origin_of(url: str) -> str:
    """Return `//host:port` of `url`, always with the port, as `Logins` keys it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"//{f'[{host}]' if ':' in host else host}:{url_port(parts)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxies:
    """The proxy for each scheme, and the hosts reached without a proxy, as NO_PROXY lists them."""

    by_scheme: Mapping[str, str] = field(default_factory=dict, repr=False)
    exempt: tuple[str, ...] = ()

    def proxy(self, url: str) -> str | None:
        """Return the URL of the proxy for `url`, `None` if it is reached directly."""
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        if any(_exempts(entry, host, url_port(parts)) for entry in self.exempt):
            return None
        return self.by_scheme.get(parts.scheme)


def _exempts(entry: str, host: str, port: int) -> bool:
    """Match an entry of NO_PROXY: `*`, a network, or an address or name (with subdomains) and perhaps a port."""
    if entry == "*":
        return True
    name = entry.lower()
    wanted = ""
    if name.startswith("["):  # an IPv6 address is in brackets if a port follows
        name, _, wanted = name[1:].partition("]")
    elif name.count(":") == 1:
        name, _, wanted = name.partition(":")
    wanted = wanted.removeprefix(":")
    if wanted.isdecimal() and int(wanted) != port:
        return False
    if "/" in name or ":" in name:
        try:
            return ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
        except ValueError:
            return False
    name = name.removeprefix("*").lstrip(".")
    return bool(name) and (host == name or host.endswith("." + name))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAccess:
    """One package client's access to its registries: trust, proxies, credentials; `timeout` is in seconds.

    `roots` and `root_text` (PEM) replace the default certificate authorities, `extra_roots` add to them;
    `unverified` holds `host` or `host:port` whose certificate is not checked.
    """

    roots: tuple[Path, ...] = ()
    root_text: str = field(default="", repr=False)
    extra_roots: tuple[Path, ...] = ()
    client_certificate: Path | None = None
    verify: bool = True
    unverified: frozenset[str] = frozenset()
    proxies: Proxies = field(default_factory=Proxies)
    logins: Logins = field(default_factory=Logins)
    timeout: float = 60.0

    def verifies(self, url: str) -> bool:
        """Return whether the certificate of `url`'s host is checked."""
        parts = urlsplit(url)
        names = {parts.hostname or "", f"{parts.hostname}:{url_port(parts)}"}
        return self.verify and not names & self.unverified


class PipConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Pip's sources: index and find-links URLs (http, https, file), without userinfo."""

    indexes: tuple[str, ...] = (PYPI,)
    find_links: tuple[str, ...] = ()
    access: ClientAccess = msgspec.field(default_factory=ClientAccess)

    def urls(self) -> tuple[str, ...]:
        """Return every URL in the configuration."""
        return (*self.indexes, *self.find_links)


class NpmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Npm's sources: the registry, and the registry of each `@scope`, without userinfo."""

    registry: str = NPM
    scopes: Mapping[str, str] = msgspec.field(default_factory=dict)
    access: ClientAccess = msgspec.field(default_factory=ClientAccess)

    def urls(self) -> tuple[str, ...]:
        """Return every URL in the configuration."""
        return (self.registry, *self.scopes.values())

    def registry_of(self, package: str) -> str:
        """Return the base URL of the registry for `package`, with a final slash."""
        scope = package.partition("/")[0] if package.startswith("@") else ""
        return self.scopes.get(scope, self.registry)


def environment_proxies(environ: Mapping[str, str]) -> Proxies:
    """Return the proxies in HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, lower case first."""
    by_scheme = {}
    for scheme in _PORTS:
        for name in (f"{scheme}_proxy", "all_proxy"):
            value = environ.get(name) or environ.get(name.upper())
            if value:
                by_scheme[scheme] = proxy_url(value)
                break
    exempt = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    return Proxies(by_scheme=by_scheme, exempt=split_no_proxy(exempt))


def proxy_url(value: str) -> str:
    """Return the URL of a proxy, by default http if its setting has no scheme."""
    return value if "://" in value else f"http://{value}"


def split_no_proxy(value: str) -> tuple[str, ...]:
    """Return the entries of a NO_PROXY value."""
    return tuple(entry.strip() for entry in value.split(",") if entry.strip())


def read_timeout(value: object) -> float:
    """Return the time-out in seconds in a client's setting, at least a minute."""
    try:
        return max(_LEAST_TIMEOUT, float(str(value)))
    except ValueError:
        return _LEAST_TIMEOUT


def netrc_logins(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the Authorization header for each host of the user's .netrc, empty if it cannot be read."""
    home = Path(environ.get("HOME") or "/")
    named = environ.get("NETRC")
    for path in [Path(named)] if named else [home / ".netrc", home / "_netrc"]:
        try:
            hosts = netrc.netrc(str(path)).hosts
        except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
            continue
        # The `default` entry is left out: it would send a login to every host that a page names.
        return {
            host: basic_auth(login or account, password)
            for host, (login, account, password) in hosts.items()
            if host != "default"
        }
    return {}
