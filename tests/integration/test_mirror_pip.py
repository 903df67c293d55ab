"""pip through the mirror: merged indexes, credentials and trust kept outside, only files that an index names."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from test_mirror_support import (
    LOGIN,
    PASSWORD,
    URL_LOGIN,
    Answer,
    LocalRegistry,
    forwarded_mirror,
    registry,
    run,
    running,
    self_signed,
    sha256,
    user_config,
    wheel,
)
from tests.postgres import free_port

JSON = "application/vnd.pypi.simple.v1+json"
ABSENT = "/pypi/files/" + "0" * 24


def serve(upstream: LocalRegistry, project: str, *, as_json: bool = False) -> tuple[str, bytes]:
    """Put a wheel of `project` on the registry; return its name and content."""
    name, content, metadata = wheel(project)
    upstream.pages[f"/files/{name}"] = Answer(content, "application/zip")
    upstream.pages[f"/files/{name}.metadata"] = Answer(metadata)
    digest = {"sha256": sha256(content)}
    entry = {"filename": name, "url": f"../../files/{name}", "hashes": digest, "core-metadata": True, "size": 1}
    page = f'<a href="../../files/{name}#sha256={digest["sha256"]}" data-core-metadata="true">{name}</a>'
    path = f"/simple/{project}/"
    upstream.pages[path] = (
        Answer(json.dumps({"files": [entry]}).encode(), JSON) if as_json else Answer(page.encode())
    )
    return name, content


def hrefs(page: str) -> list[str]:
    """Return the targets of a page's links."""
    return re.findall(r'href="([^"]+)"', page)


