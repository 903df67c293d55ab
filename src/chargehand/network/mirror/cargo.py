"""cargo: the user's configuration, sparse indexes (RFC 2789) and crates."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from chargehand.core.codec import decode_as
from chargehand.network.contract import MirrorLimits, MirrorRefusal, MirrorReply, MirrorTrace
from chargehand.network.mirror.memory import PageCache
from chargehand.network.mirror.settings import (
    ClientAccess,
    Proxies,
    environment_proxies,
    exempt_hosts,
    expand_home,
    host_for_log,
    split_login,
)
from chargehand.network.mirror.upstream import RegistryClient

CRATES_IO = "crates-io"
CRATES_INDEX = "https://index.crates.io/"
_SPARSE = "sparse+"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REPLACEMENTS = 16
_LEAST_TIMEOUT = 60.0
_Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CargoSource:
    """One registry: `known_as` is the index that lock files name ("" for crates.io), `index` where it really is.

    `problem` says why it cannot be served; `token` is the Authorization header as the registry expects it.
    """

    name: str
    known_as: str = ""
    index: str = ""
    problem: str = ""
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CargoConfig:
    """The registries that cargo of the user knows, crates.io first; without userinfo or query."""

    sources: tuple[CargoSource, ...] = (CargoSource(name=CRATES_IO, index=CRATES_INDEX),)
    access: ClientAccess = field(default_factory=ClientAccess)

    def urls(self) -> tuple[str, ...]:
        """Return every place that the configuration names."""
        return tuple(source.index for source in self.sources if source.index)

    def source(self, name: str) -> CargoSource | None:
        """Return the registry of that name."""
        return next((source for source in self.sources if source.name == name), None)


def read_cargo_config(environ: Mapping[str, str]) -> CargoConfig:
    """Return the registries of the user with `environ`; what cannot be served is a `problem` of its source.

    Never raises: whoever has no cargo project is not held up by a cargo configuration.
    """
    home = _cargo_home(environ)
    config = _tables(home, "config")
    registries, sources = _named(config.get("registries")), _named(config.get("source"))
    _from_environment(registries, environ)
    tokens = _tokens(registries, _named(_tables(home, "credentials").get("registries")))
    names = _Names(registries=registries, sources=sources, tokens=tokens)
    return CargoConfig(sources=tuple(names.served()), access=_access(config.get("http"), home, environ))


def _cargo_home(environ: Mapping[str, str]) -> Path:
    return expand_home(environ.get("CARGO_HOME") or "~/.cargo", environ)


def _tables(home: Path, stem: str) -> dict[str, Any]:
    # Where both exist cargo reads the one without the suffix.
    for path in (home / stem, home / f"{stem}.toml"):
        try:
            return tomllib.loads(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue
    return {}


def _named(value: object) -> _Tables:
    tables = value if isinstance(value, dict) else {}
    return {name: table for name, table in tables.items() if isinstance(table, dict)}


def _from_environment(registries: _Tables, environ: Mapping[str, str]) -> None:
    """Put CARGO_REGISTRIES_NAME_INDEX and _TOKEN over the files, as cargo writes names there."""
    spelled = {_spelled(name): name for name in registries}
    for variable, value in environ.items():
        for key in ("INDEX", "TOKEN"):
            written = variable.removeprefix("CARGO_REGISTRIES_").removesuffix(f"_{key}")
            if value and variable == f"CARGO_REGISTRIES_{written}_{key}":
                name = spelled.setdefault(written, written.lower().replace("_", "-"))
                registries[name] = {**registries.get(name, {}), key.lower(): value}


def _spelled(name: str) -> str:
    return name.upper().replace("-", "_")


def _tokens(registries: _Tables, credentials: _Tables) -> dict[str, str]:
    found = {}
    for name in {**registries, **credentials}:
        # cargo prefers what stands in the configuration or the environment.
        token = registries.get(name, {}).get("token") or credentials.get(name, {}).get("token")
        if isinstance(token, str) and token.isprintable():
            found[name] = token
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """The two tables in which cargo looks names up."""

    registries: _Tables
    sources: _Tables
    tokens: Mapping[str, str]

    def served(self) -> Iterator[CargoSource]:
        """Yield crates.io, then each registry that a project of the user's may name."""
        yield self._resolved(CRATES_IO, CRATES_IO, known_as="")
        seen = {CRATES_IO}
        for name, table in (*self.registries.items(), *self.sources.items()):
            known_as = _bare(table.get("index") or table.get("registry"))
            if name in seen or not known_as or not _NAME.fullmatch(name):
                continue
            seen.add(name)
            yield self._resolved(name, self._replaced(known_as) or name, known_as=known_as)

    def _replaced(self, known_as: str) -> str:
        """Return the source that the configuration itself puts in place of an index."""
        alike = (name for name, table in self.sources.items() if _bare(table.get("registry")) == known_as)
        return next((name for name in alike if self.sources[name].get("replace-with")), "")

    def _resolved(self, name: str, start: str, *, known_as: str) -> CargoSource:
        at, source = start, self.sources.get(start, {})
        for _ in range(_REPLACEMENTS):
            following = source.get("replace-with")
            if not isinstance(following, str):
                return self._at(name, at, source, known_as=known_as)
            at, source = following, self.sources.get(following, {})
        return CargoSource(name=name, known_as=known_as, problem="its replace-with entries go round in a circle")

    def _at(self, name: str, at: str, source: Mapping[str, Any], *, known_as: str) -> CargoSource:
        local = next((key for key in ("directory", "local-registry", "git") if key in source), "")
        if local:
            return CargoSource(name=name, known_as=known_as, problem=f"it is replaced by a {local} source")
        written = source.get("registry") or self.registries.get(at, {}).get("index")
        # What [registries.crates-io] may say is a protocol, not a place.
        public = at == CRATES_IO and not source.get("registry")
        index = _SPARSE + CRATES_INDEX if public else _bare(written)
        problem = _index_problem(index)
        token = self._token(at, index)
        return CargoSource(
            name=name,
            known_as=known_as,
            index="" if problem else index.removeprefix(_SPARSE).rstrip("/") + "/",
            problem=problem,
            token="" if problem else token,
        )

    def _token(self, name: str, index: str) -> str:
        # crates.io reads need none, and its token lets one publish: it is never sent.
        alike = (each for each, table in self.registries.items() if index and _bare(table.get("index")) == index)
        return next(
            (self.tokens[each] for each in (name, *alike) if each != CRATES_IO and each in self.tokens), ""
        )


