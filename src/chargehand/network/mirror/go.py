"""go: the user's configuration, the GOPROXY protocol and the checksum database."""

from __future__ import annotations

import asyncio
import fnmatch
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from msgspec import Struct, field

from chargehand.network.addresses import is_web_url
from chargehand.network.contract import MirrorLimits, MirrorRefusal, MirrorReply, MirrorTrace
from chargehand.network.mirror.memory import PageCache
from chargehand.network.mirror.settings import (
    ClientAccess,
    Logins,
    environment_proxies,
    expand_home,
    netrc_logins,
    origin_of,
    split_login,
)
from chargehand.network.mirror.upstream import RegistryClient, local_file, read_local_page

_DEFAULT_PROXIES = "https://proxy.golang.org,direct"
_DEFAULT_SUMS = "sum.golang.org"
_OFF = "off"
_DIRECT = "direct"
_KEYS = ("GOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GONOPROXY", "GOFLAGS", "GOAUTH")
_UPPER = re.compile(r"!([a-z])")
_HINT = "name a proxy in GOPROXY that has it, or vendor the module"
_PLAIN = "text/plain; charset=utf-8"
Answer = TypeVar("Answer")


class GoProxy(Struct, frozen=True, kw_only=True):
    """One entry of GOPROXY: its URL, and whether any failure (`|`) or only an absence (`,`) leads to the next.

    `keyword` is `direct` or `off` if the entry is not a URL.
    """

    url: str = ""
    keyword: str = ""
    any_failure: bool = False

    @classmethod
    def parse_list(cls, text: str) -> Iterator[GoProxy]:
        """Yield the entries of GOPROXY, up to the first keyword: go ignores entries after it."""
        rest = text
        while rest:
            cut = min((at for at in (rest.find(","), rest.find("|")) if at >= 0), default=len(rest))
            word = rest[:cut].strip()
            separator = rest[cut : cut + 1]
            rest = rest[cut + 1 :]
            if word in (_OFF, _DIRECT):
                yield cls(keyword=word, any_failure=separator == "|")
                return
            if word:
                url = word if "://" in word or word.startswith("file:") else f"https://{word}"
                yield cls(url=url.rstrip("/"), any_failure=separator == "|")


class GoConfig(Struct, frozen=True, kw_only=True):
    """Go's sources: the proxies in order, and the patterns of modules that no proxy may be asked for.

    `sums` is GOSUMDB's name (with its key), or "off"; `sums_url` the URL of that database.
    """

    proxies: tuple[GoProxy, ...] = (GoProxy(url="https://proxy.golang.org"), GoProxy(keyword=_DIRECT))
    private: tuple[str, ...] = ()
    sums: str = _DEFAULT_SUMS
    sums_url: str = f"https://{_DEFAULT_SUMS}"
    no_sums: str = ""
    flags: str = ""
    access: ClientAccess = field(default_factory=ClientAccess)

    @property
    def sums_name(self) -> str:
        """The database's name without its key, "" without a database."""
        return "" if self.sums == _OFF else self.sums.partition("+")[0]

    def urls(self) -> tuple[str, ...]:
        """Return every URL in the configuration."""
        return (*(proxy.url for proxy in self.proxies if proxy.url), self.sums_url)

    def is_private(self, module: str) -> bool:
        """Return whether no proxy may be asked for a module, given by its unescaped path.

        A pattern matches as many leading elements as it has itself (Go's `module.MatchPrefixPatterns`).
        """
        parts = module.split("/")
        for pattern in self.private:
            globs = pattern.rstrip("/").split("/")
            if len(parts) >= len(globs) and all(
                # Go negates a character class with ^, fnmatch with !.
                fnmatch.fnmatchcase(part, glob.replace("[^", "[!"))
                for glob, part in zip(globs, parts, strict=False)
            ):
                return True
        return False


