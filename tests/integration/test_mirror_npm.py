"""npm through the mirror: documents with rewritten addresses, and only tarballs that a document names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from test_mirror_support import (
    Answer,
    LocalRegistry,
    document,
    forwarded_mirror,
    registry,
    run,
    running,
    self_signed,
    tarball,
    user_config,
)
from tests.postgres import free_port

INSTALL = "application/vnd.npm.install-v1+json"
TOKEN = "t0ken-of-the-user"
needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")


def serve(upstream: LocalRegistry, name: str, *, path: str = "") -> bytes:
    """Put a package on the registry, its tarball at `path`; return its content."""
    content = tarball(name)
    path = path or f"/{name}/-/{name.rpartition('/')[2]}-1.0.0.tgz"
    page = json.dumps(document(name, upstream.url + path, content)).encode()
    upstream.pages["/" + name.replace("/", "%2f")] = Answer(page, "application/json")
    upstream.pages[path] = Answer(content, "application/gzip")
    return content


async def test_documents_name_tarballs_of_the_mirror(tmp_path: Path) -> None:
    with registry() as upstream:
        plain = serve(upstream, "plain")
        odd = serve(upstream, "@s/odd", path="/download/0123abc?signature=s3cret")
        config = user_config(tmp_path, npm_config_registry=upstream.url)
        async with running(config, public_url="http://127.0.0.1:9") as reached:
            one = await reached.client.get("/npm/plain", headers={"accept": f"{INSTALL}; q=1.0, */*"})
            assert one.headers["content-type"] == INSTALL
            assert upstream.seen[0][1]["accept"].startswith(INSTALL)
            url = one.json()["versions"]["1.0.0"]["dist"]["tarball"]
            assert url == "http://127.0.0.1:9/npm/plain/-/plain-1.0.0.tgz"
            assert (await reached.client.get(url.removeprefix("http://127.0.0.1:9"))).content == plain
            two = await reached.client.get("/npm/@s%2fodd")
            assert two.headers["content-type"] == "application/json"
            assert two.json() == (await reached.client.get("/npm/@s/odd")).json()
            url = two.json()["versions"]["1.0.0"]["dist"]["tarball"].removeprefix("http://127.0.0.1:9")
            assert (await reached.client.get(url)).content == odd
            assert "s3cret" not in two.text
            swapped = url.replace("@s/odd", "plain")
            assert (await reached.client.get(swapped)).status_code == 404
            assert (await reached.client.get("/npm/nothing")).status_code == 404
    assert "s3cret" not in repr(reached.log)
    assert {record.kind for record in reached.log} == {"npm-index", "npm-file"}


async def test_a_lock_file_asks_for_tarballs_first(tmp_path: Path) -> None:
    with registry() as upstream:
        content = serve(upstream, "plain")
        upstream.pages["/plain/-/plain-9.9.9.tgz"] = Answer(b"not in the document")
        async with running(user_config(tmp_path, npm_config_registry=upstream.url)) as reached:
            for place in ("/npm/plain/-/", "/npm/api/virtual/plain/-/", "/plain/-/"):
                assert (await reached.client.get(f"{place}plain-1.0.0.tgz")).content == content
            assert (await reached.client.get("/npm/plain/-/plain-9.9.9.tgz")).status_code == 404


async def test_tokens_of_scoped_registries_stay_outside_the_sandbox(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    login = f"Bearer {TOKEN}"
    with registry(certificate=certificate, login=login) as private, registry() as public:
        content = serve(private, "@own/tool")
        serve(public, "plain")
        (tmp_path / ".npmrc").write_text(
            f"registry={public.url}/\n@own:registry={private.url}/\n//{private.host}/:_authToken=${{MY_TOKEN}}\n"
            f"cafile={certificate}\n"
        )
        async with running(user_config(tmp_path, MY_TOKEN=TOKEN)) as reached:
            page = await reached.client.get("/npm/@own%2ftool")
            got = await reached.client.get("/npm/@own/tool/-/tool-1.0.0.tgz")
            assert (page.status_code, got.content) == (200, content)
            assert (await reached.client.get("/npm/plain")).status_code == 200
            shown = page.text + repr(page.headers) + repr(got.headers) + repr(reached.log)
    assert TOKEN not in shown + repr(reached.mirror.environment())
    assert all("authorization" not in headers for _, headers in public.seen)
    assert reached.log[0].hosts == (private.host,)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT"])
async def test_publish_and_audit_requests_are_refused(tmp_path: Path, method: str) -> None:
    with registry() as upstream:
        async with running(user_config(tmp_path, npm_config_registry=upstream.url)) as reached:
            answer = await reached.client.request(method, "/npm/plain", content=b"{}")
            assert answer.status_code == 405
            assert (await reached.client.get("/npm/-/whoami")).status_code == 404
    assert upstream.seen == []


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"<html>", b"\xff", b'{"versions": {"1.0.0": {"dist": {"tarball": "file:///etc/passwd"}}}}'],
)
async def test_an_invalid_document_is_a_502(tmp_path: Path, body: bytes) -> None:
    with registry() as upstream:
        upstream.pages["/plain"] = Answer(body, "application/json")
        upstream.pages["/private"] = Answer(status=403)
        async with running(user_config(tmp_path, npm_config_registry=upstream.url)) as reached:
            assert (await reached.client.get("/npm/plain")).status_code == 502
            assert (await reached.client.get("/npm/private")).status_code == 502


@pytest.mark.parametrize(
    "body", [b"{}", b'{"versions": []}', b'{"versions": {"1": 1, "2": {}, "3": {"dist": 1}}}']
)
async def test_documents_without_tarballs_pass(tmp_path: Path, body: bytes) -> None:
    with registry() as upstream:
        upstream.pages["/plain"] = Answer(body, "application/json")
        async with running(user_config(tmp_path, npm_config_registry=upstream.url)) as reached:
            assert (await reached.client.get("/npm/plain")).json() == json.loads(body)


@needs_npm
async def test_npm_installs_through_forwarder_and_mirror(tmp_path: Path) -> None:
    port = free_port()
    project = tmp_path / "project"
    project.mkdir()
    lock = {
        "name": "project",
        "lockfileVersion": 3,
        "packages": {
            "": {"dependencies": {"plain": "1.0.0"}},
            "node_modules/plain": {
                "version": "1.0.0",
                "resolved": "https://registry.invalid/plain/-/plain-1.0.0.tgz",
            },
        },
    }
    (project / "package.json").write_text('{"name": "project", "dependencies": {"plain": "1.0.0"}}')
    (project / "package-lock.json").write_text(json.dumps(lock))
    with registry(login=f"Bearer {TOKEN}") as upstream:
        serve(upstream, "plain")
        serve(upstream, "@own/tool")
        (tmp_path / ".npmrc").write_text(f"registry={upstream.url}/\n//{upstream.host}/:_authToken={TOKEN}\n")
        config = user_config(tmp_path)
        async with forwarded_mirror(config, port) as reached:
            for command in (["ci"], ["install", "@own/tool"]):
                code, output = await run(["npm", *command], cwd=project, environment=reached.mirror.environment())
                assert code == 0, output
                assert TOKEN not in output
    assert (project / "node_modules/plain/package.json").is_file()
    assert (project / "node_modules/@own/tool/package.json").is_file()
    assert not any(record.problem for record in reached.log)
