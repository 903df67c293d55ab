"""cargo through the mirror: unchanged indexes, and only crates that an index names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from mirror_packages import crate, serve_crate
from test_mirror_support import (
    Answer,
    forwarded_mirror,
    registry,
    run,
    running,
    self_signed,
    user_config,
)
from tests.postgres import free_port

TOKEN = "t0ken-of-the-user"
needs_cargo = pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not installed")


def cargo_home(home: Path, text: str, credentials: str = "") -> str:
    """Write the user's cargo configuration; return CARGO_HOME."""
    place = home / "cargo-home"
    place.mkdir()
    (place / "config.toml").write_text(text)
    (place / "credentials.toml").write_text(credentials)
    return str(place)


def own(url: str, name: str = "own") -> str:
    """Return the configuration of another registry."""
    return f'[registries.{name}]\nindex = "sparse+{url}/index/"\n'


async def test_index_and_crates_with_login_and_authority_outside(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    with registry(certificate=certificate, login=TOKEN) as upstream, registry() as storage:
        content = serve_crate(upstream, "Greeting", auth=True)
        upstream.pages["/dl/Gr/ee/Greeting-0.1.0.crate"] = Answer(
            status=302, headers={"Location": f"{storage.url}/signed?s3cret"}
        )
        storage.pages["/signed?s3cret"] = Answer(content)
        text = own(upstream.url) + f'[http]\ncainfo = "{certificate}"\n'
        home = cargo_home(tmp_path, text, f'[registries.own]\ntoken = "{TOKEN}"\n')
        async with running(user_config(tmp_path, CARGO_HOME=home)) as reached:
            settings = await reached.client.get("/cargo/own/index/config.json")
            assert settings.json() == {"dl": "http://127.0.0.1:8870/cargo/own/crates/{crate}/{version}/download"}
            page = await reached.client.get("/cargo/own/index/gr/ee/greeting")
            assert page.content == upstream.pages["/index/gr/ee/greeting"].body
            assert (await reached.client.get("/cargo/own/crates/Greeting/0.1.0/download")).content == content
            for absent in ("Greeting/9.9.9", "other/0.1.0", "greeting/0.1.0"):
                assert (await reached.client.get(f"/cargo/own/crates/{absent}/download")).status_code == 404
            assert (await reached.client.get("/cargo/own/index/ab/ee/greeting")).status_code == 404
            assert (await reached.client.get("/cargo/no-such/index/config.json")).status_code == 404
            shown = page.text + settings.text + repr(reached.log) + reached.mirror.cargo_settings()
            shown += repr(reached.mirror.environment())
    assert TOKEN not in shown + repr(user_config(tmp_path, CARGO_HOME=home))
    assert "s3cret" not in shown
    assert str(certificate) not in shown
    assert all("authorization" not in headers for _, headers in storage.seen)
    assert {record.kind for record in reached.log} == {"cargo-config", "cargo-index", "cargo-file"}


async def test_a_login_is_sent_only_to_its_registry_and_not_to_downloads(tmp_path: Path) -> None:
    with registry() as one, registry() as two:
        for upstream in (one, two):
            serve_crate(upstream, "greeting")
        text = own(one.url, "one") + own(two.url, "two") + '[registry]\ntoken = "of-crates-io"\n'
        text += f'[source.crates-io]\nreplace-with = "x"\n[source.x]\nregistry = "sparse+{two.url}/index/"\n'
        credentials = f'[registries.one]\ntoken = "{TOKEN}"\n[registries.crates-io]\ntoken = "of-crates-io"\n'
        home = cargo_home(tmp_path, text, credentials)
        async with running(user_config(tmp_path, CARGO_HOME=home)) as reached:
            for name in ("one", "two", "crates-io"):
                got = await reached.client.get(f"/cargo/{name}/crates/greeting/0.1.0/download")
                assert got.status_code == 200
    assert [headers.get("authorization") for path, headers in one.seen if path.startswith("/index")] == [TOKEN] * 2
    assert [headers.get("authorization") for path, headers in one.seen if path.startswith("/dl")] == [None]
    assert not any("authorization" in headers for _, headers in two.seen)


REPLACED = '[source.own]\nregistry = "sparse+https://a.invalid/"\nreplace-with = '


REPLACED = '[source.own]\nregistry = "sparse+https://a.invalid/"\nreplace-with = '


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[registries.own]\nindex = "https://git.invalid/index"\n', "git repository"),
        (f'{REPLACED}"d"\n[source.d]\ndirectory = "v"\n', "a directory"),
        (f'{REPLACED}"own"\n', "circle"),
        (f'{REPLACED}"no"\n', "does not name its index"),
        ('[registries.own]\nindex = "sparse+file:///etc/"\n', "not an http"),
    ],
)
async def test_an_unusable_registry_is_an_error_on_request(tmp_path: Path, text: str, told: str) -> None:
    home = cargo_home(tmp_path, text)
    async with running(user_config(tmp_path, CARGO_HOME=home)) as reached:
        for path in ("index/config.json", "index/gr/ee/greeting", "crates/greeting/0.1.0/download"):
            answer = await reached.client.get(f"/cargo/own/{path}")
            assert (answer.status_code, told in answer.text) == (502, True), answer.text
        assert all(told in record.problem for record in reached.log)


