"""The user's cargo and go configuration, and the paths that their clients ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from chargehand.network.contract import MirrorRefusal
from chargehand.network.mirror.cargo import CRATES_INDEX, read_cargo_config
from chargehand.network.mirror.go import read_go_config
from chargehand.network.registries import MirrorRoute, parse_route


def test_without_configuration_the_public_places(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    (source,) = read_cargo_config(environ).sources
    assert (source.name, source.index, source.known_as, source.token) == ("crates-io", CRATES_INDEX, "", "")
    go = read_go_config(environ)
    assert [entry.url or entry.keyword for entry in go.proxies] == ["https://proxy.golang.org", "direct"]
    assert (go.sums_name, go.private) == ("sum.golang.org", ())


def test_cargo_variables_go_over_its_files(tmp_path: Path) -> None:
    (tmp_path / ".cargo").mkdir()
    (tmp_path / ".cargo/config.toml").write_text(
        '[registries.my-own]\nindex = "sparse+https://a.example/"\ntoken = "old"\n[http]\ncainfo = "own.pem"\n'
    )
    (tmp_path / ".cargo/credentials.toml").write_text('[registries.my-own]\ntoken = "older"\n')
    config = read_cargo_config(
        {
            "HOME": str(tmp_path),
            "CARGO_REGISTRIES_MY_OWN_TOKEN": "new",
            "CARGO_REGISTRIES_OTHER_INDEX": "sparse+https://user:secret@b.example/index",
        }
    )
    own, other = config.source("my-own"), config.source("other")
    assert own is not None
    assert other is not None
    assert (own.index, own.token) == ("https://a.example/", "new")
    assert (other.index, other.known_as) == ("https://b.example/index/", "sparse+https://b.example/index")
    assert config.access.roots == (tmp_path / "own.pem",)
    assert "new" not in repr(config)


@pytest.mark.parametrize("text", ["", "[registries", "registries = 1\nsource = [2]\nhttp = 3\n", "\x00"])
def test_a_broken_cargo_configuration_holds_nobody_up(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    assert len(read_cargo_config({"HOME": "/nonexistent", "CARGO_HOME": str(tmp_path)}).sources) == 1


@pytest.mark.parametrize(
    ("target", "route"),
    [
        ("/cargo/crates-io/index/config.json", MirrorRoute(kind="cargo-config", registry="crates-io")),
        ("/cargo/own/index/1/a", MirrorRoute(kind="cargo-index", registry="own", project="a", filename="1/a")),
        (
            "/cargo/own/index/3/a/abc",
            MirrorRoute(kind="cargo-index", registry="own", project="abc", filename="3/a/abc"),
        ),
        (
            "/cargo/own/crates/a_b/1.0.0-rc.1+x/download",
            MirrorRoute(kind="cargo-file", registry="own", project="a_b", filename="1.0.0-rc.1+x"),
        ),
        (
            "/go/example.org/!a/b/v2/@v/list",
            MirrorRoute(kind="go-page", project="example.org/!a/b/v2", filename="@v/list"),
        ),
        ("/go/a.b/c/@v/v1.0.0.zip", MirrorRoute(kind="go-file", project="a.b/c", filename="@v/v1.0.0.zip")),
        (
            "/go/sumdb/s.org/tile/8/0/x001/234",
            MirrorRoute(kind="go-sums", project="s.org", filename="tile/8/0/x001/234"),
        ),
    ],
)
def test_paths_of_cargo_and_go(target: str, route: MirrorRoute) -> None:
    assert parse_route(target.encode()) == route


@pytest.mark.parametrize(
    "target",
    [
        "/cargo/own/api/v1/crates",
        "/cargo/own/crates/a/1.0.0/../../x/download",
        "/cargo//index/config.json",
        "/go/A/@v/list",
        "/go/a/@v/x/y.zip",
        "/go/a//b/@v/list",
        "/go/sumdb/s.org/lookup/x",
        "/go/a/@v/v1.0.0.exe",
    ],
)
def test_other_paths_of_cargo_and_go_are_refused(target: str) -> None:
    with pytest.raises(MirrorRefusal) as caught:
        parse_route(target.encode())
    assert caught.value.status in (400, 404)