class ModuleProxy:
    """Serves the go command from the user's proxies in their order."""

    def __init__(self, config: GoConfig, *, upstream: RegistryClient, limits: MirrorLimits) -> None:
        self._config = config
        self._upstream = upstream
        self._sums_base: str | None = None
        self._cache: PageCache[bytes] = PageCache(limits.cache_bytes)

    async def file(self, module: str, name: str, *, trace: MirrorTrace) -> MirrorReply:
        """Return a file of an escaped module path from the first proxy that has it; 404 if no proxy has it.

        A zip is streamed: the go command itself checks it against go.sum.
        """
        path = f"{module}/{name}"
        self._refuse_private(module)

        async def fetch(proxy: str) -> MirrorReply:
            url = f"{proxy}/{path}"
            if url.startswith("file:"):
                trace.add_host("file:")
                return await local_file(url)
            return await self._upstream.file(url, trace=trace)

        if name.endswith(".zip"):
            return await self._ask_proxies(fetch, trace=trace)
        body = self._cache.get(path)
        if body is None:
            body = await self._ask_proxies(lambda proxy: self._page(f"{proxy}/{path}", trace), trace=trace)
            self._cache.put(path, body, size=len(body))
        media = "application/json" if name.endswith((".info", "latest")) else _PLAIN
        return MirrorReply(media=media, body=body)

    async def sums(self, database: str, path: str, *, trace: MirrorTrace) -> MirrorReply:
        """Return a page of the checksum database that the user has configured, and of no other."""
        if not self._config.sums_name or database != self._config.sums_name:
            raise MirrorRefusal(404, f"your go configuration does not use the checksum database {database!r}")
        # go requests this first, to learn whether it may send its look-ups here.
        if path == "supported":
            return MirrorReply()
        module = path.removeprefix("lookup/").rpartition("@")[0] if path.startswith("lookup/") else ""
        # The database is public, so it must not learn the names of private modules either.
        if module:
            self._refuse_private(module)
        if self._sums_base is None:
            found = self._config.sums_url
            # Through the first proxy that offers it, else directly.
            for proxy in self._config.proxies:
                if not proxy.url or proxy.url.startswith("file:"):
                    continue
                base = f"{proxy.url}/sumdb/{self._config.sums_name}"
                try:
                    page = await self._upstream.page(f"{base}/supported", accept="*/*", trace=trace)
                except MirrorRefusal:
                    continue
                if page is not None:
                    found = base
                    break
            self._sums_base = found
        return MirrorReply(media=_PLAIN, body=await self._page(f"{self._sums_base}/{path}", trace))

    def _refuse_private(self, module: str) -> None:
        """Keep the names of private modules from every proxy: an attacker could publish under them there."""
        # As people write it: `!` before a letter means its upper case.
        path = _UPPER.sub(lambda match: match[1].upper(), module)
        if self._config.is_private(path):
            raise MirrorRefusal(
                404,
                f"module {path!r} is private (GOPRIVATE, GONOPROXY), and a sandbox has no version control",
                hint="set GONOPROXY=none if your own proxy has it, or vendor the module",
            )

    async def _ask_proxies(self, ask: Callable[[str], Awaitable[Answer]], *, trace: MirrorTrace) -> Answer:
        """Return the first proxy's answer; after an absence, or a failure followed by `|`, that of the next."""
        last = MirrorRefusal(404, "GOPROXY names no proxy", hint=_HINT)
        for proxy in self._config.proxies:
            if proxy.keyword == _OFF:
                raise MirrorRefusal(404, "GOPROXY says 'off' here: your go configuration allows no further source")
            if proxy.keyword:
                message = "GOPROXY says 'direct' here, and a sandbox has no version control over the network"
                raise MirrorRefusal(last.status, message, hint=_HINT)
            try:
                return await ask(proxy.url)
            except MirrorRefusal as refusal:
                if refusal.status != 404 and not proxy.any_failure:
                    raise
                trace.problems.append(refusal.message)
                last = refusal
        raise last

    async def _page(self, url: str, trace: MirrorTrace) -> bytes:
        if url.startswith("file:"):
            trace.add_host("file:")
            body = await asyncio.to_thread(read_local_page, url)
            if body is None:
                raise MirrorRefusal(404, "the local proxy does not have this module or version")
            return body
        page = await self._upstream.page(url, accept="*/*", trace=trace)
        if page is None:
            raise MirrorRefusal(404, "the proxy does not have this module or version")
        return page.body


