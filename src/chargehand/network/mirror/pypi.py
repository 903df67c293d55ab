"""pip: the user's configuration, project pages merged over several indexes, and the files they name."""

from __future__ import annotations

import ast
import asyncio
import configparser
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import msgspec

from chargehand.network.contract import MirrorLimits, MirrorRefusal, MirrorReply, MirrorTrace
from chargehand.network.mirror.links import (
    ACCEPT,
    HTML_MEDIA,
    JSON_MEDIA,
    FileLink,
    is_archive,
    may_belong_to,
    normalise_project,
    parse_html_links,
    parse_json_links,
    render_html,
    render_json,
)
from chargehand.network.mirror.memory import NamedFiles, PageCache
from chargehand.network.mirror.settings import (
    PYPI,
    ClientAccess,
    Logins,
    PipConfig,
    Proxies,
    check_url,
    environment_proxies,
    exempt_hosts,
    expand_home,
    host_for_log,
    netrc_logins,
    origin_of,
    split_login,
)
from chargehand.network.mirror.upstream import RegistryClient, UpstreamPage, disk_file, local_path

_METADATA = ".metadata"
# Object stores answer 403 for what does not exist, so pip too reads it as "no such project".
_ABSENT = (403, 404, 410)
_LOCAL_PAGE_BYTES = 64 * 1024 * 1024


class PythonRegistry:
    """Answers what pip asks, from the user's own indexes and find-links."""

    def __init__(self, config: PipConfig, *, upstream: RegistryClient, limits: MirrorLimits) -> None:
        self._config = config
        self._upstream = upstream
        self._files = NamedFiles()
        self._cache: PageCache[list[FileLink]] = PageCache(limits.cache_bytes)

    async def index(self, project: str, *, accept: str, trace: MirrorTrace) -> MirrorReply:
        """Return the merged page of `project`; 404 where no source has it, 502 where a source fails.

        A source that fails is never left out in silence: another one may serve a wrong package of that name.
        """
        name = normalise_project(project)
        sources = [self._find_links(url, name, trace=trace) for url in self._config.find_links]
        sources += [self._index(url, name, trace=trace) for url in self._config.indexes]
        answers = await asyncio.gather(*sources, return_exceptions=True)
        links: dict[tuple[str, str], FileLink] = {}
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            for link in answer:
                links.setdefault((link.filename, link.hashes.get("sha256", "")), link)
        if not links:
            raise MirrorRefusal(404, f"no configured index has a project {name!r}")
        render, media = (render_json, JSON_MEDIA) if JSON_MEDIA in accept else (render_html, HTML_MEDIA)
        return MirrorReply(media=media, body=render(name, links.values(), rewrite=self._rewritten))

    def _rewritten(self, link: FileLink) -> str:
        return f"/pypi/files/{self._files.add(link)}/{link.filename}"

    async def file(self, identity: str, filename: str, *, trace: MirrorTrace) -> MirrorReply:
        """Return a file that a page of this mirror named, or its metadata; 404 for any other."""
        link = self._files.get(identity)
        url = _wanted(link, filename) if link else None
        if link is None or url is None:
            raise MirrorRefusal(404, "no index page of this mirror names this file")
        trace.project = filename
        if url.startswith("file:"):
            trace.add_host("file:")
            return await disk_file(url)
        return await self._upstream.file(url, trace=trace)

    async def _index(self, index: str, name: str, *, trace: MirrorTrace) -> list[FileLink]:
        url = urljoin(index.rstrip("/") + "/", f"{name}/")
        if url.startswith("file:"):
            trace.add_host("file:")
            return await asyncio.to_thread(_directory_links, url)
        return await self._web_page(url, trace=trace)

    async def _find_links(self, url: str, name: str, *, trace: MirrorTrace) -> list[FileLink]:
        if url.startswith("file:"):
            trace.add_host("file:")
            links = await asyncio.to_thread(_local_links, url)
        else:
            links = await self._web_page(url, trace=trace)
        return [link for link in links if may_belong_to(link.filename, name)]

    async def _web_page(self, url: str, *, trace: MirrorTrace) -> list[FileLink]:
        kept = self._cache.get(url)
        if kept is not None:
            return kept
        page = await self._upstream.page(url, accept=ACCEPT, trace=trace, absent=_ABSENT)
        # Large pages take a moment to parse, in which other requests go on.
        links = await asyncio.to_thread(_page_links, page) if page else []
        self._cache.put(url, links, size=len(page.body) if page else 1)
        return links