def _bare(url: object) -> str:
    """Return an index without userinfo, query and fragment, "" for what is no text."""
    if not isinstance(url, str) or not url.isprintable():
        return ""
    sparse = _SPARSE if url.startswith(_SPARSE) else ""
    try:
        parts = urlsplit(split_login(url.removeprefix(_SPARSE))[0])
    except ValueError:
        return ""
    return sparse + parts._replace(query="", fragment="").geturl()


def _index_problem(index: str) -> str:
    parts = urlsplit(index.removeprefix(_SPARSE))
    if not index:
        return "the configuration does not say where its index is"
    if not index.startswith(_SPARSE):
        return "its index is a git repository, and a sandbox has no git over the network"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "its index is not an http or https URL"
    return ""


def _access(table: object, home: Path, environ: Mapping[str, str]) -> ClientAccess:
    http = table if isinstance(table, dict) else {}
    authority = environ.get("CARGO_HTTP_CAINFO") or http.get("cainfo")
    added = environ.get("SSL_CERT_FILE")
    return ClientAccess(
        # A relative path is read from the directory that holds the .cargo directory.
        roots=(home.parent / _path(authority, environ),) if isinstance(authority, str) else (),
        extra_roots=(expand_home(added, environ),) if added else (),
        proxies=_proxies(environ.get("CARGO_HTTP_PROXY") or http.get("proxy"), environ),
        timeout=_timeout(environ.get("CARGO_HTTP_TIMEOUT") or http.get("timeout")),
    )


def _path(value: str, environ: Mapping[str, str]) -> Path:
    return expand_home(value, environ) if value.startswith(("/", "~")) else Path(value)


def _proxies(proxy: object, environ: Mapping[str, str]) -> Proxies:
    exempt = exempt_hosts(environ.get("no_proxy") or environ.get("NO_PROXY") or "")
    if isinstance(proxy, str) and proxy:
        url = proxy if "://" in proxy else f"http://{proxy}"
        return Proxies(by_scheme={"http": url, "https": url}, exempt=exempt)
    return Proxies(by_scheme=environment_proxies(environ), exempt=exempt)


def _timeout(value: object) -> float:
    try:
        return max(_LEAST_TIMEOUT, float(str(value)))
    except ValueError:
        return _LEAST_TIMEOUT


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

    def __init__(
        self, config: CargoConfig, *, upstream: RegistryClient, limits: MirrorLimits, public_url: str
    ) -> None:
        self._config = config
        self._upstream = upstream
        self._public_url = public_url.rstrip("/")
        self._services: dict[str, _Service] = {}
        self._cache: PageCache[bytes] = PageCache(limits.cache_bytes)

    def settings(self, registry: str, *, trace: MirrorTrace) -> MirrorReply:
        """Return the index's config.json: crates come from here, and no login is asked for."""
        source = self._source(registry)
        trace.project = source.name
        place = f"{self._public_url}/cargo/{source.name}/crates/{{crate}}/{{version}}/download"
        return MirrorReply(media="application/json", body=json.dumps({"dl": place}).encode())

    async def entries(self, registry: str, crate: str, path: str, *, trace: MirrorTrace) -> MirrorReply:
        """Return the index file of a crate as it is upstream, checksums included; 404 where there is none."""
        if path != index_path(crate.lower()):
            raise MirrorRefusal(404, "no index has a file at this path")
        return MirrorReply(body=await self._page(self._source(registry), crate, trace=trace))

    async def crate(self, registry: str, crate: str, version: str, *, trace: MirrorTrace) -> MirrorReply:
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

    async def _page(self, source: CargoSource, crate: str, *, trace: MirrorTrace) -> bytes:
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

    async def _service(self, source: CargoSource, *, trace: MirrorTrace) -> _Service:
        if source.name not in self._services:
            url = f"{source.index}config.json"
            page = await self._upstream.page(url, accept="application/json", trace=trace, login=source.token)
            try:
                service = decode_as(page.body if page else b"", _Service)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                raise MirrorRefusal(502, f"{host_for_log(url)!r} has no usable config.json") from None
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
