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
from chargehand.network.addresses import is_web_url
from chargehand.network.contract import MirrorLimits, MirrorRefusal, MirrorReply, MirrorTrace
from chargehand.network.mirror.memory import PageCache
from chargehand.network.mirror.settings import (
    ClientAccess,
    Proxies,
    environment_proxies,
    expand_home,
    host_for_log,
    proxy_url,
    read_timeout,
    split_login,
)
from chargehand.network.mirror.upstream import RegistryClient

CRATES_IO = "crates-io"
CRATES_INDEX = "https://index.crates.io/"
_SPARSE = "sparse+"
_VARIABLE = re.compile(r"CARGO_REGISTRIES_(.*)_(INDEX|TOKEN)")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# cargo itself refuses cycles; here the limit only ends the search.
_MAX_REPLACEMENTS = 16
# By the Cargo book, a sparse index's answers for a missing crate.
_ABSENT = (404, 410, 451)
_MARKERS = ("{crate}", "{version}", "{prefix}", "{lowerprefix}", "{sha256-checksum}")
_HINT = "a sparse+https index in your own cargo configuration can be served"
_Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CargoSource:
    """One registry: `known_as` is the index named in lock files ("" for crates.io), `index` its actual URL.

    `problem` gives the reason why it cannot be served; `token` is the Authorization header that the registry
    expects.
    """

    name: str
    known_as: str = ""
    index: str = ""
    problem: str = ""
    token: str = field(default="", repr=False)


class CargoConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The registries of the user's cargo, crates.io first; without userinfo or query."""

    sources: tuple[CargoSource, ...] = (CargoSource(name=CRATES_IO, index=CRATES_INDEX),)
    access: ClientAccess = msgspec.field(default_factory=ClientAccess)

    def urls(self) -> tuple[str, ...]:
        """Return every URL in the configuration."""
        return tuple(source.index for source in self.sources if source.index)

    def source(self, name: str) -> CargoSource | None:
        """Return the registry of that name."""
        return next((source for source in self.sources if source.name == name), None)


class _IndexEntry(msgspec.Struct):
    """One line of a crate's index file."""

    name: str
    vers: str
    cksum: str

    def download_url(self, template: str) -> str:
        """Return the URL of the crate, made from `dl` as in the Cargo book's "Index Format"."""
        if not any(marker in template for marker in _MARKERS):
            template += "/{crate}/{version}/download"
        values: Mapping[str, str] = {
            "{crate}": quote(self.name, safe=""),
            "{version}": quote(self.vers, safe="+"),
            "{prefix}": _prefix(self.name),
            "{lowerprefix}": _prefix(self.name.lower()),
            "{sha256-checksum}": quote(self.cksum, safe=""),
        }
        for marker, value in values.items():
            template = template.replace(marker, value)
        return split_login(template)[0]


class _IndexConfig(msgspec.Struct, rename="kebab"):
    """The config.json of an index: `dl` is the location of its crates."""

    dl: str
    auth_required: bool = False


