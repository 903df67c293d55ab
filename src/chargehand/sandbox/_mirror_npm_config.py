"""The user's npm configuration, read from .npmrc files and the environment as npm itself reads it.

The rules are those of @npmcli/config, ini and npm-registry-fetch. A repository's own .npmrc is never read.
"""

from __future__ import annotations

import base64
import binascii
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from chargehand.sandbox._mirror_settings import (
    NPM,
    Access,
    Logins,
    NpmConfig,
    Proxies,
    basic,
    checked_url,
    environment_proxies,
    exempt_hosts,
    origin_of,
    split_login,
    under_home,
)

Settings = dict[str, str]
_VARIABLE = re.compile(r"(?<!\\)(\\*)\$\{([^${}?]+)(\?)?\}")
_TOKEN_KEYS = ("_authToken", "_auth", "username", "_password")


def read_npm_config(environ: Mapping[str, str]) -> NpmConfig:
    """Return where npm of the user with `environ` looks for packages.

    Raises `ConfigError` where a registry is not an http or https URL.
    """
    settings = _settings(environ)
    raw = {"": settings.get("registry") or NPM, **_scopes(settings)}
    urls = {scope: checked_url(url, option=f"{scope}:registry".lstrip(":")) for scope, url in raw.items()}
    bare = {scope: split_login(url)[0].rstrip("/") + "/" for scope, url in urls.items()}
    return NpmConfig(
        registry=bare[""],
        scopes={scope: url for scope, url in bare.items() if scope},
        access=_access(settings, environ, logins=_logins(settings, list(urls.values()))),
    )


def _settings(environ: Mapping[str, str]) -> Settings:
    """Read builtin, global and user files and the environment; later ones win, each may name the next."""
    variables = _from_environment(environ)
    builtin = _from_file(_builtin_file(environ), environ)
    named = variables.get("userconfig") or builtin.get("userconfig") or "~/.npmrc"
    user = _from_file(under_home(named, environ), environ)
    near = {**builtin, **user, **variables}
    prefix = near.get("prefix") or environ.get("PREFIX") or _node_prefix(environ)
    shared = _from_file(under_home(near.get("globalconfig") or f"{prefix}/etc/npmrc", environ), environ)
    return {**builtin, **shared, **user, **variables}


def _builtin_file(environ: Mapping[str, str]) -> Path:
    npm = shutil.which("npm", path=environ.get("PATH", ""))
    return Path(npm).resolve().parents[1] / "npmrc" if npm else Path("/nonexistent")


def _node_prefix(environ: Mapping[str, str]) -> str:
    node = shutil.which("node", path=environ.get("PATH", ""))
    return str(Path(node).absolute().parents[1]) if node else "/usr/local"


def _from_environment(environ: Mapping[str, str]) -> Settings:
    found = {}
    for name, value in environ.items():
        if value and name.lower().startswith("npm_config_"):
            key = name[len("npm_config_") :]
            found[key if key.startswith("//") else key[:1] + key[1:].replace("_", "-").lower()] = value
    return {(key if key.startswith(("//", "_")) else key.lower()): value for key, value in found.items()}


def _from_file(path: Path, environ: Mapping[str, str]) -> Settings:
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
    def value(match: re.Match[str]) -> str:
        escapes, name, optional = match.groups()
        if len(escapes) % 2:
            return match[0][(len(escapes) + 1) // 2 :]
        return escapes[len(escapes) // 2 :] + environ.get(name, "" if optional else "${" + name + "}")

    return _VARIABLE.sub(value, text)


def _unquote(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return _unquoted(value)
    plain = re.match(r"(?:[^;#\\]|\\.|\\$)*", value)
    return re.sub(r"\\([\\;#])", r"\1", plain[0] if plain else "").strip()


def _unquoted(value: str) -> str:
    inner = value[1:-1]
    try:
        decoded = msgspec.json.decode(value if value[0] == '"' else inner)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return inner if value[0] == "'" else value
    return decoded if isinstance(decoded, str) else inner


def _scopes(settings: Settings) -> Settings:
    return {
        name.removesuffix(":registry"): value
        for name, value in settings.items()
        if name.startswith("@") and name.endswith(":registry") and value
    }


def _logins(settings: Settings, urls: list[str]) -> Logins:
    by_prefix = dict(_keyed_logins(settings))
    legacy = _header({key: settings.get(key, "") for key in _TOKEN_KEYS})
    if legacy:
        by_prefix.setdefault(_prefix(urls[0]), legacy)
    by_origin: dict[str, str] = {}
    for url in urls:
        bare, header = split_login(url)
        if header:
            by_prefix.setdefault(_prefix(bare), header)
    # A tarball on the registry's host but outside its path gets the registry's login, as npm does.
    for url in reversed(urls):
        bare = split_login(url)[0]
        header = Logins(by_prefix=by_prefix).header(bare)
        if header:
            by_origin[origin_of(bare)] = header
    return Logins(by_prefix=by_prefix, by_origin=by_origin)


def _keyed_logins(settings: Settings) -> Iterator[tuple[str, str]]:
    keyed: dict[str, dict[str, str]] = {}
    for name, value in settings.items():
        place, _, key = name.rpartition(":")
        if place.startswith("//") and key in _TOKEN_KEYS:
            keyed.setdefault(place, {})[key] = value
    for place, values in keyed.items():
        header = _header(values)
        # The port of a key without one depends on the scheme, which the key does not say.
        for scheme in ("https", "http"):
            if header:
                yield _prefix(f"{scheme}:{place}"), header


def _prefix(url: str) -> str:
    bare = split_login(url)[0]
    path = bare.partition("://")[2].partition("/")[2]
    return origin_of(bare) + "/" + (path.rstrip("/") + "/" if path.strip("/") else "")


def _header(values: Mapping[str, str]) -> str:
    if values.get("_authToken"):
        return f"Bearer {values['_authToken']}"
    if values.get("_auth"):
        return f"Basic {values['_auth']}"
    if values.get("username") and values.get("_password"):
        try:
            password = base64.b64decode(values["_password"]).decode()
        except (binascii.Error, UnicodeDecodeError):
            return ""
        return basic(values["username"], password)
    return ""


def _access(settings: Settings, environ: Mapping[str, str], *, logins: Logins) -> Access:
    roots = settings.get("cafile", "")
    text = settings.get("ca", "").replace("\\n", "\n")
    extra = environ.get("NODE_EXTRA_CA_CERTS")
    return Access(
        roots=(under_home(roots, environ),) if roots and roots != "null" else (),
        root_text=text if "BEGIN CERTIFICATE" in text else "",
        extra_roots=(under_home(extra, environ),) if extra else (),
        verify=settings.get("strict-ssl", "true").lower() != "false",
        proxies=_proxies(settings, environ),
        logins=logins,
    )


def _proxies(settings: Settings, environ: Mapping[str, str]) -> Proxies:
    by_scheme = environment_proxies(environ)
    plain = _proxy(settings, "proxy")
    secure = _proxy(settings, "https-proxy") or plain
    by_scheme |= {"http": plain} if plain else {}
    by_scheme |= {"https": secure} if secure else {}
    exempt = settings.get("noproxy") or environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    return Proxies(by_scheme=by_scheme, exempt=exempt_hosts(exempt))


def _proxy(settings: Settings, name: str) -> str:
    value = settings.get(name, "")
    if value in ("", "null", "false"):
        return ""
    return value if "://" in value else f"http://{value}"