def _wanted(link: FileLink, filename: str) -> str | None:
    """Return the URL of the link's file, or of its metadata where the index says there is some."""
    if filename == link.filename:
        return link.url
    if link.metadata is not None and filename == link.filename + _METADATA:
        parts = urlsplit(link.url)
        return parts._replace(path=parts.path + _METADATA).geturl()
    return None


def _page_links(page: UpstreamPage) -> list[FileLink]:
    try:
        if "json" in page.media:
            return parse_json_links(page.body, url=page.url)
    except msgspec.MsgspecError:
        raise MirrorRefusal(502, f"{host_for_log(page.url)!r} answered what is not an index page") from None
    return parse_html_links(page.body.decode("utf-8", "replace"), url=page.url)


def _directory_links(url: str) -> list[FileLink]:
    """Return the links of a project's directory: of its index.html, else its own archives."""
    directory = local_path(url)
    page = directory / "index.html"
    if page.is_file():
        return _file_page_links(page.as_uri())
    return _local_links(url) if directory.is_dir() else []


def _local_links(url: str) -> list[FileLink]:
    """Return the links of a find-links directory or of a local HTML page; a missing one has none."""
    path = local_path(url)
    if not path.is_dir():
        return _file_page_links(url)
    try:
        names = sorted(entry.name for entry in path.iterdir() if entry.is_file())
    except OSError:
        return []
    pages = [name for name in names if name.endswith((".html", ".htm"))]
    links = [FileLink(filename=name, url=(path / name).as_uri()) for name in names if is_archive(name)]
    return links + [link for name in pages for link in _file_page_links((path / name).as_uri())]


def _file_page_links(url: str) -> list[FileLink]:
    path = local_path(url)
    try:
        if not path.is_file() or path.stat().st_size > _LOCAL_PAGE_BYTES or is_archive(path.name):
            return [FileLink(filename=path.name, url=url)] if path.is_file() and is_archive(path.name) else []
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        return []
    return parse_html_links(text, url=url)


# Later sections win, as for `pip install`.
_SECTIONS = ("global", "install", ":env:")
_LIST_SECONDS = 30.0
_LEAST_TIMEOUT = 60.0
_UNSET = ("", "0", "false", "no", "off", "n", "f")


def read_pip_config(environ: Mapping[str, str]) -> PipConfig:
    """Return where pip of the user with `environ` looks for packages.

    Raises `ConfigError` where an index or find-links is not something pip could fetch. Starts the host's `pip`
    (about a second).
    """
    options = _options(environ)
    raw_indexes = _raw_indexes(options)
    raw_links = options.get("find-links", "").split()
    indexes = [check_url(_as_url(item, environ), option="index-url") for item in raw_indexes]
    links = [check_url(_as_url(item, environ), option="find-links") for item in raw_links]
    return PipConfig(
        indexes=tuple(dict.fromkeys(split_login(url)[0] for url in indexes)),
        find_links=tuple(dict.fromkeys(split_login(url)[0] for url in links)),
        access=_access(options, environ, logins=_logins([*indexes, *links], environ)),
    )


def _raw_indexes(options: Mapping[str, str]) -> list[str]:
    if options.get("no-index", "").lower() not in _UNSET:
        return []
    return [options.get("index-url") or PYPI, *options.get("extra-index-url", "").split()]


def _as_url(item: str, environ: Mapping[str, str]) -> str:
    if "://" in item or item.startswith("file:"):
        return item
    return expand_home(item, environ).as_uri()