def go_environment(config: GoConfig, public_url: str) -> Mapping[str, str]:
    """Return the variables that point the go command to a mirror reached at `public_url`."""
    return {
        "GOPROXY": f"{public_url.rstrip('/')}/go",
        "GOSUMDB": config.sums,
        "GONOSUMDB": config.no_sums,
        # go makes its module cache read-only, and an unprivileged user could not delete those directories.
        "GOFLAGS": f"{config.flags} -modcacherw".strip(),
        # The host's `go env -w` file may be visible inside, and names unreachable hosts.
        "GOENV": "off",
        # The mirror refuses private modules with a reason; go would look for version control instead.
        "GONOPROXY": "none",
        "GOPRIVATE": "",
    }


def read_go_config(environ: Mapping[str, str]) -> GoConfig:
    """Return the go settings of the user with `environ`; never raises.

    An entry of GOPROXY that cannot be fetched is refused when requested.
    """
    settings = {**_read_env_file(environ), **{key: environ[key] for key in _KEYS if environ.get(key)}}
    sums = settings.get("GOSUMDB", _DEFAULT_SUMS).split()
    name = sums[0] if sums else _DEFAULT_SUMS
    sums_url = sums[1] if len(sums) > 1 else f"https://{name.partition('+')[0]}"
    entries = tuple(GoProxy.parse_list(settings.get("GOPROXY") or _DEFAULT_PROXIES))
    private = settings.get("GONOPROXY") or settings.get("GOPRIVATE") or ""
    flags = (flag for flag in settings.get("GOFLAGS", "").split() if flag.isprintable())
    roots = [environ[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if environ.get(name)]
    by_host = {} if settings.get("GOAUTH") == _OFF else netrc_logins(environ)
    by_prefix = {}
    for url in (*(entry.url for entry in entries), sums_url):
        bare, own_login = split_login(url)
        if not is_web_url(bare):
            continue
        parts = urlsplit(bare)
        # The go command sends logins from .netrc only over https.
        header = own_login or (by_host.get(parts.hostname or "", "") if parts.scheme == "https" else "")
        if header:
            by_prefix[origin_of(bare) + parts.path.rstrip("/") + "/"] = header
    return GoConfig(
        proxies=tuple(
            GoProxy(url=split_login(entry.url)[0], keyword=entry.keyword, any_failure=entry.any_failure)
            for entry in entries
        ),
        private=tuple(each.strip() for each in private.split(",") if each.strip() not in ("", "none")),
        sums=name,
        sums_url=split_login(sums_url)[0].rstrip("/"),
        no_sums=settings.get("GONOSUMDB") or settings.get("GOPRIVATE") or "",
        # -mod controls how modules are read. Other flags name files of the host, or do not affect a download.
        flags=" ".join(flag for flag in flags if flag.lstrip("-").startswith("mod=")),
        access=ClientAccess(
            roots=tuple(expand_home(path, environ) for path in roots),
            proxies=environment_proxies(environ),
            logins=Logins(by_prefix=by_prefix),
        ),
    )


def _read_env_file(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings written by `go env -w`."""
    explicit = environ.get("GOENV", "")
    if explicit == _OFF:
        return {}
    default = Path(environ.get("XDG_CONFIG_HOME") or expand_home("~/.config", environ)) / "go/env"
    try:
        text = (expand_home(explicit, environ) if explicit else default).read_text("utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines() if not line.lstrip().startswith("#"))
    return {key.strip(): value for key, _, value in pairs if key.strip() in _KEYS}
