"""Packages of cargo and go on a local registry, small enough for a test to create."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping

from test_mirror_support import Answer, LocalRegistry

GREET = "pub fn greet() -> i32 {\n    42\n}\n"
GO_GREET = "package greet\n\nfunc Greet() int {\n\treturn 42\n}\n"
MODULE = "example.org/Greet"
ESCAPED = "example.org/!greet"


def crate(name: str, source: str = GREET, version: str = "0.1.0") -> bytes:
    """Return a library crate with one source file, as `cargo package` would make it."""
    files = {
        "Cargo.toml": f'[package]\nname = "{name}"\nversion = "{version}"\nedition = "2021"\n',
        "src/lib.rs": source,
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


def serve_crate(
    upstream: LocalRegistry, name: str, *, content: bytes | None = None, auth: bool = False, place: str = ""
) -> bytes:
    """Serve an index with one crate below /index/ of a registry; return the crate."""
    content = crate(name) if content is None else content
    checksum = hashlib.sha256(content).hexdigest()
    settings = {"dl": place or f"{upstream.url}/dl/{{prefix}}/{{crate}}-{{version}}.crate"}
    settings_text = json.dumps({**settings, **({"auth-required": True} if auth else {})})
    upstream.pages["/index/config.json"] = Answer(settings_text.encode(), "application/json")
    line = {"name": name, "vers": "0.1.0", "deps": [], "cksum": checksum, "features": {}, "yanked": False}
    prefix = f"{name[:2]}/{name[2:4]}".lower()
    upstream.pages[f"/index/{prefix}/{name.lower()}"] = Answer(json.dumps(line).encode() + b"\n", "text/plain")
    upstream.pages[f"/dl/{name[:2]}/{name[2:4]}/{name}-0.1.0.crate"] = Answer(content, "application/gzip")
    return content


def module_zip(path: str = MODULE, source: str = GO_GREET, version: str = "v1.0.0") -> bytes:
    """Return a module's archive as a module proxy serves it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in {"go.mod": go_mod(path), "greet.go": source}.items():
            archive.writestr(f"{path}@{version}/{name}", text)
    return out.getvalue()


def go_mod(path: str = MODULE) -> str:
    """Return the go.mod of a module without dependencies."""
    return f"module {path}\n\ngo 1.18\n"


def serve_module(upstream: LocalRegistry, *, below: str = "", escaped: str = ESCAPED, path: str = MODULE) -> bytes:
    """Serve one version of a module on a proxy; return its archive."""
    content = module_zip(path)
    pages: Mapping[str, bytes] = {
        "@v/list": b"v1.0.0\n",
        "@v/v1.0.0.info": b'{"Version":"v1.0.0","Time":"2024-01-01T00:00:00Z"}',
        "@latest": b'{"Version":"v1.0.0","Time":"2024-01-01T00:00:00Z"}',
        "@v/v1.0.0.mod": go_mod(path).encode(),
        "@v/v1.0.0.zip": content,
    }
    for name, body in pages.items():
        upstream.pages[f"{below}/{escaped}/{name}"] = Answer(body, "text/plain")
    return content
