"""The user's pip, npm, cargo, go and maven configuration: its precedence, and that no secret is shown."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from chargehand.core.errors import ConfigError
from chargehand.network.contract import MirrorRefusal
from chargehand.network.mirror.cargo import CRATES_INDEX, read_cargo_config
from chargehand.network.mirror.go import read_go_config
from chargehand.network.mirror.maven import MavenConfig, read_maven_config
from chargehand.network.mirror.npm import parse_npmrc
from chargehand.network.mirror.pypi import parse_config_list
from chargehand.network.mirror.settings import NPM, PYPI, Logins, Proxies, basic_auth, host_for_log
from chargehand.network.registries import MirrorRoute, RegistryConfig, parse_route

SECRET = "s3cret"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home of a user with no programs on PATH and no configuration."""
    (tmp_path / "etc").mkdir()
    return tmp_path


def environ(home: Path, **variables: str) -> dict[str, str]:
    """Return an environment that sees `home` but not this machine's configuration."""
    base = {"HOME": str(home), "PATH": "", "XDG_CONFIG_DIRS": str(home / "etc"), "PREFIX": str(home)}
    return {**base, "PIP_CONFIG_FILE": "/dev/null", **variables}


def with_pip_conf(home: Path, text: str, **variables: str) -> dict[str, str]:
    """Return an environment whose pip reads `text` as its last configuration file."""
    (home / "pip.conf").write_text(text)
    return environ(home, **variables, PIP_CONFIG_FILE=str(home / "pip.conf"))


def fake_pip(home: Path, output: str, *, code: int = 0) -> str:
    """Write a `pip` that prints `output`; return its PATH."""
    program = home / "bin/pip"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit {code}\n")
    program.chmod(0o755)
    return f"{program.parent}:/usr/bin:/bin"


def test_without_configuration_the_public_registries(home: Path) -> None:
    config = RegistryConfig.from_user(environ(home))
    assert config.pip.indexes == (PYPI,)
    assert config.npm.registry == NPM
    assert config.pip.access.verify
    assert config.npm.access.verify


def test_pip_lists_its_configuration_and_the_environment_wins(home: Path) -> None:
    path = fake_pip(
        home,
        "global.index-url='https://one.invalid/simple'\n"
        "global.extra-index-url='https://two.invalid/simple\\nfile:///srv/index'\n"
        "install.find-links='https://three.invalid/links /srv/wheels'\n"
        "download.index-url='https://other.invalid/simple'\n:env:.timeout='90'",
    )
    config = RegistryConfig.from_user(environ(home, PATH=path)).pip
    assert config.indexes == ("https://one.invalid/simple", "https://two.invalid/simple", "file:///srv/index")
    assert config.find_links == ("https://three.invalid/links", "file:///srv/wheels")
    assert config.access.timeout == 90
    config = RegistryConfig.from_user(environ(home, PATH=path, PIP_INDEX_URL="https://env.invalid/s")).pip
    assert config.indexes[0] == "https://env.invalid/s"


def test_pip_configuration_files_are_read_if_pip_fails(home: Path) -> None:
    path = fake_pip(home, "global.index-url='https://wrong.invalid/'", code=1)
    text = "[global]\nindex_url = https://file.invalid/simple\n[install]\nfind-links =\n  ~/wheels\n  https://l.invalid/x\n"
    config = RegistryConfig.from_user(with_pip_conf(home, text, PATH=path)).pip
    # /usr/bin is on PATH for the script's sake; a pip there may answer instead, from the same file.
    assert config.indexes[0] == "https://file.invalid/simple"
    assert config.find_links == ((home / "wheels").as_uri(), "https://l.invalid/x")


def test_no_index_leaves_find_links_alone(home: Path) -> None:
    config = RegistryConfig.from_user(environ(home, PIP_NO_INDEX="1", PIP_FIND_LINKS="/srv/w")).pip
    assert (config.indexes, config.find_links) == ((), ("file:///srv/w",))


def test_invalid_lines_of_pip_config_list_are_skipped() -> None:
    text = "warning: something\nglobal.a='x=y'\nglobal.b=not quoted\n:env:.default-timeout='7'\n"
    assert parse_config_list(text) == {"global": {"a": "x=y"}, ":env:": {"timeout": "7"}}


