"""Accounts at a real Gitea: a deploy key for git over ssh, settings of a repository, and webhooks."""

from __future__ import annotations

import queue
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from forge_kit import ForgeKit
from test_gitea_story import GiteaStoryHost
from tests.forge_stand_in import Answer, Asked, StandIn

from chargehand.app.forge.accounts import ForgeAccounts
from chargehand.app.forge.clones import clone_path, delete_branch, update_clone
from chargehand.app.forge_accounts import add_hooks, remove_hooks
from chargehand.app.forges import receive_hook
from chargehand.core.errors import UsageError
from chargehand.forges.contract import Forge
from chargehand.testing.forges.suite import fails

pytestmark = [pytest.mark.needs_bwrap, pytest.mark.needs_gitea, pytest.mark.timeout(3_600)]


@pytest.fixture
def host() -> Iterator[GiteaStoryHost]:
    made = GiteaStoryHost()
    yield made
    made.close()


def test_git_uses_exactly_the_deploy_key(tmp_path: Path, host: GiteaStoryHost) -> None:
    known, key, other = tmp_path / "known hosts", tmp_path / "deploy key", tmp_path / "other"
    for file in (key, other):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
    body = {"title": "chargehand", "key": key.with_name("deploy key.pub").read_text(), "read_only": False}
    deploy = host.call("POST", f"/repos/{host.repository}/keys", body)
    settings = {"git_key": f'"{key}"', "git_known_hosts": f'"{known}"'}
    kit = ForgeKit(tmp_path, host=host, **settings)
    with kit.app() as app, ForgeAccounts(app).open("home", host.repository) as forge:
        repository = forge.repository(host.repository)
        ssh = urlsplit(repository.ssh_url)

        def fetch() -> None:
            update_clone(tmp_path / "clones", "home", forge, repository, "main")

        # An unknown host is not trusted.
        known.touch()
        assert "Host key verification failed" in fails("denied", fetch).message
        keys = subprocess.run(
            ["ssh-keyscan", "-p", str(ssh.port), "127.0.0.1"], check=True, capture_output=True, text=True
        ).stdout
        known.write_text(keys)
        fetch()
    # The whole way, with a push; the token is used for the API alone.
    mission = kit.take(kit.issue())
    kit.work()
    state = kit.state(mission)
    assert state.deliveries["request"].state == "done", state.deliveries
    assert kit.request(mission).head_commit == state.commit
    # A key that the forge does not know, although the person's own would do.
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/id_ed25519").write_bytes(key.read_bytes())
    (tmp_path / ".ssh/id_ed25519").chmod(0o600)
    (tmp_path / ".ssh/config").write_text(f"Host *\n  IdentityFile {tmp_path}/.ssh/id_ed25519\n")
    kit.configure("true", **{**settings, "git_key": f'"{other}"'})
    with kit.app() as app, ForgeAccounts(app).open("home", host.repository) as forge:
        assert "ermission denied" in fails("denied", fetch_of(tmp_path, forge, host.repository)).message
    # A key without write right.
    host.call("DELETE", f"/repos/{host.repository}/keys/{deploy['id']}")
    host.call("POST", f"/repos/{host.repository}/keys", {**body, "read_only": True})
    kit.configure("true", **settings)
    with kit.app() as app, ForgeAccounts(app).open("home", host.repository) as forge:
        fetch_of(tmp_path, forge, host.repository)()
        clone, found = clone_path(tmp_path / "clones", "home", host.repository), forge.repository(host.repository)
        head = forge.branch(host.repository, kit.request(mission).head) or ""
        error = fails(
            "forbidden", lambda: delete_branch(clone, forge, found, kit.request(mission).head, commit=head)
        )
        assert "write" in error.message
    key.chmod(0o644)
    with (
        kit.app() as app,
        pytest.raises(UsageError, match="open to others") as caught,
        ForgeAccounts(app).open("home", host.repository),
    ):
        pass
    assert caught.value.code == "forge_key"


def fetch_of(place: Path, forge: Forge, name: str) -> Callable[[], object]:
    """Return a fetch of the repository."""
    return lambda: update_clone(place / "clones", "home", forge, forge.repository(name), "main")


def test_settings_of_a_repository_and_its_template_shape_the_request(tmp_path: Path, host: GiteaStoryHost) -> None:
    kit = ForgeKit(tmp_path, host=host, delete_branch="true")
    kit.push("main", {".gitea/PULL_REQUEST_TEMPLATE.md": "## Checklist\n- [ ] changelog\n"})
    file = tmp_path / ".config/chargehand/config.toml"
    file.write_text(
        file.read_text()
        + f'[repositories.calc]\nrepository = "{host.repository}"\nbranch = "bot/{{number}}-{{slug}}"\n'
        + 'title = "fix: {title} (#{number})"\nbody = "See {url}."\nlabels = ["by a bot"]\n'
        + f'reviewers = ["{host.login("bob")}"]\nmerge_method = "squash"\n'
    )
    number = kit.issue()
    mission = kit.take(number)
    kit.work()
    request = kit.request(mission)
    assert request.head == f"bot/{number}-add-subtracts"
    assert request.title == f"fix: add() subtracts (#{number})"
    assert request.body.startswith(f"See {host.url}/{host.repository}/issues/{number}.")
    assert request.body.rstrip().endswith("## Checklist\n- [ ] changelog")
    found = host.call("GET", f"/repos/{host.repository}/pulls/{request.number}")
    assert [each["name"] for each in found["labels"]] == ["by a bot"]
    assert [each["login"] for each in found["requested_reviewers"]] == [host.login("bob")]
    kit.step()
    kit.ada.merge(kit.name, request.number, commit=request.head_commit, method="squash")
    kit.step()
    kit.step()
    assert kit.ada.branch(kit.name, request.head) is None


def test_webhooks_are_set_up_and_their_deliveries_are_accepted(tmp_path: Path, host: GiteaStoryHost) -> None:
    received: queue.Queue[Asked] = queue.Queue()

    def receive(asked: Asked) -> Answer:
        received.put(asked)
        return Answer(204)

    server = StandIn(receive)
    kit = ForgeKit(tmp_path, host=host)
    kit.environ["HOME_TOKEN"] = host.token("ada")
    try:
        with kit.app() as app:
            (made,) = add_hooks(app, "home", server.url).hooks
            assert made.problem is None
            add_hooks(app, "home", server.url)
            assert len(host.call("GET", f"/repos/{host.repository}/hooks")) == 1
            kit.issue()
            asked = received.get(timeout=30)
            assert asked.path == "/api/v1/forges/home/hook"
            found = receive_hook(app, "home", asked.headers, asked.content)
            assert (found.new, found.repository) == (True, host.repository)
            assert not receive_hook(app, "home", asked.headers, asked.content).new
            headers = {**asked.headers, "x-gitea-signature": "0" * 64, "x-hub-signature-256": "sha256=" + "0" * 64}
            fails("denied", lambda: receive_hook(app, "home", headers, asked.content))
            assert [each.problem for each in remove_hooks(app, "home").hooks] == [None]
        assert host.call("GET", f"/repos/{host.repository}/hooks") == []
        # The account of an ordinary member may not do that, and the reason says so.
        kit.environ["HOME_TOKEN"] = host.token("bob")
        with kit.app() as app:
            (refused,) = add_hooks(app, "home", server.url).hooks
        assert "403" in (refused.problem or "")
    finally:
        server.close()
