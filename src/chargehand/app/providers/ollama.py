"""The models that an Ollama on this machine serves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from chargehand.network.addresses import is_loopback

_OLLAMA_PORT = 11434
_LARGEST_REPLY_BYTES = 1 << 20
# Ollama also lists models for embeddings and ranking, recognisable only by their names.
_NO_CHAT = ("embed", "bge-", "minilm", "rerank")


def ollama_address(environ: Mapping[str, str]) -> str | None:
    """Return Ollama's address on this machine as `http://HOST:PORT`; `None` if it runs elsewhere."""
    said = environ.get("OLLAMA_HOST", "").strip() or "127.0.0.1"
    try:
        parts = urlsplit(said if "://" in said else f"http://{said}")
        host, port = parts.hostname or "127.0.0.1", parts.port or _OLLAMA_PORT
    except ValueError:
        return None
    host = "127.0.0.1" if host == "0.0.0.0" else host  # noqa: S104 - what a server binds; it is reached here
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return address if parts.scheme == "http" and is_loopback(address) else None


def find_ollama(environ: Mapping[str, str], *, timeout: float = 0.3) -> list[str]:
    """Return the names of Ollama's models, those for code first, then the largest; [] if it does not answer.

    `OLLAMA_HOST` sets its address, and counts only if it is a loopback address; `timeout` is in seconds.
    """
    address = ollama_address(environ)
    if address is None:
        return []
    # Not through urllib: a proxy from the environment must not be used for this machine's own services.
    from http.client import HTTPConnection, HTTPException

    parts = urlsplit(address)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.request("GET", "/api/tags")
        response = connection.getresponse()
        # Bounded: any program may listen on that port.
        listed = json.loads(response.read(_LARGEST_REPLY_BYTES)) if response.status == 200 else {}
    except (OSError, HTTPException, ValueError, RecursionError):
        return []
    finally:
        connection.close()
    rows = listed.get("models") if isinstance(listed, dict) else None
    models = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    models = [model for model in models if not any(part in _name(model) for part in _NO_CHAT)]
    models.sort(
        key=lambda model: (
            "code" not in _name(model),
            -model["size"] if isinstance(model.get("size"), int) else 0,
            _name(model),
        )
    )
    return [_name(model) for model in models if _name(model)]


def _name(model: Mapping[str, Any]) -> str:
    name = model.get("name")
    return name if isinstance(name, str) else ""