def test_logins_of_pip_come_from_urls_and_netrc(home: Path) -> None:
    (home / ".netrc").write_text(
        f"machine files.invalid login n password {SECRET}\ndefault login d password {SECRET}\n"
    )
    config = RegistryConfig.from_user(
        environ(
            home,
            PIP_INDEX_URL=f"https://us%40er:{SECRET}@one.invalid/simple",
            PIP_EXTRA_INDEX_URL="https://two.invalid/",
        )
    ).pip
    header = config.access.logins.header
    assert header("https://one.invalid/simple/six/") == basic_auth("us@er", SECRET)
    assert header("https://one.invalid/packages/six.whl") == basic_auth("us@er", SECRET)
    assert header("https://one.invalid:8443/simple/six/") == ""
    assert header("https://files.invalid/six.whl") == basic_auth("n", SECRET)
    assert header("https://two.invalid/six/") == ""
    assert config.indexes == ("https://one.invalid/simple", "https://two.invalid/")


def test_trust_of_pip(home: Path) -> None:
    config = RegistryConfig.from_user(
        environ(
            home, PIP_CERT="/srv/ca.pem", PIP_CLIENT_CERT="~/me.pem", PIP_TRUSTED_HOST="a.invalid b.invalid:8443"
        )
    ).pip.access
    assert config.roots == (Path("/srv/ca.pem"),)
    assert config.client_certificate == home / "me.pem"
    assert not config.verifies("https://a.invalid/x")
    assert not config.verifies("https://b.invalid:8443/x")
    assert config.verifies("https://b.invalid/x")
    bundles = environ(home, REQUESTS_CA_BUNDLE="/srv/r.pem", SSL_CERT_FILE="/srv/s.pem")
    access = RegistryConfig.from_user(bundles).pip.access
    assert (access.roots, access.extra_roots) == ((Path("/srv/r.pem"),), (Path("/srv/s.pem"),))


@pytest.mark.parametrize("url", [f"ftp://u:{SECRET}@x.invalid/", f"https://u:{SECRET}@/", f"http://u:{SECRET}@[/"])
def test_an_unusable_index_is_named_without_its_login(home: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="index-url") as caught:
        RegistryConfig.from_user(environ(home, PIP_INDEX_URL=url))
    assert SECRET not in caught.value.message


def test_npm_files_and_environment_in_order(home: Path) -> None:
    (home / "etc/npmrc").write_text(
        "registry=https://global.invalid\n@a:registry=https://a.invalid/npm\nproxy=p.invalid:1\n"
    )
    config = RegistryConfig.from_user(environ(home)).npm
    assert config.registry == "https://global.invalid/"
    (home / ".npmrc").write_text(
        "; mine\nregistry = https://user.invalid/r ; why\n@b:registry=https://b.invalid\n"
    )
    config = RegistryConfig.from_user(environ(home)).npm
    assert config.registry_of("x") == "https://user.invalid/r/"
    assert config.registry_of("@a/x") == "https://a.invalid/npm/"
    assert config.registry_of("@b/x") == "https://b.invalid/"
    assert config.registry_of("@c/x") == "https://user.invalid/r/"
    assert config.access.proxies.proxy("https://user.invalid/") == "http://p.invalid:1"
    config = RegistryConfig.from_user(environ(home, NPM_CONFIG_REGISTRY="https://env.invalid/")).npm
    assert config.registry == "https://env.invalid/"


