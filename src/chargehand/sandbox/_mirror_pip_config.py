"""The user's pip configuration, read on the host as pip itself reads it."""

from __future__ import annotations

import ast
import configparser
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from chargehand.sandbox._mirror_settings import (
    PYPI,
    Access,
    Logins,
    PipConfig,
    Proxies,
    checked_url,
    environment_proxies,
    exempt_hosts,
    netrc_logins,
    origin_of,
    split_login,
    under_home,
)

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
    indexes = [checked_url(_as_url(item, environ), option="index-url") for item in raw_indexes]
    links = [checked_url(_as_url(item, environ), option="find-links") for item in raw_links]
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
    return under_home(item, environ).as_uri()


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


def _access(options: Mapping[str, str], environ: Mapping[str, str], *, logins: Logins) -> Access:
    replaced = options.get("cert") or environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    added = environ.get("SSL_CERT_FILE")
    client = options.get("client-cert")
    return Access(
        roots=(under_home(replaced, environ),) if replaced else (),
        extra_roots=(under_home(added, environ),) if added else (),
        client_certificate=under_home(client, environ) if client else None,
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
