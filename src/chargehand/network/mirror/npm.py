"""npm: the user's configuration, package documents and tarballs."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import msgspec

from chargehand.network.addresses import is_web_url, join_web_url
from chargehand.network.contract import MirrorLimits, MirrorRefusal, MirrorReply, MirrorTrace
from chargehand.network.mirror.links import FILENAME, FileLink
from chargehand.network.mirror.memory import NamedFiles, PageCache
from chargehand.network.mirror.settings import (
    NPM,
    ClientAccess,
    Logins,
    NpmConfig,
    Proxies,
    basic_auth,
    check_url,
    environment_proxies,
    expand_home,
    host_for_log,
    origin_of,
    proxy_url,
    split_login,
    split_no_proxy,
)
from chargehand.network.mirror.upstream import RegistryClient, UpstreamPage

INSTALL_MEDIA = "application/vnd.npm.install-v1+json"
_FULL_MEDIA = "application/json"
_VARIABLE = re.compile(r"(?<!\\)(\\*)\$\{([^${}?]+)(\?)?\}")
_LOGIN_KEYS = ("_authToken", "_auth", "username", "_password")
Settings = dict[str, str]


class NodeRegistry:
    """Serves npm from the user's registries; clients reach the mirror at `public_url`."""

    def __init__(
        self, config: NpmConfig, *, upstream: RegistryClient, limits: MirrorLimits, public_url: str
    ) -> None:
        self._config = config
        self._upstream = upstream
        self._public_url = public_url.rstrip("/")
        self._files = NamedFiles()
        self._tarballs: dict[str, str] = {}
        self._cache: PageCache[bytes] = PageCache(limits.cache_bytes)

    async def document(self, package: str, *, accept: str, trace: MirrorTrace) -> MirrorReply:
        """Return the package document, abbreviated if the client accepts that; 404 if missing."""
        media = INSTALL_MEDIA if INSTALL_MEDIA in accept else _FULL_MEDIA
        body = await self._document(package, media=media, trace=trace)
        return MirrorReply(media=media, body=body)

    async def tarball(self, package: str, filename: str, *, identity: str = "", trace: MirrorTrace) -> MirrorReply:
        """Return a tarball by its usual name, as in lock files, or by its id if its name is unusual.

        404 for a tarball that the package's document does not name.
        """
        if identity:
            link = self._files.get(identity)
            if link is None or link.filename != f"{package}/{filename}":
                raise MirrorRefusal(404, "no package document of this mirror names this file")
            return await self._upstream.file(link.url, trace=trace)
        key = f"{package}/{filename}"
        # A lock file names tarballs of packages whose document has not been requested yet.
        if key not in self._tarballs:
            await self._document(package, media=INSTALL_MEDIA, trace=trace)
        if key not in self._tarballs:
            raise MirrorRefusal(404, f"package {package!r} has no file {filename!r}")
        return await self._upstream.file(self._tarballs[key], trace=trace)

    async def _document(self, package: str, *, media: str, trace: MirrorTrace) -> bytes:
        # Registries expect a scoped package as one element of the path.
        url = self._config.registry_of(package) + package.replace("/", "%2f")
        key = f"{media} {url}"
        cached = self._cache.get(key)
        if cached is not None:
            return cached
        accept = f"{INSTALL_MEDIA}; q=1.0, {_FULL_MEDIA}; q=0.8, */*" if media == INSTALL_MEDIA else _FULL_MEDIA
        page = await self._upstream.page(url, accept=accept, trace=trace)
        if page is None:
            raise MirrorRefusal(404, f"the registry has no package {package!r}")
        # Large documents take a moment to parse; other requests continue meanwhile.
        body = await asyncio.to_thread(self._rewrite_document, page, package)
        self._cache.put(key, body, size=len(body))
        return body

    def _rewrite_document(self, page: UpstreamPage, package: str) -> bytes:
        """Return the document with its tarballs at this mirror; everything else stays as in the registry."""
        try:
            document = msgspec.json.decode(page.body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            document = None
        if not isinstance(document, dict):
            raise MirrorRefusal(502, f"{host_for_log(page.url)!r} did not answer with a package document")
        versions = document.get("versions")
        prefix = f"{self._public_url}/npm/{package}/-"
        for version, entry in versions.items() if isinstance(versions, dict) else ():
            dist = entry.get("dist") if isinstance(entry, dict) else None
            if not isinstance(dist, dict) or not isinstance(dist.get("tarball"), str):
                continue
            url = urldefrag(join_web_url(page.url, dist["tarball"]))[0]
            if not url:
                raise MirrorRefusal(502, f"{host_for_log(page.url)!r} names a tarball that is not on the web")
            filename = unquote(urlsplit(url).path.rpartition("/")[2])
            # A usual name keeps the path of lock files. Any other gets an id: it may be another version's.
            if filename == f"{package.rpartition('/')[2]}-{version}.tgz" and FILENAME.fullmatch(filename):
                self._tarballs[f"{package}/{filename}"] = url
                dist["tarball"] = f"{prefix}/{filename}"
            else:
                shown = filename if FILENAME.fullmatch(filename) else "package.tgz"
                identity = self._files.add(FileLink(filename=f"{package}/{shown}", url=url))
                dist["tarball"] = f"{prefix}/{identity}/{shown}"
        return msgspec.json.encode(document)


def read_npm_config(environ: Mapping[str, str]) -> NpmConfig:
    """Return the npm configuration of the user with `environ`.

    Raises `ConfigError` if a registry is not an http or https URL.
    """
    settings = _read_settings(environ)
    registries = {"": settings.get("registry") or NPM}
    for name, value in settings.items():
        if name.startswith("@") and name.endswith(":registry") and value:
            registries[name.removesuffix(":registry")] = value
    urls = {scope: check_url(url, option=f"{scope}:registry".lstrip(":")) for scope, url in registries.items()}
    bare = {scope: split_login(url)[0].rstrip("/") + "/" for scope, url in urls.items()}
    logins = _read_logins(settings, list(urls.values()))
    roots = settings.get("cafile", "")
    root_text = settings.get("ca", "").replace("\\n", "\n")
    added = environ.get("NODE_EXTRA_CA_CERTS")
    plain = _proxy(settings, "proxy")
    secure = _proxy(settings, "https-proxy") or plain
    proxies = environment_proxies(environ)
    by_scheme = {
        **proxies.by_scheme,
        **({"http": plain} if plain else {}),
        **({"https": secure} if secure else {}),
    }
    exempt = split_no_proxy(settings["noproxy"]) if settings.get("noproxy") else proxies.exempt
    return NpmConfig(
        registry=bare[""],
        scopes={scope: url for scope, url in bare.items() if scope},
        access=ClientAccess(
            roots=(expand_home(roots, environ),) if roots and roots != "null" else (),
            root_text=root_text if "BEGIN CERTIFICATE" in root_text else "",
            extra_roots=(expand_home(added, environ),) if added else (),
            verify=settings.get("strict-ssl", "true").lower() != "false",
            proxies=Proxies(by_scheme=by_scheme, exempt=exempt),
            logins=logins,
        ),
    )


def _read_settings(environ: Mapping[str, str]) -> Settings:
    """Read builtin, global and user files and the environment; later ones win, each may name the next."""
    path = environ.get("PATH", "")
    variables: Settings = {}
    for name, value in environ.items():
        if value and name.lower().startswith("npm_config_"):
            key = name[len("npm_config_") :]
            # A leading underscore belongs to the key, and the location of a login (`//host/:_authToken`) keeps its
            # case.
            key = key if key.startswith("//") else key[:1] + key[1:].replace("_", "-").lower()
            variables[key if key.startswith(("//", "_")) else key.lower()] = value
    npm = shutil.which("npm", path=path)
    node = shutil.which("node", path=path)
    builtin = _read_npmrc(Path(npm).resolve().parents[1] / "npmrc", environ) if npm else {}
    # A project's .npmrc is left out: a repository must not control which hosts are contacted with which login.
    user_file = variables.get("userconfig") or builtin.get("userconfig") or "~/.npmrc"
    user = _read_npmrc(expand_home(user_file, environ), environ)
    known = {**builtin, **user, **variables}
    node_prefix = str(Path(node).absolute().parents[1]) if node else "/usr/local"
    prefix = known.get("prefix") or environ.get("PREFIX") or node_prefix
    shared = _read_npmrc(expand_home(known.get("globalconfig") or f"{prefix}/etc/npmrc", environ), environ)
    return {**builtin, **shared, **user, **variables}


def _read_npmrc(path: Path, environ: Mapping[str, str]) -> Settings:
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        return {}
    return parse_npmrc(text, environ)


def parse_npmrc(text: str, environ: Mapping[str, str]) -> Settings:
    """Return the settings of an .npmrc with `${VAR}` expanded; the items of `key[]` are joined by newlines."""
    settings: Settings = {}
    for line in text.splitlines():
        if not line.strip() or line.lstrip()[0] in ";#[":
            continue
        name, equals, raw = line.partition("=")
        key = _expand(_unquote(name.strip()), environ)
        value = _expand(_unquote(raw.strip()), environ) if equals else "true"
        if key.endswith("[]"):
            key = key.removesuffix("[]")
            value = f"{settings[key]}\n{value}" if key in settings else value
        settings[key] = value
    return settings


def _expand(text: str, environ: Mapping[str, str]) -> str:
    """Replace `${NAME}` and `${NAME?}`; an unset variable stays as it is, or becomes "" if it ends in `?`."""

    def value(match: re.Match[str]) -> str:
        escapes, name, optional = match.groups()
        if len(escapes) % 2:
            return match[0][(len(escapes) + 1) // 2 :]
        return escapes[len(escapes) // 2 :] + environ.get(name, "" if optional else "${" + name + "}")

    return _VARIABLE.sub(value, text)


def _unquote(value: str) -> str:
    """Return a key or value as npm's `ini` reads it: quotes hold JSON, elsewhere `;` and `#` begin a comment."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        inner = value[1:-1]
        try:
            decoded = msgspec.json.decode(value if value[0] == '"' else inner)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return inner if value[0] == "'" else value
        return decoded if isinstance(decoded, str) else inner
    plain = re.match(r"(?:[^;#\\]|\\.|\\$)*", value)
    return re.sub(r"\\([\\;#])", r"\1", plain[0] if plain else "").strip()


def _read_logins(settings: Settings, urls: list[str]) -> Logins:
    """Return the logins of `//place/:key` entries, of keys without a place, and of the registries' URLs."""
    by_prefix: dict[str, str] = {}
    by_place: dict[str, dict[str, str]] = {}
    for name, value in settings.items():
        place, _, key = name.rpartition(":")
        if place.startswith("//") and key in _LOGIN_KEYS:
            by_place.setdefault(place, {})[key] = value
    for place, values in by_place.items():
        header = _authorization(values)
        # The port of a key without a port depends on the scheme, which the key does not contain.
        if header:
            keyed = (f"{scheme}:{place}" for scheme in ("https", "http"))
            by_prefix |= {_prefix(url): header for url in keyed if is_web_url(url)}
    # Keys without a place, as old versions of npm wrote them, are only for the default registry.
    legacy = _authorization({key: settings.get(key, "") for key in _LOGIN_KEYS})
    if legacy:
        by_prefix.setdefault(_prefix(urls[0]), legacy)
    for url in urls:
        bare, header = split_login(url)
        if header:
            by_prefix.setdefault(_prefix(bare), header)
    by_origin: dict[str, str] = {}
    # A tarball on the registry's host but outside its path gets the registry's login, as in npm.
    for url in reversed(urls):
        bare = split_login(url)[0]
        header = Logins(by_prefix=by_prefix).header(bare)
        if header:
            by_origin[origin_of(bare)] = header
    return Logins(by_prefix=by_prefix, by_origin=by_origin)


def _prefix(url: str) -> str:
    bare = split_login(url)[0]
    path = bare.partition("://")[2].partition("/")[2]
    return origin_of(bare) + "/" + (path.rstrip("/") + "/" if path.strip("/") else "")


def _authorization(values: Mapping[str, str]) -> str:
    """Return the Authorization header of a login's keys, "" if they are incomplete."""
    if values.get("_authToken"):
        return f"Bearer {values['_authToken']}"
    if values.get("_auth"):
        return f"Basic {values['_auth']}"
    if values.get("username") and values.get("_password"):
        try:
            password = base64.b64decode(values["_password"]).decode()
        except (binascii.Error, UnicodeDecodeError):
            return ""
        return basic_auth(values["username"], password)
    return ""


def _proxy(settings: Settings, name: str) -> str:
    value = settings.get(name, "")
    return "" if value in ("", "null", "false") else proxy_url(value)