async def test_indexes_and_find_links_are_merged(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/alpha-3.0.tar.gz").write_bytes(b"three")
    (tmp_path / "wheels/beta-3.0.tar.gz").write_bytes(b"other project")
    index = tmp_path / "index/alpha"
    index.mkdir(parents=True)
    (tmp_path / "store").mkdir()
    (tmp_path / "store/alpha-2.0.tar.gz").write_bytes(b"two")
    (index / "index.html").write_text('<a href="../../store/alpha-2.0.tar.gz">alpha</a>')
    (tmp_path / "index/delta").mkdir()
    (tmp_path / "index/delta/delta-1.0.tar.gz").write_bytes(b"no page here")
    with registry() as one, registry() as two:
        serve(one, "alpha")
        two.pages["/links"] = Answer(b'<a href="/d/alpha-4.0.zip">a</a><a href="/d/gamma-4.0.zip">g</a>')
        two.pages["/d/alpha-4.0.zip"] = Answer(b"four")
        config = user_config(
            tmp_path,
            PIP_INDEX_URL=f"{one.url}/simple",
            PIP_EXTRA_INDEX_URL=f"{two.url}/simple {(tmp_path / 'index').as_uri()} file:///no/such/index",
            PIP_FIND_LINKS=f"{tmp_path / 'wheels'} {two.url}/links /no/such/directory",
        )
        async with running(config) as reached:
            page = await reached.client.get("/pypi/simple/Alpha/")
            assert page.status_code == 200
            links = {href.partition("#")[0].rpartition("/")[2]: href for href in hrefs(page.text)}
            names = ["alpha-1.0-py3-none-any.whl", "alpha-2.0.tar.gz", "alpha-3.0.tar.gz", "alpha-4.0.zip"]
            assert sorted(links) == names
            bodies = [(await reached.client.get(links[name])).content for name in names]
            assert bodies == [wheel("alpha")[1], b"two", b"three", b"four"]
            (href,) = hrefs((await reached.client.get("/pypi/simple/delta")).text)
            assert (await reached.client.get(href)).content == b"no page here"
            assert (await reached.client.get("/pypi/simple/nothing/")).status_code == 404
    record = reached.log[0]
    assert (record.kind, record.project, record.status) == ("pypi-index", "Alpha", 200)
    assert set(record.hosts) == {one.host, two.host, "file:"}
    assert record.bytes_sent == len(page.content)


@pytest.mark.parametrize("as_json", [False, True])
async def test_links_keep_hash_and_metadata(tmp_path: Path, as_json: bool) -> None:
    with registry() as upstream:
        name, content = serve(upstream, "alpha", as_json=as_json)
        async with running(user_config(tmp_path, PIP_INDEX_URL=f"{upstream.url}/simple/")) as reached:
            page = await reached.client.get("/pypi/simple/alpha/", headers={"accept": JSON})
            assert page.headers["content-type"] == JSON
            (entry,) = page.json()["files"]
            assert (entry["hashes"], entry["core-metadata"]) == ({"sha256": sha256(content)}, True)
            assert (await reached.client.get(entry["url"] + ".metadata")).content == wheel("alpha")[2]
            (href,) = hrefs((await reached.client.get("/pypi/simple/alpha/")).text)
            assert href == f"{entry['url']}#sha256={sha256(content)}"
            head = await reached.client.head(entry["url"])
            assert (head.headers["content-length"], head.content) == (str(len(content)), b"")
    assert [path for path, _ in upstream.seen].count("/simple/alpha/") == 1
    assert name in reached.log[-1].project


async def test_no_credential_and_no_authority_comes_through(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    with registry(certificate=certificate, login=LOGIN) as upstream, registry() as elsewhere:
        name, content = serve(upstream, "alpha")
        upstream.pages[f"/files/{name}"] = Answer(status=302, headers={"Location": f"{elsewhere.url}/{name}"})
        elsewhere.pages[f"/{name}"] = Answer(content)
        config = user_config(
            tmp_path,
            PIP_INDEX_URL=f"https://{URL_LOGIN}@{upstream.host}/simple",
            PIP_FIND_LINKS=f"http://{URL_LOGIN}@{elsewhere.host}/links",
            PIP_CERT=str(certificate),
        )
        async with running(config) as reached:
            page = await reached.client.get("/pypi/simple/alpha/")
            assert page.status_code == 200
            got = await reached.client.get(hrefs(page.text)[0])
            assert got.content == content
            missing = await reached.client.get("/pypi/simple/beta/")
            shown = "\n".join(
                [page.text, *(repr(answer.headers) for answer in (page, got, missing)), missing.text]
            )
    shown += repr(reached.log) + repr(reached.mirror.environment())
    assert PASSWORD not in repr(config)
    for secret in (PASSWORD, URL_LOGIN, LOGIN.removeprefix("Basic "), str(certificate), "s3cret-header"):
        assert secret not in shown
    assert reached.log[1].hosts == (upstream.host, elsewhere.host)
    assert all(headers["authorization"] == LOGIN for _, headers in upstream.seen)
    # The user has a login for the other host too, but a redirect from https does not send it in the clear.
    assert [headers.get("authorization") for _, headers in elsewhere.seen] == [LOGIN, None]


async def test_the_users_proxy_and_client_certificate_are_used(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    with registry() as proxy, registry(certificate=certificate, ask_client=True) as upstream:
        proxy.pages["http://index.invalid/simple/alpha/"] = Answer(b'<a href="alpha-1.0.zip">alpha</a>')
        config = user_config(
            tmp_path, PIP_INDEX_URL="http://index.invalid/simple", PIP_PROXY=f"http://{URL_LOGIN}@{proxy.host}"
        )
        async with running(config) as reached:
            assert (await reached.client.get("/pypi/simple/alpha/")).status_code == 200
            assert PASSWORD not in repr(reached.log)
        assert proxy.seen[0][1]["proxy-authorization"] == LOGIN
        serve(upstream, "alpha")
        trusted = {"PIP_INDEX_URL": f"{upstream.url}/simple", "PIP_CERT": str(certificate)}
        async with running(user_config(tmp_path, **trusted)) as reached:
            assert (await reached.client.get("/pypi/simple/alpha/")).status_code == 502
        async with running(user_config(tmp_path, **trusted, PIP_CLIENT_CERT=str(certificate))) as reached:
            assert (await reached.client.get("/pypi/simple/alpha/")).status_code == 200


async def test_an_untrusted_certificate_and_a_wrong_login_are_plain_502s(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    with registry(certificate=certificate, login=LOGIN) as upstream:
        serve(upstream, "alpha")
        url = f"https://someone:wrong@{upstream.host}/simple"
        async with running(user_config(tmp_path, PIP_INDEX_URL=url)) as reached:
            answer = await reached.client.get("/pypi/simple/alpha/")
            assert (answer.status_code, "certificate is not trusted" in answer.text) == (502, True)
        trusted = user_config(tmp_path, PIP_INDEX_URL=url, PIP_TRUSTED_HOST=upstream.host)
        async with running(trusted) as reached:
            answer = await reached.client.get("/pypi/simple/alpha/")
            assert (answer.status_code, "answered 401" in answer.text) == (502, True)
            assert "wrong" not in answer.text + repr(reached.log)
        async with running(user_config(tmp_path, PIP_INDEX_URL=url, PIP_CERT="/no/such/ca.pem")) as reached:
            answer = await reached.client.get("/pypi/simple/alpha/")
            assert (answer.status_code, "cannot be read" in answer.text) == (502, True)
            assert "/no/such" not in answer.text


async def test_a_failing_index_is_not_left_out_in_silence(tmp_path: Path) -> None:
    with registry() as upstream, registry() as broken:
        serve(upstream, "alpha")
        broken.pages["/simple/alpha/"] = Answer(b"boom", status=500)
        config = user_config(
            tmp_path, PIP_INDEX_URL=f"{upstream.url}/simple", PIP_EXTRA_INDEX_URL=f"{broken.url}/simple"
        )
        async with running(config) as reached:
            answer = await reached.client.get("/pypi/simple/alpha/")
            assert (answer.status_code, f"'{broken.host}' answered 500" in answer.reason_phrase) == (502, True)
            broken.pages["/simple/alpha/"] = Answer(status=403)
            assert (await reached.client.get("/pypi/simple/alpha/")).status_code == 200


async def test_an_unreachable_or_invalid_upstream_is_a_502(tmp_path: Path) -> None:
    config = user_config(tmp_path, PIP_INDEX_URL=f"http://127.0.0.1:{free_port()}/simple")
    async with running(config) as reached:
        answer = await reached.client.get("/pypi/simple/alpha/")
        assert (answer.status_code, "no connection" in answer.text) == (502, True)
    with registry() as upstream:
        upstream.pages |= {
            "/simple/a/": Answer(b"not json", JSON),
            "/simple/b/": Answer(status=302, headers={"Location": "/simple/b/"}),
            "/simple/c/": Answer(status=302, headers={"Location": "file:///etc/passwd"}),
            "/simple/d/": Answer(b"<a href='d-1.zip'>", cut=10),
            "/simple/e/": Answer(b"\xff" * 10, JSON),
        }
        async with running(user_config(tmp_path, PIP_INDEX_URL=f"{upstream.url}/simple")) as reached:
            for project in "abcde":
                answer = await reached.client.get(f"/pypi/simple/{project}/")
                assert answer.status_code == 502, project
                assert "/etc" not in answer.text


async def test_only_files_that_a_page_named_are_fetched(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/alpha-1.0.tar.gz").write_bytes(b"one")
    (tmp_path / "secret.tar.gz").write_bytes(b"secret")
    (tmp_path / "wheels/alpha-2.0.tar.gz").mkdir()
    with registry() as upstream:
        upstream.pages["/secret.whl"] = Answer(b"secret")
        config = user_config(
            tmp_path, PIP_INDEX_URL=f"{upstream.url}/simple", PIP_FIND_LINKS=str(tmp_path / "wheels")
        )
        async with running(config) as reached:
            (href,) = hrefs((await reached.client.get("/pypi/simple/alpha/")).text)
            place = href.rpartition("/")[0]
            for target in (
                f"{place}/secret.tar.gz",
                f"{place}/alpha-1.0.tar.gz.metadata",
                f"{place}/..%2f..%2fsecret.tar.gz",
                f"{place}/../secret.tar.gz",
                f"{ABSENT}/secret.whl",
                "/pypi/files/../../etc/passwd",
                f"/pypi/simple/..%2f{tmp_path.name}/",
            ):
                answer = await reached.raw(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                assert answer.split()[1] in (b"400", b"404"), target
                assert b"secret\n" not in answer
            for target in (f"{upstream.url}/secret.whl", f"//{upstream.host}/secret.whl"):
                answer = await reached.raw(f"GET {target} HTTP/1.1\r\nHost: {upstream.host}\r\n\r\n".encode())
                assert answer.startswith(b"HTTP/1.1 400 ")
            (tmp_path / "wheels/alpha-1.0.tar.gz").unlink()
            assert (await reached.client.get(href)).status_code == 404
    assert [path for path, _ in upstream.seen] == ["/simple/alpha/"]


async def test_a_body_that_ends_early_never_looks_whole(tmp_path: Path) -> None:
    with registry() as upstream:
        name, _ = serve(upstream, "alpha")
        upstream.pages[f"/files/{name}"] = Answer(b"x" * 1000, cut=1000)
        async with running(user_config(tmp_path, PIP_INDEX_URL=f"{upstream.url}/simple")) as reached:
            (href,) = hrefs((await reached.client.get("/pypi/simple/alpha/")).text)
            answer = await reached.raw(f"GET {href.partition('#')[0]} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-length: 2000" in head
    assert len(body) <= 1000
    assert "broke" in reached.log[-1].problem


@pytest.mark.parametrize("as_json", [False, True])
async def test_pip_downloads_through_forwarder_and_mirror(tmp_path: Path, as_json: bool) -> None:
    port = free_port()
    certificate = self_signed(tmp_path)
    with registry(certificate=certificate, login=LOGIN) as upstream:
        name, content = serve(upstream, "alpha", as_json=as_json)
        config = user_config(
            tmp_path, PIP_INDEX_URL=f"https://{URL_LOGIN}@{upstream.host}/simple", PIP_CERT=str(certificate)
        )
        async with forwarded_mirror(config, port) as reached:
            pip = [sys.executable, "-m", "pip", "download", "--no-cache-dir", "--dest", str(tmp_path)]
            code, output = await run([*pip, "alpha"], cwd=tmp_path, environment=reached.mirror.environment())
            assert code == 0, output
            missing, said = await run([*pip, "beta"], cwd=tmp_path, environment=reached.mirror.environment())
    assert (tmp_path / name).read_bytes() == content
    assert missing != 0
    assert "No matching distribution" in said
    assert PASSWORD not in output + said