def _options(environ: Mapping[str, str]) -> dict[str, str]:
    listed = _listed(environ)
    settings = _from_files(environ) if listed is None else listed
    merged: dict[str, str] = {}
    for section in _SECTIONS:
        merged.update(settings.get(section, {}))
    merged.update(_from_environment(environ))
    return merged


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {_key(name[4:]): value for name, value in environ.items() if name.startswith("PIP_") and value}


def _key(name: str) -> str:
    return name.strip().lower().replace("_", "-").removeprefix("--").replace("default-timeout", "timeout")


def _listed(environ: Mapping[str, str]) -> dict[str, dict[str, str]] | None:
    for command in _pip_commands(environ):
        try:
            # A working directory nobody but root can plant modules in: `python -m` looks there first.
            done = subprocess.run(
                [*command, "config", "list"],
                env=dict(environ),
                cwd="/",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LIST_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return parse_config_list(done.stdout.decode("utf-8", "replace"))
    return None


def _pip_commands(environ: Mapping[str, str]) -> Iterator[list[str]]:
    for program, arguments in (("pip", []), ("pip3", []), ("python3", ["-m", "pip"]), ("python", ["-m", "pip"])):
        found = shutil.which(program, path=environ.get("PATH", ""))
        if found and Path(found).is_absolute():
            yield [found, *arguments]


def parse_config_list(text: str) -> dict[str, dict[str, str]]:
    """Return section, option and value of the lines `section.option='value'` that `pip config list` prints."""
    settings: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        section, dot, option = name.strip().rpartition(".")
        if not (equals and dot):
            continue
        try:
            settings.setdefault(section, {})[_key(option)] = str(ast.literal_eval(value))
        except (ValueError, SyntaxError):
            continue
    return settings


def _from_files(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    settings: dict[str, dict[str, str]] = {}
    for path in _config_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError):
            continue
        for section in parser.sections():
            values = {_key(name): value for name, value in parser.items(section)}
            settings.setdefault(section, {}).update(values)
    return settings


def _config_files(environ: Mapping[str, str]) -> list[Path]:
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return []
    home = Path(environ.get("HOME") or "/")
    shared = [
        Path(entry) / "pip/pip.conf" for entry in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if entry
    ]
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [*shared, Path("/etc/pip.conf"), home / ".pip/pip.conf", user / "pip/pip.conf"]
    if environ.get("VIRTUAL_ENV"):
        files.append(Path(environ["VIRTUAL_ENV"]) / "pip.conf")
    return [*files, Path(named)] if named else files


def _logins(urls: list[str], environ: Mapping[str, str]) -> Logins:
    by_prefix: dict[str, str] = {}
    by_origin: dict[str, str] = {}
    for url in urls:
        bare, header = split_login(url)
        if header:
            by_prefix[origin_of(bare) + urlsplit(bare).path.rstrip("/") + "/"] = header
            by_origin.setdefault(origin_of(bare), header)
    return Logins(by_prefix=by_prefix, by_origin=by_origin, by_host=netrc_logins(environ))


def _access(options: Mapping[str, str], environ: Mapping[str, str], *, logins: Logins) -> ClientAccess:
    replaced = options.get("cert") or environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    added = environ.get("SSL_CERT_FILE")
    client = options.get("client-cert")
    return ClientAccess(
        roots=(expand_home(replaced, environ),) if replaced else (),
        extra_roots=(expand_home(added, environ),) if added else (),
        client_certificate=expand_home(client, environ) if client else None,
        unverified=frozenset(options.get("trusted-host", "").split()),
        proxies=_proxies(options.get("proxy", ""), environ),
        logins=logins,
        timeout=_timeout(options.get("timeout", "")),
    )


def _proxies(proxy: str, environ: Mapping[str, str]) -> Proxies:
    if proxy:
        url = proxy if "://" in proxy else f"http://{proxy}"
        return Proxies(by_scheme={"http": url, "https": url})
    exempt = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    return Proxies(by_scheme=environment_proxies(environ), exempt=exempt_hosts(exempt))


def _timeout(value: str) -> float:
    try:
        return max(_LEAST_TIMEOUT, float(value))
    except ValueError:
        return _LEAST_TIMEOUT
