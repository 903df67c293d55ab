"""Setup fetches from the user's registries: cargo and go, with logins and an authority that stay outside."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import Cli, Completed, shell
from mirror_packages import MODULE, serve_crate, serve_module
from opened_tiers import TIERS
from test_mirror_support import LocalRegistry, registry, self_signed
from tests.conftest import git, make_repository

TOKEN = "t0ken-of-the-user"
TEST = "assert_eq!(greeting::greet() + inner::greet(), 84)"
CRATE = {
    "Cargo.toml": (
        '[package]\nname = "calc"\nversion = "0.1.0"\nedition = "2021"\n\n[dependencies]\n'
        'greeting = "0.1"\ninner = { version = "0.1", registry = "own" }\n'
    ),
    "src/lib.rs": f"#[test]\nfn greets() {{\n    {TEST};\n}}\n",
    "chargehand.toml": "[project]\nsetup = 'cargo fetch'\nchecks = ['cargo test']\n",
    ".gitignore": "target/\nCargo.lock\n",
}
GO = {
    "go.mod": f"module example.org/calc\n\ngo 1.18\n\nrequire {MODULE} v1.0.0\n",
    "calc.go": f'package calc\n\nimport "{MODULE}"\n\nfunc Double() int {{\n\treturn 2 * greet.Greet()\n}}\n',
    # A test would compile the standard library in each sandbox: half a minute of processor time.
    "chargehand.toml": "[project]\nsetup = 'go mod download all'\nchecks = ['go build -mod=mod ./...']\n",
    ".gitignore": "go.sum\n",
}


def needs(program: str) -> pytest.MarkDecorator:
    """Skip if the host lacks a program: sandboxes show the host's own."""
    return pytest.mark.skipif(not shutil.which(program), reason=f"not on this machine: {program}")


@dataclass(frozen=True)
class Upstream:
    """Two registries: one requires a login over TLS with a private authority, the other neither."""

    private: LocalRegistry
    public: LocalRegistry
    authority: Path


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    authority = self_signed(tmp_path)
    with registry(certificate=authority, login=TOKEN) as private, registry() as public:
        yield Upstream(private, public, authority)


def events(cli: Cli, result: Completed) -> list[dict[str, object]]:
    """Return all logged events of a mission."""
    log = cli.say("mission", "log", result.document["mission"], cwd=cli.place)
    return [json.loads(line) for line in log.stdout.splitlines()]


def requested(cli: Cli, result: Completed) -> list[str]:
    """Return the packages that setup asked for, by the rule of each request."""
    lines = [e["payload"] for e in events(cli, result) if e["type"] == "network.requested"]
    return [line["entry"] for line in lines if isinstance(line, dict)]


def everything_below(place: Path) -> bytes:
    """Return the content of all files below a directory."""
    return b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file() and not path.is_symlink())


@needs("cargo")
@pytest.mark.parametrize("tier", TIERS)
def test_cargo_fetches_in_setup_and_tests_without_network(tmp_path: Path, upstream: Upstream, tier: str) -> None:
    serve_crate(upstream.public, "greeting")
    serve_crate(upstream.private, "inner", auth=True)
    home = tmp_path / "person/.cargo"
    home.mkdir(parents=True)
    (home / "config.toml").write_text(
        '[source.crates-io]\nreplace-with = "near"\n'
        f'[source.near]\nregistry = "sparse+{upstream.public.url}/index/"\n'
        f'[registries.own]\nindex = "sparse+{upstream.private.url}/index/"\n'
        f'[http]\ncainfo = "{upstream.authority}"\n'
    )
    (home / "credentials.toml").write_text(f'[registries.own]\ntoken = "{TOKEN}"\n')
    rustup = os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup"))
    cli = Cli(tmp_path / "person", RUSTUP_HOME=rustup)
    repo = make_repository(tmp_path / "repo", CRATE)
    late = "bash -c ': < /dev/tcp/127.0.0.1/8870' && echo the mirror answers an agent >> seen"
    look = shell(f"cat Cargo.lock .chargehand/cargo/config.toml > seen; env >> seen; {late}; true")
    first = cli.say("run", "look", "--agent", look, "--sandbox", tier, cwd=repo)
    assert first.code == 0, first
    seen = git(repo, "show", f"{first.document['branch']}:seen")
    # The lock file names the registries as they are named outside, so that it can be committed.
    assert 'source = "registry+https://github.com/rust-lang/crates.io-index"' in seen
    assert f'source = "sparse+{upstream.private.url}/index/"' in seen
    assert "CARGO_NET_OFFLINE=true" in seen
    assert "the mirror answers" not in seen
    asked = requested(cli, first)
    assert {"registry cargo-config", "registry cargo-index", "registry cargo-file"} <= set(asked)
    second = cli.say("run", "again", "--agent", "command:touch new", "--sandbox", tier, cwd=repo)
    assert (second.code, requested(cli, second)) == (0, []), second
    # The token is in no file of any sandbox, and in no log.
    assert TOKEN.encode() not in everything_below(cli.home)
    assert any(headers.get("authorization") == TOKEN for _, headers in upstream.private.seen)
    assert not any("authorization" in headers for _, headers in upstream.public.seen)


# Every client leaves a container in the same way: the suite shows it above with cargo.
IN_CONTAINER = pytest.param("container", marks=[pytest.mark.needs_container, pytest.mark.soak])


@needs("go")
@pytest.mark.parametrize("tier", [TIERS[0], IN_CONTAINER])
def test_go_downloads_in_setup_and_builds_without_network(tmp_path: Path, tier: str) -> None:
    authority = self_signed(tmp_path)
    with registry(certificate=authority) as upstream:
        serve_module(upstream, below="/modules")
        cli = Cli(
            tmp_path / "person", GOPROXY=f"{upstream.url}/modules", SSL_CERT_FILE=str(authority), GOSUMDB="off"
        )
        repo = make_repository(tmp_path / "repo", GO)
        first = cli.say("run", "look", "--agent", "command:touch new", "--sandbox", tier, cwd=repo)
        assert first.code == 0, first
        assert {"registry go-page", "registry go-file"} <= set(requested(cli, first))
        second = cli.say("run", "again", "--agent", "command:touch newer", "--sandbox", tier, cwd=repo)
        assert (second.code, requested(cli, second)) == (0, []), second
