"""Deliveries of a real Gitea are genuine, and name the issue that changed."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest
from tests.forge_stand_in import Answer, Asked, StandIn
from tests.gitea_kit import GiteaHost, gitea

from chargehand.forges.contract import NewRequest
from chargehand.forges.webhooks import read_delivery
from chargehand.testing.forges.case import ForgeCase
from chargehand.testing.forges.suite import fails

pytestmark = [pytest.mark.needs_gitea, pytest.mark.timeout(3_600)]


def test_deliveries_are_signed_and_name_the_issue(tmp_path: Path) -> None:
    received: queue.Queue[Asked] = queue.Queue()

    def receive(asked: Asked) -> Answer:
        received.put(asked)
        return Answer(204)

    server, host = StandIn(receive), GiteaHost(gitea())
    try:
        forge, name = host.open_forge(host.tokens[host.ada]), host.create_repository()
        case = ForgeCase(forge=forge, other=forge, host=host, repository=name, scratch=tmp_path)
        case.commit("main", {"readme.txt": "hello\n"})
        forge.ensure_hook(name, f"{server.url}/hook", "first")
        forge.ensure_hook(name, f"{server.url}/hook", "s3cret")  # a new secret replaces the old one
        number = host.create_issue(name, "bug")
        forge.add_comment(name, number, "Ünïcödé")
        case.commit("fix", {"new.txt": "x\n"})
        request = forge.open_request(name, NewRequest(title="x", body="", head="fix", base="main", draft=False))
        wanted = {
            ("issues", number, "opened"),
            ("issue_comment", number, "created"),
            ("pull_request", request.number, "opened"),
        }
        found = set()
        while not wanted <= found:
            asked = received.get(timeout=30)
            delivery = read_delivery("gitea", asked.headers, asked.content, "s3cret")
            assert (delivery.repository, delivery.sender) == (name, host.ada)
            assert delivery.id
            found.add((delivery.event, delivery.number, delivery.action))
            fails("denied", lambda asked=asked: read_delivery("gitea", asked.headers, asked.content, "first"))
            # Gitea signs as GitHub does, too.
            assert read_delivery("github", asked.headers, asked.content, "s3cret").number == delivery.number
        forge.remove_hook(name, f"{server.url}/hook")
        while not received.empty():
            received.get()
        forge.add_comment(name, number, "not delivered")
        with pytest.raises(queue.Empty):
            received.get(timeout=2)
    finally:
        host.close()
        server.close()