class CrateRegistry:
    """Serves cargo from the user's registries; clients reach the mirror at `public_url`."""

    def __init__(
        self, config: CargoConfig, *, upstream: RegistryClient, limits: MirrorLimits, public_url: str
    ) -> None:
        self._config = config
        self._upstream = upstream
        self._public_url = public_url.rstrip("/")
        self._index_configs: dict[str, _IndexConfig] = {}
        self._cache: PageCache[bytes] = PageCache(limits.cache_bytes)

    def settings(self, registry: str, *, trace: MirrorTrace) -> MirrorReply:
        """Return the index's config.json: crates come from here, and no login is needed."""
        source = self._source(registry)
        trace.project = source.name
        download = f"{self._public_url}/cargo/{source.name}/crates/{{crate}}/{{version}}/download"
        return MirrorReply(media="application/json", body=json.dumps({"dl": download}).encode())

    async def entries(self, registry: str, crate: str, path: str, *, trace: MirrorTrace) -> MirrorReply:
        """Return the index file of a crate as it is upstream, including checksums; 404 if missing."""
        # cargo derives the path from the name, so any other path is not an index file.
        if path != index_path(crate.lower()):
            raise MirrorRefusal(404, "no index has a file at this path")
        return MirrorReply(body=await self._index_file(self._source(registry), crate, trace=trace))

    async def crate(self, registry: str, crate: str, version: str, *, trace: MirrorTrace) -> MirrorReply:
        """Return a crate that its index names; 404 for any other."""
        # The index comes first: a path here must not lead to just any file of the download host.
        source = self._source(registry)
        for line in (await self._index_file(source, crate, trace=trace)).splitlines():
            try:
                entry = decode_as(line, _IndexEntry)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue  # a line of a later format, which cargo also skips
            if entry.name == crate and entry.vers == version:
                break
        else:
            raise MirrorRefusal(404, f"registry {source.name!r} has no crate {crate!r} {version}")
        config = self._index_configs.get(source.name)
        if config is None:
            place = f"{source.index}config.json"
            page = await self._upstream.page(place, accept="application/json", trace=trace, login=source.token)
            try:
                config = decode_as(page.body if page else b"", _IndexConfig)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                raise MirrorRefusal(502, f"{host_for_log(place)!r} has no usable config.json") from None
            self._index_configs[source.name] = config
        url = entry.download_url(config.dl)
        if not is_web_url(url):
            raise MirrorRefusal(
                502, f"registry {source.name!r} names a place for its crates that is not on the web"
            )
        return await self._upstream.file(url, trace=trace, login=source.token if config.auth_required else "")

    def _source(self, registry: str) -> CargoSource:
        source = self._config.source(registry)
        if source is None:
            raise MirrorRefusal(404, f"your cargo configuration has no registry {registry!r}")
        if source.problem:
            raise MirrorRefusal(502, f"registry {registry!r} is not served: {source.problem}", hint=_HINT)
        return source

    async def _index_file(self, source: CargoSource, crate: str, *, trace: MirrorTrace) -> bytes:
        url = source.index + index_path(crate.lower())
        cached = self._cache.get(url)
        if cached is not None:
            return cached
        page = await self._upstream.page(url, accept="text/plain", trace=trace, absent=_ABSENT, login=source.token)
        if page is None:
            raise MirrorRefusal(404, f"registry {source.name!r} has no crate {crate!r}")
        self._cache.put(url, page.body, size=len(page.body))
        return page.body


def index_path(name: str) -> str:
    """Return the path of a crate's file in an index, for a lower-case name."""
    return f"{_prefix(name)}/{name}"


def _prefix(name: str) -> str:
    if len(name) <= 3:
        return str(len(name)) if len(name) < 3 else f"3/{name[0]}"
    return f"{name[:2]}/{name[2:4]}"


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
    # The mirror serves one request per connection; its time-out ends before the client's.
    lines += ["[http]", "multiplexing = false", "timeout = 180", ""]
    return "\n".join(lines)


def read_cargo_config(environ: Mapping[str, str]) -> CargoConfig:
    """Return the registries of the user with `environ`; one that cannot be served has a `problem`.

    Never raises: a cargo configuration must not block users without a cargo project.
    """
    home = expand_home(environ.get("CARGO_HOME") or "~/.cargo", environ)
    config = _read_toml(home, "config")
    credentials = _tables(_read_toml(home, "credentials").get("registries"))
    registries = _tables(config.get("registries"))
    # cargo writes a name in capitals in variables, with _ for -: only the files show the original name.
    names = {name.upper().replace("-", "_"): name for name in registries}
    for variable, value in environ.items():
        match = _VARIABLE.fullmatch(variable)
        if value and match:
            name = names.setdefault(match[1], match[1].lower().replace("_", "-"))
            registries[name] = {**registries.get(name, {}), match[2].lower(): value}
    tokens = {}
    for name in {**registries, **credentials}:
        # cargo prefers the token in the configuration or the environment.
        token = registries.get(name, {}).get("token") or credentials.get(name, {}).get("token")
        if isinstance(token, str) and token.isprintable():
            tokens[name] = token
    resolver = _SourceResolver(registries=registries, sources=_tables(config.get("source")), tokens=tokens)
    table = config.get("http")
    http = table if isinstance(table, dict) else {}
    roots: tuple[Path, ...] = ()
    authority = environ.get("CARGO_HTTP_CAINFO") or http.get("cainfo")
    if isinstance(authority, str):
        # A relative path is resolved against the directory that contains the .cargo directory.
        absolute = authority.startswith(("/", "~"))
        roots = (expand_home(authority, environ) if absolute else home.parent / authority,)
    added = environ.get("SSL_CERT_FILE")
    proxies = environment_proxies(environ)
    proxy = environ.get("CARGO_HTTP_PROXY") or http.get("proxy")
    if isinstance(proxy, str) and proxy:
        proxies = Proxies(by_scheme=dict.fromkeys(("http", "https"), proxy_url(proxy)), exempt=proxies.exempt)
    return CargoConfig(
        sources=tuple(resolver.resolve_all()),
        access=ClientAccess(
            roots=roots,
            extra_roots=(expand_home(added, environ),) if added else (),
            proxies=proxies,
            timeout=read_timeout(environ.get("CARGO_HTTP_TIMEOUT") or http.get("timeout")),
        ),
    )


