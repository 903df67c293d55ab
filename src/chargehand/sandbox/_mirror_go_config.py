"""The user's settings of the go command, read on the host: variables, the `go env -w` file, .netrc.

The rules are those of "Go Modules Reference" (Environment variables, Private modules). Default where the user says
nothing: the public proxy and the public checksum database.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from chargehand.sandbox._mirror_settings import (
    Access,
    Logins,
    Proxies,
    environment_proxies,
    exempt_hosts,
    netrc_logins,
    origin_of,
    split_login,
    under_home,
)

_PROXIES = "https://proxy.golang.org,direct"
_SUMS = "sum.golang.org"
_OFF, _DIRECT = "off", "direct"
_KEYS = ("GOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GONOPROXY", "GOFLAGS", "GOAUTH")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoProxy:
    """One entry of GOPROXY: its URL, and whether any failure (`|`) leads to the next or an absence (`,`) alone.

    `keyword` is `direct` or `off` where the entry is no URL.
    """

    url: str = ""
    keyword: str = ""
    any_failure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GoConfig:
    """Where go looks: the proxies in order, and the patterns of modules that no proxy may be asked for.

    `sums` is GOSUMDB's name (with its key), "off" for none; `sums_url` where that database is.
    """

    proxies: tuple[GoProxy, ...] = (GoProxy(url="https://proxy.golang.org"), GoProxy(keyword=_DIRECT))
    private: tuple[str, ...] = ()
    sums: str = _SUMS
    sums_url: str = f"https://{_SUMS}"
    no_sums: str = ""
    flags: str = ""
    access: Access = field(default_factory=Access)

    @property
    def sums_name(self) -> str:
        """The database's name without its key, "" where there is none."""
        return "" if self.sums == _OFF else self.sums.partition("+")[0]

    def urls(self) -> tuple[str, ...]:
        """Return every place that the configuration names."""
        return (*(proxy.url for proxy in self.proxies if proxy.url), self.sums_url)

    def is_private(self, module: str) -> bool:
        """Say whether no proxy may be asked for a module, given by its unescaped path."""
        return any(_covers(pattern, module) for pattern in self.private)


def read_go_config(environ: Mapping[str, str]) -> GoConfig:
    """Return what the go command of the user with `environ` has set; never raises.

    An entry of GOPROXY that cannot be fetched is refused when it is asked.
    """
    settings = {**_from_file(environ), **{key: environ[key] for key in _KEYS if environ.get(key)}}
    sums = settings.get("GOSUMDB", _SUMS).split()
    name = sums[0] if sums else _SUMS
    place = sums[1] if len(sums) > 1 else f"https://{name.partition('+')[0]}"
    entries = tuple(_entries(settings.get("GOPROXY") or _PROXIES))
    private = settings.get("GONOPROXY") or settings.get("GOPRIVATE") or ""
    return GoConfig(
        proxies=tuple(
            GoProxy(url=split_login(e.url)[0], keyword=e.keyword, any_failure=e.any_failure) for e in entries
        ),
        private=tuple(each.strip() for each in private.split(",") if each.strip() not in ("", "none")),
        sums=name,
        sums_url=split_login(place)[0].rstrip("/"),
        no_sums=settings.get("GONOSUMDB") or settings.get("GOPRIVATE") or "",
        flags=_flags(settings.get("GOFLAGS", "")),
        access=_access([*(entry.url for entry in entries), place], settings, environ),
    )


def _from_file(environ: Mapping[str, str]) -> dict[str, str]:
    named = environ.get("GOENV", "")
    if named == _OFF:
        return {}
    default = Path(environ.get("XDG_CONFIG_HOME") or under_home("~/.config", environ)) / "go/env"
    try:
        text = (under_home(named, environ) if named else default).read_text("utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if not line.lstrip().startswith("#"))
    return {key.strip(): value for key, _, value in pairs if key.strip() in _KEYS}


def _entries(text: str) -> Iterator[GoProxy]:
    rest = text
    while rest:
        cut = min((at for at in (rest.find(","), rest.find("|")) if at >= 0), default=len(rest))
        word, separator, rest = rest[:cut].strip(), rest[cut : cut + 1], rest[cut + 1 :]
        if word in (_OFF, _DIRECT):
            yield GoProxy(keyword=word, any_failure=separator == "|")
            return  # nothing behind these two is ever asked
        if word:
            url = word if "://" in word or word.startswith("file:") else f"https://{word}"
            yield GoProxy(url=url.rstrip("/"), any_failure=separator == "|")


def _covers(pattern: str, module: str) -> bool:
    """Match a glob against as many leading elements of a path as it has (`module.MatchPrefixPatterns`)."""
    globs, parts = pattern.rstrip("/").split("/"), module.split("/")
    if len(parts) < len(globs):
        return False
    pairs = zip(globs, parts, strict=False)
    return all(fnmatch.fnmatchcase(part, glob.replace("[^", "[!")) for glob, part in pairs)


def _flags(text: str) -> str:
    """Return the flags that say how modules are read: others name files of the host, or are its own business."""
    return " ".join(flag for flag in text.split() if flag.lstrip("-").startswith("mod=") and flag.isprintable())


def _access(urls: list[str], settings: Mapping[str, str], environ: Mapping[str, str]) -> Access:
    replaced = [environ[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if environ.get(name)]
    exempt = exempt_hosts(environ.get("no_proxy") or environ.get("NO_PROXY") or "")
    by_host = {} if settings.get("GOAUTH") == _OFF else netrc_logins(environ)
    by_prefix = {}
    for url in urls:
        bare, own = split_login(url)
        parts = urlsplit(bare)
        # The go command sends what .netrc holds over https alone.
        header = own or (by_host.get(parts.hostname or "", "") if parts.scheme == "https" else "")
        if header:
            by_prefix[origin_of(bare) + parts.path.rstrip("/") + "/"] = header
    return Access(
        roots=tuple(under_home(place, environ) for place in replaced),
        proxies=Proxies(by_scheme=environment_proxies(environ), exempt=exempt),
        logins=Logins(by_prefix=by_prefix),
    )
