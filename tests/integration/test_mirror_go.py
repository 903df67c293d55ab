"""go through the mirror: the user's GOPROXY in its order, private modules kept from every proxy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mirror_packages import ESCAPED, MODULE, go_mod, serve_module
from test_mirror_support import (
    LOGIN,
    PASSWORD,
    URL_LOGIN,
    USER,
    Answer,
    forwarded_mirror,
    registry,
    run,
    running,
    self_signed,
    user_config,
)
from tests.postgres import free_port

ZIP = f"/go/{ESCAPED}/@v/v1.0.0.zip"
LIST = f"/go/{ESCAPED}/@v/list"
needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")


async def test_every_page_of_the_protocol(tmp_path: Path) -> None:
    with registry() as upstream:
        content = serve_module(upstream, below="/m")
        async with running(user_config(tmp_path, GOPROXY=f"{upstream.url}/m/")) as reached:
            for name in ("@latest", "@v/list", "@v/v1.0.0.info", "@v/v1.0.0.mod"):
                answer = await reached.client.get(f"/go/{ESCAPED}/{name}")
                assert answer.content == upstream.pages[f"/m/{ESCAPED}/{name}"].body
            assert (await reached.client.get(ZIP)).content == content
            for absent in ("@v/v9.0.0.info", "@v/v9.0.0.zip"):
                assert (await reached.client.get(f"/go/{ESCAPED}/{absent}")).status_code == 404
            # Unescaped: this protocol escapes upper case.
            assert (await reached.client.get(f"/go/{MODULE}/@v/list")).status_code == 404
    assert reached.log[0].kind == "go-page"
    assert reached.log[4].kind == "go-file"


@pytest.mark.parametrize(
    ("first", "separator", "status"),
    [(404, ",", 200), (410, ",", 200), (500, ",", 502), (403, ",", 502), (500, "|", 200), (404, "|", 200)],
)
async def test_the_next_proxy_is_tried_as_goproxy_specifies(
    tmp_path: Path, first: int, separator: str, status: int
) -> None:
    with registry() as one, registry() as two:
        one.pages |= {path.replace("/go", "", 1): Answer(status=first) for path in (LIST, ZIP)}
        serve_module(two)
        async with running(user_config(tmp_path, GOPROXY=f"{one.url}{separator}{two.url},off")) as reached:
            assert (await reached.client.get(LIST)).status_code == status
            assert (await reached.client.get(ZIP)).status_code == status
    assert bool(two.seen) == (status == 200)


@pytest.mark.parametrize(
    ("last", "told"), [("direct", "no version control"), ("off", "no further source"), ("", "")]
)
async def test_direct_and_off_are_reported_as_problems(tmp_path: Path, last: str, told: str) -> None:
    with registry() as upstream:
        async with running(user_config(tmp_path, GOPROXY=f"{upstream.url},{last}")) as reached:
            answer = await reached.client.get(LIST)
    assert (answer.status_code, told in answer.text) == (404, True), answer.text
    assert told in reached.log[0].problem


@pytest.mark.parametrize(
    ("variables", "asked"),
    [
        ({"GOPRIVATE": "example.org"}, False),
        ({"GOPRIVATE": "other.org,*.org/Gree?"}, False),
        ({"GONOPROXY": "example.org/*"}, False),
        ({"GOPRIVATE": "example.org", "GONOPROXY": "none"}, True),
        ({"GOPRIVATE": "example.org/Greet/v2,ample.org"}, True),
    ],
)
async def test_no_proxy_hears_of_a_private_module(tmp_path: Path, variables: dict[str, str], asked: bool) -> None:
    with registry() as upstream:
        serve_module(upstream)
        upstream.pages["/sumdb/sum.golang.org/supported"] = Answer()
        async with running(user_config(tmp_path, GOPROXY=upstream.url, **variables)) as reached:
            for path in (LIST, ZIP, f"/go/sumdb/sum.golang.org/lookup/{ESCAPED}@v1.0.0"):
                answer = await reached.client.get(path)
                assert asked or (answer.status_code, "is private" in answer.text) == (404, True)
    assert bool(upstream.seen) == asked


async def test_logins_and_certificates_stay_outside_the_sandbox(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    (tmp_path / ".netrc").write_text(f"machine 127.0.0.1 login {USER} password {PASSWORD.replace(' ', '')}\n")
    (tmp_path / "env").write_text("# go env -w\nGONOSUMDB=example.org\nGOFLAGS=-mod=mod -modfile=/home/x\n")
    with registry(certificate=certificate, login=LOGIN) as upstream, registry() as plain:
        content = serve_module(upstream)
        upstream.pages[f"/{ESCAPED}/@v/v1.0.0.zip"] = Answer(
            status=302, headers={"Location": f"{plain.url}/f?s3cret"}
        )
        plain.pages["/f?s3cret"] = Answer(content)
        serve_module(plain, escaped="example.org/plain", path="example.org/plain")
        config = user_config(
            tmp_path,
            GOPROXY=f"{plain.url}|https://{URL_LOGIN}@{upstream.host}",
            GOENV=str(tmp_path / "env"),
            SSL_CERT_FILE=str(certificate),
        )
        async with running(config) as reached:
            assert (await reached.client.get("/go/example.org/plain/@v/list")).status_code == 200
            page = await reached.client.get(LIST)
            got = await reached.client.get(ZIP)
            assert got.content == content
            environment = reached.mirror.environment()
            shown = repr([page.text, page.headers, got.headers, reached.log, environment, config])
    assert environment["GONOSUMDB"] == "example.org"
    assert environment["GOFLAGS"] == "-mod=mod -modcacherw"
    for secret in (PASSWORD, PASSWORD.replace(" ", ""), LOGIN.removeprefix("Basic "), URL_LOGIN, "s3cret"):
        assert secret not in shown
    # No login goes over plain http (as with the go command itself), nor after a redirect.
    assert all("authorization" not in headers for _, headers in plain.seen)


async def test_the_checksum_database_is_the_users_and_no_other(tmp_path: Path) -> None:
    with registry() as proxy, registry() as alone:
        lookup = f"lookup/{ESCAPED}@v1.0.0"
        alone.pages[f"/{lookup}"] = Answer(b"alone")
        config = user_config(tmp_path, GOPROXY=proxy.url, GOSUMDB=f"sums.example+1+key {alone.url}")
        async with running(config) as reached:
            assert reached.mirror.environment()["GOSUMDB"] == "sums.example+1+key"
            assert (await reached.client.get("/go/sumdb/sums.example/supported")).status_code == 200
            assert (await reached.client.get(f"/go/sumdb/sums.example/{lookup}")).text == "alone"
            assert (await reached.client.get("/go/sumdb/sum.golang.org/supported")).status_code == 404
        proxy.pages["/sumdb/sums.example/supported"] = Answer()
        proxy.pages[f"/sumdb/sums.example/{lookup}"] = Answer(b"behind")
        async with running(config) as reached:
            assert (await reached.client.get(f"/go/sumdb/sums.example/{lookup}")).text == "behind"
    async with running(user_config(tmp_path, GOSUMDB="off")) as reached:
        assert (await reached.client.get("/go/sumdb/sum.golang.org/supported")).status_code == 404


async def test_a_proxy_of_files(tmp_path: Path) -> None:
    place = tmp_path / "modules" / ESCAPED / "@v"
    place.mkdir(parents=True)
    (place / "list").write_text("v1.0.0\n")
    (place / "v1.0.0.zip").write_bytes(b"zip")
    (place / "v1.0.0.mod").write_text(go_mod())
    (tmp_path / "modules/secret.mod").write_text("secret")
    async with running(user_config(tmp_path, GOPROXY=(tmp_path / "modules").as_uri())) as reached:
        assert (await reached.client.get(LIST)).text == "v1.0.0\n"
        assert (await reached.client.get(ZIP)).content == b"zip"
        assert (await reached.client.get(f"/go/{ESCAPED}/@v/v2.0.0.mod")).status_code == 404
        assert (await reached.client.get(f"/go/{ESCAPED}/@v/../../../secret.mod")).status_code in (400, 404)


@needs_go
async def test_go_downloads_lists_and_builds(tmp_path: Path) -> None:
    port = free_port()
    project = tmp_path / "project"
    project.mkdir()
    (project / "go.mod").write_text(f"module example.org/p\n\ngo 1.18\n\nrequire {MODULE} v1.0.0\n")
    (project / "p.go").write_text(f'package p\n\nimport "{MODULE}"\n\nvar P = greet.Greet()\n')
    with registry() as upstream:
        serve_module(upstream)
        config = user_config(tmp_path, GOPROXY=f"{upstream.url},direct", GOSUMDB="off")
        async with forwarded_mirror(config, port) as reached:
            variables = {"GOTOOLCHAIN": "local", **reached.mirror.environment()}
            for command in ("mod download all", "build -mod=mod ./...", f"list -m -versions {MODULE}"):
                code, said = await run(["go", *command.split()], cwd=project, environment=variables)
                assert code == 0, said
            assert "v1.0.0" in said
            code, said = await run(["go", "get", "example.org/other"], cwd=project, environment=variables)
            assert (code != 0, "no version control" in said) == (True, True), said
    assert (project / "go.sum").read_text().startswith(f"{MODULE} v1.0.0 h1:")