def _read_toml(home: Path, stem: str) -> dict[str, Any]:
    # If both exist cargo reads the file without the suffix.
    for path in (home / stem, home / f"{stem}.toml"):
        try:
            return tomllib.loads(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue
    return {}


def _tables(value: object) -> _Tables:
    tables = value if isinstance(value, dict) else {}
    return {name: table for name, table in tables.items() if isinstance(table, dict)}


class _SourceResolver(msgspec.Struct, frozen=True, kw_only=True):
    """Follows names through `[registries]` and `[source]`, the two tables in which cargo looks them up."""

    registries: _Tables
    sources: _Tables
    tokens: Mapping[str, str]

    def resolve_all(self) -> Iterator[CargoSource]:
        """Yield crates.io, then each registry that a project of the user may name."""
        yield self._follow(CRATES_IO, CRATES_IO, known_as="")
        seen = {CRATES_IO}
        for name, table in (*self.registries.items(), *self.sources.items()):
            known_as = _bare_index(table.get("index") or table.get("registry"))
            if name in seen or not known_as or not _NAME.fullmatch(name):
                continue
            seen.add(name)
            # The configuration itself may replace an index, with a source of any name.
            replaced = (
                source
                for source, entries in self.sources.items()
                if _bare_index(entries.get("registry")) == known_as and entries.get("replace-with")
            )
            yield self._follow(name, next(replaced, name), known_as=known_as)

    def _follow(self, name: str, start: str, *, known_as: str) -> CargoSource:
        """Follow `replace-with` from `start` to the source that is not replaced."""
        current = start
        table = self.sources.get(start, {})
        for _ in range(_MAX_REPLACEMENTS):
            following = table.get("replace-with")
            if not isinstance(following, str):
                break
            current = following
            table = self.sources.get(following, {})
        else:
            return CargoSource(name=name, known_as=known_as, problem="its replace-with entries form a circle")
        local = next((key for key in ("directory", "local-registry", "git") if key in table), "")
        if local:
            return CargoSource(name=name, known_as=known_as, problem=f"it is replaced by a {local} source")
        # [registries.crates-io] may contain a protocol, but no location.
        if current == CRATES_IO and not table.get("registry"):
            index = _SPARSE + CRATES_INDEX
        else:
            index = _bare_index(table.get("registry") or self.registries.get(current, {}).get("index"))
        problem = ""
        if not index:
            problem = "the configuration does not name its index"
        elif not index.startswith(_SPARSE):
            problem = "its index is a git repository, and a sandbox has no git over the network"
        elif not is_web_url(index.removeprefix(_SPARSE)):
            problem = "its index is not an http or https URL"
        if problem:
            return CargoSource(name=name, known_as=known_as, problem=problem)
        same_index = (
            each for each, entries in self.registries.items() if _bare_index(entries.get("index")) == index
        )
        # crates.io reads need no token, and its token permits publishing: it is never sent.
        named = (each for each in (current, *same_index) if each != CRATES_IO and each in self.tokens)
        return CargoSource(
            name=name,
            known_as=known_as,
            index=index.removeprefix(_SPARSE).rstrip("/") + "/",
            token=self.tokens.get(next(named, ""), ""),
        )


def _bare_index(url: object) -> str:
    """Return an index without userinfo, query and fragment, "" for a value that is not text."""
    if not isinstance(url, str) or not url.isprintable():
        return ""
    sparse = _SPARSE if url.startswith(_SPARSE) else ""
    try:
        parts = urlsplit(split_login(url.removeprefix(_SPARSE))[0])
    except ValueError:
        return ""
    return sparse + parts._replace(query="", fragment="").geturl()
