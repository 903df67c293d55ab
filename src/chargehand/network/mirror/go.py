"""go: the user's configuration, the GOPROXY protocol and the checksum database."""

from __future__ import annotations

import asyncio
import fnmatch
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from chargehand.network.contract import MirrorLimits, MirrorRefusal, MirrorReply, MirrorTrace
from chargehand.network.mirror.memory import PageCache
from chargehand.network.mirror.settings import (
    ClientAccess,
    Logins,
    Proxies,
    environment_proxies,
    exempt_hosts,
    expand_home,
    netrc_logins,
    origin_of,
    split_login,
)
from chargehand.network.mirror.upstream import RegistryClient, disk_file, local_path

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
    access: ClientAccess = field(default_factory=ClientAccess)

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
    default = Path(environ.get("XDG_CONFIG_HOME") or expand_home("~/.config", environ)) / "go/env"
    try:
        text = (expand_home(named, environ) if named else default).read_text("utf-8", errors="replace")
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


def _access(urls: list[str], settings: Mapping[str, str], environ: Mapping[str, str]) -> ClientAccess:
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
    return ClientAccess(
        roots=tuple(expand_home(place, environ) for place in replaced),
        proxies=Proxies(by_scheme=environment_proxies(environ), exempt=exempt),
        logins=Logins(by_prefix=by_prefix),
    )


Answer = TypeVar("Answer")
_LOCAL_PAGE_BYTES = 64 * 1024 * 1024
_UPPER = re.compile(r"!([a-z])")
_WAY_OUT = "name a proxy in GOPROXY that has it, or vendor the module"
_PLAIN = "text/plain; charset=utf-8"


class ModuleProxy:
    """Answers what the go command asks, from the user's proxies in their order."""

    def __init__(self, config: GoConfig, *, upstream: RegistryClient, limits: MirrorLimits) -> None:
        self._config = config
        self._upstream = upstream
        self._sums: str | None = None
        self._cache: PageCache[bytes] = PageCache(limits.cache_bytes)

    async def page(self, module: str, name: str, *, trace: MirrorTrace) -> MirrorReply:
        """Return `@v/list`, `@latest`, an .info or a .mod of an escaped module path; 404 where no proxy has it."""
        path = f"{module}/{name}"
        self._judge(module)
        kept = self._cache.get(path)
        if kept is None:
            kept = await self._first(path, lambda proxy: self._page(f"{proxy.url}/{path}", trace), trace=trace)
            self._cache.put(path, kept, size=len(kept))
        media = "application/json" if name.endswith((".info", "latest")) else _PLAIN
        return MirrorReply(media=media, body=kept)

    async def archive(self, module: str, name: str, *, trace: MirrorTrace) -> MirrorReply:
        """Return a module's zip as a stream; the go command holds it against go.sum itself."""
        path = f"{module}/{name}"
        self._judge(module)
        return await self._first(path, lambda proxy: self._file(f"{proxy.url}/{path}", trace), trace=trace)

    async def sums(self, database: str, path: str, *, trace: MirrorTrace) -> MirrorReply:
        """Return a page of the checksum database that the user has configured, and of no other."""
        if not self._config.sums_name or database != self._config.sums_name:
            raise MirrorRefusal(404, f"your go configuration does not use the checksum database {database!r}")
        if path == "supported":
            return MirrorReply()
        module = path.removeprefix("lookup/").rpartition("@")[0] if path.startswith("lookup/") else ""
        if module:
            self._judge(module)
        base = await self._database(trace=trace)
        return MirrorReply(media=_PLAIN, body=await self._page(f"{base}/{path}", trace))

    async def _database(self, *, trace: MirrorTrace) -> str:
        """Return where the database is: behind the first proxy that offers it, else by itself."""
        if self._sums is None:
            self._sums = self._config.sums_url
            for proxy in self._config.proxies:
                behind = f"{proxy.url}/sumdb/{self._config.sums_name}"
                if proxy.url and not proxy.url.startswith("file:") and await self._offers(behind, trace):
                    self._sums = behind
                    break
        return self._sums

    async def _offers(self, base: str, trace: MirrorTrace) -> bool:
        try:
            return await self._upstream.page(f"{base}/supported", accept="*/*", trace=trace) is not None
        except MirrorRefusal:
            return False

    def _judge(self, module: str) -> None:
        """Keep the names of private modules from every proxy: somebody else could publish under them there."""
        path = unescaped(module)
        if self._config.is_private(path):
            raise MirrorRefusal(
                404,
                f"module {path!r} is private (GOPRIVATE, GONOPROXY), and a sandbox has no version control",
                hint="set GONOPROXY=none where a proxy of yours has it, or vendor the module",
            )

    async def _first(
        self, path: str, ask: Callable[[GoProxy], Awaitable[Answer]], *, trace: MirrorTrace
    ) -> Answer:
        """Return what the first proxy answers; where it has nothing, or fails and `|` follows, the next one's."""
        last = MirrorRefusal(404, "GOPROXY names no proxy", hint=_WAY_OUT)
        for proxy in self._config.proxies:
            if proxy.keyword:
                raise _keyword(proxy.keyword, last)
            try:
                return await ask(proxy)
            except MirrorRefusal as refusal:
                if refusal.status != 404 and not proxy.any_failure:
                    raise
                trace.problems.append(refusal.message)
                last = refusal
        raise last

    async def _page(self, url: str, trace: MirrorTrace) -> bytes:
        if url.startswith("file:"):
            trace.add_host("file:")
            return await asyncio.to_thread(_local_page, url)
        page = await self._upstream.page(url, accept="*/*", trace=trace)
        if page is None:
            raise MirrorRefusal(404, "the proxy does not have this module or version")
        return page.body

    async def _file(self, url: str, trace: MirrorTrace) -> MirrorReply:
        if url.startswith("file:"):
            trace.add_host("file:")
            return await disk_file(url)
        return await self._upstream.file(url, trace=trace)


def go_environment(config: GoConfig, public_url: str) -> Mapping[str, str]:
    """Return the variables that point the go command to a mirror reached at `public_url`."""
    return {
        "GOPROXY": f"{public_url.rstrip('/')}/go",
        "GOSUMDB": config.sums,
        "GONOSUMDB": config.no_sums,
        # Read-only directories could not be taken away again by an ordinary user.
        "GOFLAGS": f"{config.flags} -modcacherw".strip(),
        "GOENV": "off",
        "GONOPROXY": "none",
        "GOPRIVATE": "",
    }


def unescaped(module: str) -> str:
    """Return a module path as people write it: `!` before a letter stands for its upper case."""
    return _UPPER.sub(lambda match: match[1].upper(), module)


def _keyword(keyword: str, last: MirrorRefusal) -> MirrorRefusal:
    if keyword == "off":
        return MirrorRefusal(404, "GOPROXY says 'off' here: your go configuration allows no further source")
    return MirrorRefusal(
        404 if last.status == 404 else last.status,
        "GOPROXY says 'direct' here, and a sandbox has no version control over the network",
        hint=_WAY_OUT,
    )


def _local_page(url: str) -> bytes:
    path = local_path(url)
    try:
        if path.is_file() and path.stat().st_size <= _LOCAL_PAGE_BYTES:
            return path.read_bytes()
    except OSError:
        pass
    raise MirrorRefusal(404, "the local proxy does not have this module or version")
