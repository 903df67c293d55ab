"""The cargo side of the mirror: sparse indexes (RFC 2789) and the crates that they name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

import msgspec

from chargehand.core.codec import decode_as
from chargehand.sandbox._mirror_cargo_config import CRATES_IO, CargoConfig, CargoSource
from chargehand.sandbox._mirror_reply import MirrorLimits, MirrorRefusal, Reply, Trace
from chargehand.sandbox._mirror_settings import shown_host, split_login
from chargehand.sandbox._mirror_tables import PageCache
from chargehand.sandbox._mirror_upstream import Upstream

_ABSENT = (404, 410, 451)
_MARKERS = ("{crate}", "{version}", "{prefix}", "{lowerprefix}", "{sha256-checksum}")
_WAY_OUT = "a sparse+https index in your own cargo configuration can be served"


class _Entry(msgspec.Struct):
    name: str
    vers: str
    cksum: str


class _Service(msgspec.Struct, rename="kebab"):
    dl: str
    auth_required: bool = False


class CrateRegistry:
    """Answers what cargo asks, from the user's registries; `public_url` is where clients reach the mirror."""

    def __init__(self, config: CargoConfig, *, upstream: Upstream, limits: MirrorLimits, public_url: str) -> None:
        self._config = config
        self._upstream = upstream
        self._public_url = public_url.rstrip("/")
        self._services: dict[str, _Service] = {}
        self._cache: PageCache[bytes] = PageCache(limits.cache_bytes)

    def settings(self, registry: str, *, trace: Trace) -> Reply:
        """Return the index's config.json: crates come from here, and no login is asked for."""
        source = self._source(registry)
        trace.project = source.name
        place = f"{self._public_url}/cargo/{source.name}/crates/{{crate}}/{{version}}/download"
        return Reply(media="application/json", body=json.dumps({"dl": place}).encode())

    async def entries(self, registry: str, crate: str, path: str, *, trace: Trace) -> Reply:
        """Return the index file of a crate as it is upstream, checksums included; 404 where there is none."""
        if path != index_path(crate.lower()):
            raise MirrorRefusal(404, "no index has a file at this path")
        return Reply(body=await self._page(self._source(registry), crate, trace=trace))

    async def crate(self, registry: str, crate: str, version: str, *, trace: Trace) -> Reply:
        """Return a crate that its index names; 404 for any other."""
        source = self._source(registry)
        page = await self._page(source, crate, trace=trace)
        entry = _entry(page, crate, version)
        if entry is None:
            raise MirrorRefusal(404, f"registry {source.name!r} has no crate {crate!r} {version}")
        service = await self._service(source, trace=trace)
        url = _download_url(service.dl, entry)
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise MirrorRefusal(502, f"registry {source.name!r} says that its crates are not on the web")
        return await self._upstream.file(url, trace=trace, login=source.token if service.auth_required else "")

    def _source(self, registry: str) -> CargoSource:
        source = self._config.source(registry)
        if source is None:
            raise MirrorRefusal(404, f"your cargo configuration has no registry {registry!r}")
        if source.problem:
            raise MirrorRefusal(502, f"registry {registry!r} is not served: {source.problem}", hint=_WAY_OUT)
        return source

    async def _page(self, source: CargoSource, crate: str, *, trace: Trace) -> bytes:
        name = crate.lower()
        url = source.index + index_path(name)
        kept = self._cache.get(url)
        if kept is not None:
            return kept
        page = await self._upstream.page(url, accept="text/plain", trace=trace, absent=_ABSENT, login=source.token)
        if page is None:
            raise MirrorRefusal(404, f"registry {source.name!r} has no crate {crate!r}")
        self._cache.put(url, page.body, size=len(page.body))
        return page.body

    async def _service(self, source: CargoSource, *, trace: Trace) -> _Service:
        if source.name not in self._services:
            url = f"{source.index}config.json"
            page = await self._upstream.page(url, accept="application/json", trace=trace, login=source.token)
            try:
                service = decode_as(page.body if page else b"", _Service)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                raise MirrorRefusal(502, f"{shown_host(url)!r} has no usable config.json") from None
            self._services[source.name] = service
        return self._services[source.name]


def cargo_settings(config: CargoConfig, public_url: str) -> str:
    """Return the config.toml that points cargo to a mirror reached at `public_url`; it holds no secret.

    Sources are replaced, not renamed: lock files keep the names that they have outside.
    """
    lines = []
    for source in config.sources:
        mirror = json.dumps(f"mirror-{source.name}")
        if source.name != CRATES_IO:
            known_as = json.dumps(source.known_as)
            lines += [f"[registries.{source.name}]", f"index = {known_as}"]
            lines += [f"[source.known-{source.name}]", f"registry = {known_as}"]
        else:
            lines += [f"[source.{CRATES_IO}]"]
        index = json.dumps(f"sparse+{public_url.rstrip('/')}/cargo/{source.name}/index/")
        lines += [f"replace-with = {mirror}", f"[source.{mirror}]", f"registry = {index}"]
    # One request for one connection is what the mirror does; its own patience ends before the client's.
    lines += ["[http]", "multiplexing = false", "timeout = 180", ""]
    return "\n".join(lines)


def index_path(name: str) -> str:
    """Return where an index keeps the file of a crate whose name is in lower case."""
    return f"{_prefix(name)}/{name}"


def _prefix(name: str) -> str:
    if len(name) <= 3:
        return str(len(name)) if len(name) < 3 else f"3/{name[0]}"
    return f"{name[:2]}/{name[2:4]}"


def _entry(page: bytes, crate: str, version: str) -> _Entry | None:
    for line in page.splitlines():
        try:
            entry = decode_as(line, _Entry)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue  # a line of a later format, which cargo too leaves out
        if entry.name == crate and entry.vers == version:
            return entry
    return None


def _download_url(template: str, entry: _Entry) -> str:
    """Return the address of a crate as the Cargo book's "Index Format" makes it of `dl`."""
    if not any(marker in template for marker in _MARKERS):
        template += "/{crate}/{version}/download"
    values: Mapping[str, str] = {
        "{crate}": quote(entry.name, safe=""),
        "{version}": quote(entry.vers, safe="+"),
        "{prefix}": _prefix(entry.name),
        "{lowerprefix}": _prefix(entry.name.lower()),
        "{sha256-checksum}": quote(entry.cksum, safe=""),
    }
    for marker, value in values.items():
        template = template.replace(marker, value)
    try:
        return split_login(template)[0]
    except ValueError:
        return ""
