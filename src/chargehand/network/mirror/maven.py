"""maven: the user's settings.xml, and the repositories that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from msgspec import Struct, field

from chargehand.network.addresses import is_web_url
from chargehand.network.contract import MirrorRefusal, MirrorReply, MirrorTrace
from chargehand.network.mirror.settings import (
    ClientAccess,
    Logins,
    Proxies,
    basic_auth,
    expand_home,
    origin_of,
    split_login,
)
from chargehand.network.mirror.upstream import RegistryClient

_CENTRAL = "central"
_CENTRAL_URL = "https://repo.maven.apache.org/maven2"
_VARIABLE = re.compile(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)\}")
_LARGEST_BYTES = 1_000_000
_HINT = "correct your settings.xml"


class MavenRepository(Struct, frozen=True, kw_only=True):
    """A repository of the user, without userinfo; `problem` gives the reason why it cannot be served."""

    name: str
    url: str
    problem: str = ""


class MavenConfig(Struct, frozen=True, kw_only=True):
    """Maven's repositories, in order; additional ones from a project's pom are not included."""

    repositories: tuple[MavenRepository, ...] = (MavenRepository(name=_CENTRAL, url=_CENTRAL_URL),)
    access: ClientAccess = field(default_factory=ClientAccess)

    def urls(self) -> tuple[str, ...]:
        """Return every URL in the configuration."""
        return tuple(each.url for each in self.repositories if not each.problem)


class JarRepository:
    """Serves maven: a file from the first of the user's repositories that has it."""

    def __init__(self, config: MavenConfig, *, upstream: RegistryClient) -> None:
        self._config = config
        self._upstream = upstream

    async def file(self, directory: str, name: str, *, trace: MirrorTrace) -> MirrorReply:
        """Return a file, also a checksum that maven verifies, as a stream; 404 if no repository has it."""
        last = MirrorRefusal(404, "your maven settings name no repository", hint=_HINT)
        for repository in self._config.repositories:
            try:
                if repository.problem:
                    message = f"repository {repository.name!r} is not served: {repository.problem}"
                    raise MirrorRefusal(502, message, hint=_HINT)
                return await self._upstream.file(f"{repository.url}/{directory}/{name}", trace=trace)
            except MirrorRefusal as refusal:
                # If a repository fails, another may have other content under this name: only a 404 continues the
                # search.
                if refusal.status != 404:
                    raise
                last = refusal
        raise last


def maven_settings(public_url: str, *, offline: bool) -> str:
    """Return the settings.xml that points maven to a mirror reached at `public_url`; it holds no secret.

    The same mirror is used online and offline: maven remembers the source of a file, and ignores files of other
    sources.
    """
    return (
        f"<settings><interactiveMode>false</interactiveMode><offline>{str(offline).lower()}</offline><mirrors><mirror>"
        f"<id>chargehand</id><mirrorOf>*</mirrorOf><url>{escape(public_url.rstrip('/'))}/maven</url>"
        "</mirror></mirrors></settings>\n"
    )


def read_maven_config(environ: Mapping[str, str]) -> MavenConfig:
    """Return the settings.xml of the user with `environ`; a repository that cannot be served has a `problem`.

    Never raises: maven settings must not block users without a maven project.
    """
    root = _read_settings(expand_home("~/.m2/settings.xml", environ), environ)
    servers = {_text(server, "id"): server for server in root.iterfind("servers/server")}
    found = dict[str, MavenRepository]()
    logins = dict[str, str]()
    # In maven's order: repositories of profiles come before those of every project.
    for name, url in (*_profile_repositories(root), (_CENTRAL, _CENTRAL_URL)):
        # A mirror replaces a repository and its login: the login of the server with the mirror's name applies.
        for mirror in root.iterfind("mirrors/mirror"):
            patterns = [pattern.strip() for pattern in _text(mirror, "mirrorOf").split(",")]
            # Blocking mirrors are for unencrypted repositories (`external:http:*`), which central is not.
            if f"!{name}" not in patterns and {name, "*", "external:*"}.intersection(patterns):
                name = _text(mirror, "id")
                url = _text(mirror, "url")
                break
        url, login = split_login(url.rstrip("/"))
        problem = "" if is_web_url(url) else "its URL is not http or https"
        server = servers.get(name)
        if server is not None and not login and not problem:
            user = _text(server, "username")
            password = _text(server, "password")
            login = basic_auth(user, password) if user else ""
            if password.startswith("{") and password.endswith("}"):
                problem = "its password is encrypted, which only maven can read; take it from ${env.NAME}"
        found.setdefault(url, MavenRepository(name=name, url=url, problem=problem))
        if login and not problem:
            logins[f"{origin_of(url)}{urlsplit(url).path}/"] = login
    added = environ.get("SSL_CERT_FILE")
    access = ClientAccess(
        extra_roots=(expand_home(added, environ),) if added else (),
        proxies=_read_proxies(root),
        logins=Logins(by_prefix=logins),
    )
    return MavenConfig(repositories=tuple(found.values()), access=access)


def _read_settings(path: Path, environ: Mapping[str, str]) -> ElementTree.Element:
    """Return the root of a settings file without its name spaces, empty if it cannot be read."""
    try:
        text = path.read_text("utf-8") if path.stat().st_size <= _LARGEST_BYTES else ""
        # No document type, so no entities: maven does not support them there either.
        root = ElementTree.fromstring(text) if "<!DOCTYPE" not in text else ElementTree.Element("settings")
    except (OSError, UnicodeDecodeError, ElementTree.ParseError):
        return ElementTree.Element("settings")
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.text = _VARIABLE.sub(lambda match: environ.get(match[1], match[0]), element.text or "")
    return root


def _text(element: ElementTree.Element, name: str) -> str:
    value = element.findtext(name) or ""
    return value.strip() if value.isprintable() or value.strip().isprintable() else ""


def _profile_repositories(root: ElementTree.Element) -> Iterator[tuple[str, str]]:
    """Yield name and URL of the repositories of active profiles, including those for plugins."""
    active = {(each.text or "").strip() for each in root.iterfind("activeProfiles/activeProfile")}
    for profile in root.iterfind("profiles/profile"):
        if _text(profile, "id") in active or profile.findtext("activation/activeByDefault", "").strip() == "true":
            for kind in ("repositories/repository", "pluginRepositories/pluginRepository"):
                yield from ((_text(each, "id"), _text(each, "url")) for each in profile.iterfind(kind))


def _read_proxies(root: ElementTree.Element) -> Proxies:
    """Return the first active proxy, which maven uses for every scheme."""
    for proxy in root.iterfind("proxies/proxy"):
        host = _text(proxy, "host")
        if not host or _text(proxy, "active") == "false":
            continue
        user = quote(_text(proxy, "username"), safe="")
        password = quote(_text(proxy, "password"), safe="")
        login = f"{user}:{password}@" if user else ""
        url = f"{_text(proxy, 'protocol') or 'http'}://{login}{host}:{_text(proxy, 'port') or '8080'}"
        exempt = (entry.strip().removeprefix("*") for entry in re.split(r"[|,]", _text(proxy, "nonProxyHosts")))
        return Proxies(by_scheme=dict.fromkeys(("http", "https"), url), exempt=tuple(filter(None, exempt)))
    return Proxies()