@pytest.mark.parametrize("place", ["file:///etc/passwd", "//127.0.0.1/x", "ftp://a.invalid/x"])
async def test_a_registry_leads_nowhere_but_to_the_web(tmp_path: Path, place: str) -> None:
    with registry() as upstream:
        serve_crate(upstream, "greeting", place=place)
        home = cargo_home(tmp_path, own(upstream.url))
        async with running(user_config(tmp_path, CARGO_HOME=home)) as reached:
            answer = await reached.client.get("/cargo/own/crates/greeting/0.1.0/download")
    assert answer.status_code == 502


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"dl": 1}', b"\xff"])
async def test_an_invalid_config_json_is_a_502(tmp_path: Path, body: bytes) -> None:
    with registry() as upstream:
        serve_crate(upstream, "greeting")
        upstream.pages["/index/config.json"] = Answer(body)
        async with running(user_config(tmp_path, CARGO_HOME=cargo_home(tmp_path, own(upstream.url)))) as reached:
            assert (await reached.client.get("/cargo/own/crates/greeting/0.1.0/download")).status_code == 502


@needs_cargo
@pytest.mark.parametrize("tampered", [False, True])
async def test_cargo_fetches_and_holds_crates_against_the_index(tmp_path: Path, tampered: bool) -> None:
    port = free_port()
    project, inside = tmp_path / "project", tmp_path / "inside"
    (project / "src").mkdir(parents=True)
    inside.mkdir()
    (project / "src/lib.rs").write_text("pub use greeting::greet;\n")
    manifest = '[package]\nname = "p"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\n'
    (project / "Cargo.toml").write_text(manifest + 'greeting = { version = "0.1", registry = "own" }\n')
    with registry(login=TOKEN) as upstream:
        serve_crate(upstream, "greeting", auth=True)
        if tampered:
            upstream.pages["/dl/gr/ee/greeting-0.1.0.crate"] = Answer(crate("greeting", "// evil\n"))
        home = cargo_home(tmp_path, own(upstream.url), f'[registries.own]\ntoken = "{TOKEN}"\n')
        async with forwarded_mirror(user_config(tmp_path, CARGO_HOME=home), port) as reached:
            (inside / "config.toml").write_text(reached.mirror.cargo_settings())
            variables = {name: os.environ[name] for name in ("RUSTUP_HOME",) if name in os.environ}
            variables.setdefault("RUSTUP_HOME", str(Path.home() / ".rustup"))
            code, said = await run(
                ["cargo", "fetch"],
                cwd=project,
                environment={**variables, "CARGO_HOME": str(inside), **reached.mirror.environment()},
            )
            assert (code != 0, "checksum" in said) == (tampered, tampered), said
            assert f"sparse+{upstream.url}/index/" in (project / "Cargo.lock").read_text()
