"""The user's cargo and go configuration, and the paths that their clients ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from chargehand.network.contract import MirrorRefusal
from chargehand.network.mirror.cargo import CRATES_INDEX, read_cargo_config
from chargehand.network.mirror.go import read_go_config
from chargehand.network.mirror.maven import MavenConfig, read_maven_config
from chargehand.network.mirror.settings import basic_auth
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


SETTINGS = """<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0">
  <mirrors>
    <mirror><id>none</id><mirrorOf>*,!central</mirrorOf><url>https://none.example/</url></mirror>
    <mirror><id>near</id><mirrorOf>central</mirrorOf><url>https://near.example/all/</url></mirror>
  </mirrors>
  <servers>
    <server><id>near</id><username>ann</username><password>${env.NEAR}</password></server>
    <server><id>sealed</id><username>ann</username><password>{jSMOWnoPFgsHVpMvz5VrIt5kRbzGpI8u+9EF1iFQyJQ=}</password></server>
  </servers>
  <proxies><proxy><host>proxy.example</host><port>3128</port><nonProxyHosts>*.near.example|b</nonProxyHosts></proxy></proxies>
  <profiles>
    <profile><id>own</id><repositories>
      <repository><id>inner</id><url>https://inner.example/repo</url></repository>
    </repositories></profile>
    <profile><id>other</id><repositories><repository><id>x</id><url>https://x.example</url></repository></repositories></profile>
  </profiles>
  <activeProfiles><activeProfile>own</activeProfile></activeProfiles>
</settings>
"""


def read_settings(home: Path, text: str, **environ: str) -> MavenConfig:
    (home / ".m2").mkdir(exist_ok=True)
    (home / ".m2/settings.xml").write_text(text)
    return read_maven_config({"HOME": str(home), **environ})


def test_maven_goes_where_its_settings_say(tmp_path: Path) -> None:
    config = read_settings(tmp_path, SETTINGS, NEAR="s3cret")
    assert config.urls() == ("https://none.example", "https://near.example/all")
    assert config.access.logins.header("https://near.example/all/a/b.jar") == basic_auth("ann", "s3cret")
    assert config.access.logins.header("https://near.example/other") == ""
    assert config.access.proxies.proxy("https://x.example/") == "http://proxy.example:3128"
    assert config.access.proxies.proxy("https://a.near.example/") is None
    assert "s3cret" not in repr(config)
    alone = read_settings(tmp_path, SETTINGS.replace("*,!central", "nothing"), NEAR="x")
    assert alone.urls() == ("https://inner.example/repo", "https://near.example/all")
    sealed = read_settings(tmp_path, SETTINGS.replace("<id>near</id>", "<id>sealed</id>", 1))
    assert [each.problem.split(",")[0] for each in sealed.repositories] == ["", "its password is encrypted"]
    assert sealed.urls() == ("https://none.example",)


@pytest.mark.parametrize(
    "text", ["", "<settings>", "<!DOCTYPE s [<!ENTITY e 'x'>]><settings>&e;</settings>", "\x00", "<a/>"]
)
def test_broken_settings_of_maven_hold_nobody_up(tmp_path: Path, text: str) -> None:
    assert read_settings(tmp_path, text).urls() == ("https://repo.maven.apache.org/maven2",)


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
            "/maven/org/junit/a-b_c/1.0.0/a-b_c-1.0.0.jar.sha1",
            MirrorRoute(kind="maven-file", project="org/junit/a-b_c/1.0.0", filename="a-b_c-1.0.0.jar.sha1"),
        ),
        (
            "/go/sumdb/s.org/tile/8/0/x001/234",
            MirrorRoute(kind="go-sums", project="s.org", filename="tile/8/0/x001/234"),
        ),
    ],
)
def test_paths_of_cargo_go_and_maven(target: str, route: MirrorRoute) -> None:
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
        "/maven/a.jar",
        "/maven/org/junit/../x/a.jar",
        "/maven/org//junit/a.jar",
        "/maven/org/junit/.hidden",
        "/maven/org/junit/",
    ],
)
def test_other_paths_of_cargo_go_and_maven_are_refused(target: str) -> None:
    with pytest.raises(MirrorRefusal) as caught:
        parse_route(target.encode())
    assert caught.value.status in (400, 404)
