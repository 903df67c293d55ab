"""The go side of the mirror: the GOPROXY protocol over the user's own proxies, and the checksum database."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from chargehand.sandbox._mirror_go_config import GoConfig, GoProxy
from chargehand.sandbox._mirror_reply import MirrorLimits, MirrorRefusal, Reply, Trace
from chargehand.sandbox._mirror_tables import PageCache
from chargehand.sandbox._mirror_upstream import Upstream, disk_file, local_path

Answer = TypeVar("Answer")
_LOCAL_PAGE_BYTES = 64 * 1024 * 1024
_UPPER = re.compile(r"!([a-z])")
_WAY_OUT = "name a proxy in GOPROXY that has it, or vendor the module"
_PLAIN = "text/plain; charset=utf-8"


class ModuleProxy:
    """Answers what the go command asks, from the user's proxies in their order."""

    def __init__(self, config: GoConfig, *, upstream: Upstream, limits: MirrorLimits) -> None:
        self._config = config
        self._upstream = upstream
        self._sums: str | None = None
        self._cache: PageCache[bytes] = PageCache(limits.cache_bytes)

    async def page(self, module: str, name: str, *, trace: Trace) -> Reply:
        """Return `@v/list`, `@latest`, an .info or a .mod of an escaped module path; 404 where no proxy has it."""
        path = f"{module}/{name}"
        self._judge(module)
        kept = self._cache.get(path)
        if kept is None:
            kept = await self._first(path, lambda proxy: self._page(f"{proxy.url}/{path}", trace), trace=trace)
            self._cache.put(path, kept, size=len(kept))
        media = "application/json" if name.endswith((".info", "latest")) else _PLAIN
        return Reply(media=media, body=kept)

    async def archive(self, module: str, name: str, *, trace: Trace) -> Reply:
        """Return a module's zip as a stream; the go command holds it against go.sum itself."""
        path = f"{module}/{name}"
        self._judge(module)
        return await self._first(path, lambda proxy: self._file(f"{proxy.url}/{path}", trace), trace=trace)

    async def sums(self, database: str, path: str, *, trace: Trace) -> Reply:
        """Return a page of the checksum database that the user has configured, and of no other."""
        if not self._config.sums_name or database != self._config.sums_name:
            raise MirrorRefusal(404, f"your go configuration does not use the checksum database {database!r}")
        if path == "supported":
            return Reply()
        module = path.removeprefix("lookup/").rpartition("@")[0] if path.startswith("lookup/") else ""
        if module:
            self._judge(module)
        base = await self._database(trace=trace)
        return Reply(media=_PLAIN, body=await self._page(f"{base}/{path}", trace))

    async def _database(self, *, trace: Trace) -> str:
        """Return where the database is: behind the first proxy that offers it, else by itself."""
        if self._sums is None:
            self._sums = self._config.sums_url
            for proxy in self._config.proxies:
                behind = f"{proxy.url}/sumdb/{self._config.sums_name}"
                if proxy.url and not proxy.url.startswith("file:") and await self._offers(behind, trace):
                    self._sums = behind
                    break
        return self._sums

    async def _offers(self, base: str, trace: Trace) -> bool:
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

    async def _first(self, path: str, ask: Callable[[GoProxy], Awaitable[Answer]], *, trace: Trace) -> Answer:
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

    async def _page(self, url: str, trace: Trace) -> bytes:
        if url.startswith("file:"):
            trace.asked("file:")
            return await asyncio.to_thread(_local_page, url)
        page = await self._upstream.page(url, accept="*/*", trace=trace)
        if page is None:
            raise MirrorRefusal(404, "the proxy does not have this module or version")
        return page.body

    async def _file(self, url: str, trace: Trace) -> Reply:
        if url.startswith("file:"):
            trace.asked("file:")
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