def test_the_npmrc_of_a_repository_is_ignored(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = home / "repository"
    repository.mkdir()
    (repository / ".npmrc").write_text("registry=https://evil.invalid/\n")
    monkeypatch.chdir(repository)
    assert RegistryConfig.from_user(environ(home)).npm.registry == NPM


def test_logins_of_npm(home: Path) -> None:
    password = base64.b64encode(SECRET.encode()).decode()
    (home / ".npmrc").write_text(
        "registry=https://one.invalid/team/\n@b:registry=http://b.invalid:4873\n"
        "//one.invalid/team/:_authToken=${TOKEN}\n"
        f"//b.invalid:4873/:username=me\n//b.invalid:4873/:_password={password}\n"
        f"//c.invalid/x/:_auth={basic_auth('u', SECRET).removeprefix('Basic ')}\n"
    )
    header = RegistryConfig.from_user(environ(home, TOKEN=SECRET)).npm.access.logins.header
    assert header("https://one.invalid/team/pkg") == f"Bearer {SECRET}"
    assert header("https://one.invalid/files/pkg.tgz") == f"Bearer {SECRET}"
    assert header("http://b.invalid:4873/pkg") == basic_auth("me", SECRET)
    assert header("https://c.invalid/x/y/z.tgz") == basic_auth("u", SECRET)
    assert header("https://c.invalid/xy/z.tgz") == ""
    assert header("https://d.invalid/") == ""


def test_trust_of_npm(home: Path) -> None:
    (home / ".npmrc").write_text(
        "cafile=~/ca.pem\nstrict-ssl=false\n"
        'ca[]="-----BEGIN CERTIFICATE-----\\nQQ==\\n-----END CERTIFICATE-----"\n'
    )
    access = RegistryConfig.from_user(environ(home, NODE_EXTRA_CA_CERTS="/srv/x.pem")).npm.access
    assert (access.roots, access.extra_roots) == ((home / "ca.pem",), (Path("/srv/x.pem"),))
    assert access.root_text.splitlines()[1] == "QQ=="
    assert not access.verifies("https://any.invalid/")


def test_npmrc_lines_as_npm_reads_them() -> None:
    text = "a = \"x;y\"\nb=1#2\nc=${IN}-${OUT}-${OUT?}\nd=\\${IN}\ne\n# f=1\n[section]\ng[]=1\ng[]=2\nh='q'\n"
    assert parse_npmrc(text, {"IN": "in"}) == {
        "a": "x;y",
        "b": "1",
        "c": "in-${OUT}-",
        "d": "${IN}",
        "e": "true",
        "g": "1\n2",
        "h": "q",
    }


def test_no_secret_in_the_repr(home: Path) -> None:
    (home / ".npmrc").write_text(f"//one.invalid/:_authToken={SECRET}\nregistry=https://u:{SECRET}@one.invalid/\n")
    config = RegistryConfig.from_user(
        environ(home, PIP_INDEX_URL=f"https://u:{SECRET}@one.invalid/", PIP_PROXY=f"http://u:{SECRET}@p.invalid:1")
    )
    assert SECRET not in repr(config)
    assert config.pip.access.proxies.proxy("https://x.invalid/") == f"http://u:{SECRET}@p.invalid:1"


def test_a_login_matches_whole_path_segments_only() -> None:
    logins = Logins(by_prefix={"//h.invalid:443/a/": "inner", "//h.invalid:443/": "outer"})
    assert logins.header("https://h.invalid/a/b/c") == "inner"
    assert logins.header("https://h.invalid/a") == "inner"
    assert logins.header("https://h.invalid/a-evil/b") == "outer"
    assert logins.header("http://h.invalid/a/b") == ""
    assert logins.header("https://h.invalid.evil.invalid/a/b") == ""


@pytest.mark.parametrize(
    ("exempt", "url", "direct"),
    [
        ("*", "https://x.invalid/", True),
        (".corp.invalid", "https://a.corp.invalid/", True),
        ("corp.invalid", "https://evilcorp.invalid/", False),
        ("corp.invalid:8443", "https://corp.invalid/", False),
        ("corp.invalid:443", "https://corp.invalid/", True),
        ("192.0.2.0/24", "http://192.0.2.9/", True),
        ("192.0.2.0/24", "http://host.invalid/", False),
        ("::1", "http://[::1]:8080/", True),
        ("0:0:0:0:0:0:0:1", "http://[::1]:8080/", True),
        ("[::1]:8080", "http://[::1]:8080/", True),
        ("[::1]:8081", "http://[::1]:8080/", False),
        ("::1", "http://[2001:db8::1]/", False),
        ("2001:db8::/32", "http://[2001:db8::1]/", True),
        ("::1", "http://host.invalid/", False),
        ("", "http://host.invalid/", False),
    ],
)
def test_hosts_reached_without_the_proxy(exempt: str, url: str, direct: bool) -> None:
    proxies = Proxies(by_scheme={"http": "http://p.invalid", "https": "http://p.invalid"}, exempt=(exempt,))
    assert (proxies.proxy(url) is None) == direct


def test_the_logged_host_contains_no_credentials_path_or_query() -> None:
    assert host_for_log(f"https://u:{SECRET}@h.invalid:8443/{SECRET}?{SECRET}") == "h.invalid:8443"
    assert host_for_log("file:///home/me/x") == "file:"
    assert host_for_log("http://[") == "?"


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
def test_an_invalid_cargo_configuration_is_ignored(tmp_path: Path, text: str) -> None:
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


def test_maven_mirrors_logins_and_proxies_come_from_its_settings(tmp_path: Path) -> None:
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
def test_invalid_maven_settings_are_ignored(tmp_path: Path, text: str) -> None:
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
