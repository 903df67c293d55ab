"""A real OpenID Connect provider for tests, from npm, and a browser that fills in its forms."""

from __future__ import annotations

import fcntl
import html
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from tests.npm_kit import CACHE

VERSION = "9.13.3"
SECRET = "a secret of tests: +/%"


def _package() -> Path:
    """Return the directory of the package, installed with its dependencies once per machine; skip without npm."""
    place = CACHE / "npm" / f"oidc-provider-{VERSION}"
    found = place / "node_modules" / "oidc-provider"
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / ".complete").exists():
            if shutil.which("npm") is None or shutil.which("node") is None:
                (pytest.fail if os.environ.get("CI") else pytest.skip)("node and npm are not installed")
            words = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]
            command = [*words, str(place), f"oidc-provider@{VERSION}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
            if done.returncode:
                pytest.fail(f"{' '.join(command)}: {done.stderr[-500:]}")
            (place / ".complete").touch()
    return found


class Company:
    """A running provider; `people` are the claims of its people by name."""

    def __init__(self, url: str, file: Path) -> None:
        self.url = url
        self._file = file

    def know(self, people: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the people."""
        self._file.write_text(json.dumps(people))


@contextmanager
def company(directory: Path, *, server: str) -> Iterator[Company]:
    """Run a provider that knows the client at `server`, the address of our server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    people = directory / "people.json"
    people.write_text("{}")
    script = Path(__file__).with_name("oidc_provider.mjs")
    words = ["node", str(script), str(_package()), str(port), server, str(people)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert any(line == "ready\n" for line in process.stdout)
            yield Company(f"http://127.0.0.1:{port}", people)
        finally:
            process.terminate()


def walk(client: httpx.Client, url: str, *, user: str, until: str) -> str:
    """Follow redirects and submit forms from `url` on, as `user`; return the first address below `until`."""
    answer = client.get(url)
    for _ in range(20):
        if answer.is_redirect:
            url = urljoin(str(answer.url), answer.headers["location"])
            if url.startswith(until):
                return url
            answer = client.get(url)
            continue
        form = re.search(r'<form[^>]*action="([^"]+)"', answer.text)
        assert form, answer.text
        hidden = re.findall(r'<input[^>]*type="hidden"[^>]*name="([^"]+)"[^>]*value="([^"]*)"', answer.text)
        fields = {name: html.unescape(value) for name, value in hidden}
        if 'name="login"' in answer.text:
            fields |= {"login": user, "password": "any"}
        if 'name="logout"' in answer.text:
            fields["logout"] = "yes"
        answer = client.post(urljoin(str(answer.url), html.unescape(form[1])), data=fields)
    raise AssertionError(f"no end of forms: {answer.text[:500]}")
