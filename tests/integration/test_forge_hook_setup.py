"""Webhooks are set up with a secret made here, on every kind of forge, and are removed again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from forge_kit import ForgeKit, LocalStoryHost
from tests.forge_stand_in import Answer
from tests.github_stand_in import GithubHost, openapi
from tests.gitlab_stand_in import GitlabHost

from chargehand.app.forge_accounts import add_hooks, list_hooks, log_out, remove_hooks
from chargehand.core.errors import UsageError
from chargehand.forges.contract import Forge
from chargehand.forges.local_directory import LocalDirectory, create_repository

pytestmark = pytest.mark.needs_bwrap
SERVER = "https://chargehand.example.org/"


class HookHost(LocalStoryHost):
    """A forge whose account `robot` acts as the owner `ada`: webhooks need an administrator."""

    def __init__(self, root: Path, kind: str) -> None:
        root.mkdir()
        super().__init__(root)
        self.kind, self.root = kind, root
        self.stand_in: GithubHost | GitlabHost | None = None
        if kind != "local":
            self.stand_in = GithubHost(root) if kind == "github" else GitlabHost(root)
            self.url = self.stand_in.server.url

    def token(self, login: str) -> str:
        login = "ada" if login == "robot" else login
        return login if self.stand_in is None else f"token-{login}"

    def open_forge(self, login: str) -> Forge:
        return self._person(login)

    def hooks(self) -> list[str]:
        """Return the hooks at the forge, as stored."""
        if isinstance(self.stand_in, GitlabHost):
            return [str(each) for each in self.stand_in.hooks.values()]
        place = LocalDirectory(self.root).place(self.repository, "hooks")
        return [each.read_text() for each in sorted(place.glob("*.json"))]


@pytest.fixture(params=["local", pytest.param("github", marks=pytest.mark.real), "gitlab"])
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ForgeKit]:
    if request.param == "github":
        openapi()
    host = HookHost(tmp_path / "forge", request.param)
    settings = {"api": f'"{host.url}"'} if host.kind == "github" else {}
    made = ForgeKit(tmp_path, host=host, **settings)
    yield made
    if host.stand_in is not None:
        host.stand_in.close()


def _hooks(kit: ForgeKit) -> list[str]:
    return cast(HookHost, kit.host).hooks()


def test_hooks_are_added_once_and_removed_with_their_secret(kit: ForgeKit) -> None:
    address = "https://chargehand.example.org/api/v1/forges/home/hook"
    with kit.app() as app:
        for _ in range(2):
            (made,) = add_hooks(app, "home", SERVER).hooks
            assert (made.repository, made.address, made.problem) == (kit.name, address, None)
        assert app.user_configuration().config.forges["home"].webhook_secret == "HOME_HOOK"
        secret = app.credentials.get("HOME_HOOK") or ""
        assert len(secret) == 64
        (stored,) = _hooks(kit)
        assert address in stored
        assert secret in stored
        assert [each.address for each in list_hooks(app).hooks] == [address]
        # Another address replaces the first.
        add_hooks(app, "home", "https://other.example.org")
        (stored,) = _hooks(kit)
        assert "other.example.org" in stored
        assert app.credentials.get("HOME_HOOK") == secret
        assert [each.problem for each in remove_hooks(app, "home").hooks] == [None]
        assert _hooks(kit) == []
        assert list_hooks(app).hooks == ()
        assert app.credentials.get("HOME_HOOK") is None
        assert app.user_configuration().config.forges["home"].webhook_secret is None


def test_a_hook_that_fails_is_named_and_kept_in_mind(tmp_path: Path) -> None:
    host = HookHost(tmp_path / "forge", "gitlab")
    assert host.stand_in is not None
    server = host.stand_in.server
    create_repository(host.root, "ada/other", {"ada": "admin"})
    kit = ForgeKit(tmp_path, host=host, repositories='["ada/calc", "ada/missing", "ada/other"]')
    lost = [True]

    def lose(asked: object) -> Answer | None:
        path, method = getattr(asked, "path", ""), getattr(asked, "method", "")
        if method == "POST" and path.endswith("/hooks") and "calc" in path and lost.pop():
            lost.append(False)
            return Answer(-1)
        return None

    server.faults.append(lose)
    with kit.app() as app:
        first, second, third = add_hooks(app, "home", SERVER).hooks
        assert first.problem is not None
        assert second.problem is not None
        assert third.problem is None
        # The forge may have it although its answer was lost: logging out removes it as well.
        assert "ada/calc" in [each.repository for each in list_hooks(app).hooks]
        app.credentials.set("HOME_TOKEN", "token-ada")
        found = log_out(app, "home")
        assert "ada/missing" in (found.problem or "")
        assert [each.repository for each in list_hooks(app).hooks] == ["ada/missing"]
        assert app.credentials.get("HOME_HOOK") is not None
    host.stand_in.close()


@pytest.mark.parametrize(
    "url",
    [
        *("http://chargehand.example.org", "https://user:pw@example.org", "https://example.org/?a=1", "x", ""),
        *("https://[", "https://[::zz]", "https://example.org?", "https://example.org:99999", "http://[::1"),
    ],
)
def test_an_address_in_the_clear_or_with_a_password_is_refused(tmp_path: Path, url: str) -> None:
    kit = ForgeKit(tmp_path)
    with kit.app() as app, pytest.raises(UsageError, match="not the address") as caught:
        add_hooks(app, "home", url)
    assert caught.value.code == "forge_hook"
    assert "pw" not in caught.value.message


def test_an_account_that_watches_nothing_gets_no_hook(tmp_path: Path) -> None:
    kit = ForgeKit(tmp_path, repositories="[]")
    with kit.app() as app, pytest.raises(UsageError, match="watches no repository"):
        add_hooks(app, "home", SERVER)
