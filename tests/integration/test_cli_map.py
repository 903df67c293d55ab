"""`chargehand map` as a person uses it: a request, questions, JSON, and refusals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import Cli, repository
from tests.unit.test_map_queries import FILES


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


@pytest.fixture(scope="module")
def repo(cli: Cli) -> Path:
    return repository(cli.place / "repo", FILES)


def test_a_request_shows_the_likely_files_and_stays_in_its_size(cli: Cli, repo: Path) -> None:
    shown = cli.say("map", "add_tax adds the tax twice", cwd=repo, as_json=False)
    assert shown.code == 0
    assert "shop/prices.py\n  4: def add_tax(net):" in shown.stdout
    document = cli.say("map", "add_tax adds the tax twice", "--tokens", "100", cwd=repo).document
    assert 0 < len(document["text"].encode()) <= 400
    assert document["summary"]["files"] == len(FILES)


def test_questions_are_answered_with_places(cli: Cli, repo: Path) -> None:
    def ask(*words: str) -> list[tuple[str, str]]:
        return [(hit["path"], hit["name"]) for hit in cli.say("map", *words, cwd=repo).document["hits"]]

    assert ask("--calls", "add_tax")[0] == ("shop/cart.py", "Cart.total")
    assert ask("--tests", "shop/mail.py") == [("tests/test_mail.py", "test_letter")]
    assert ("shop/pages.py", "show_cart") in ask("--impact", "rate_of")
    assert ask("--search", "send letter")[0] == ("shop/mail.py", "send_letter")
    table = cli.say("map", "--calls", "add_tax", cwd=repo, as_json=False).stdout
    assert "shop/cart.py:6" in table


def test_paths_are_named_as_a_person_sees_them(cli: Cli, repo: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(repo)
    for place, target in (
        (repo, "./shop/mail.py"),
        (repo, str(repo / "shop/mail.py")),
        (repo, str(link / "shop/mail.py")),
        (repo / "shop", "mail.py"),
        (repo / "tests", "../shop/mail.py"),
        (repo / "tests", "shop/mail.py"),
    ):
        (hit,) = cli.say("map", "--tests", target, cwd=place).document["hits"]
        assert hit["path"] == "tests/test_mail.py", (place, target)
    elsewhere = cli.say("map", "--tests", "shop/mail.py", "--repo", str(repo), cwd=tmp_path).document
    assert [hit["path"] for hit in elsewhere["hits"]] == ["tests/test_mail.py"]
    assert cli.refused("symbol_not_found", 2, "map", "--tests", str(tmp_path / "mail.py"), cwd=repo)["hint"]


def test_bytes_that_are_not_utf_8_are_not_found(cli: Cli, repo: Path) -> None:
    word = os.fsdecode(b"add\xff")
    for option in ("--calls", "--impact", "--tests"):
        assert cli.refused("symbol_not_found", 2, "map", option, word, cwd=repo)["hint"]
    assert "Nothing found" in cli.say("map", "--search", word, cwd=repo, as_json=False).stdout
    assert cli.say("map", word, cwd=repo, as_json=False).code == 0


def test_commits_are_read_and_not_the_checkout(cli: Cli, repo: Path) -> None:
    (repo / "new.py").write_text("def not_committed(): ...\n")
    assert cli.refused("symbol_not_found", 2, "map", "--calls", "not_committed", cwd=repo)["hint"]
    (repo / "new.py").unlink()
    empty = cli.say("map", cwd=repo, as_json=False)
    assert f"{len(FILES)} files of commit" in empty.stdout


def test_two_questions_at_once_are_refused(cli: Cli, repo: Path) -> None:
    assert cli.say("map", "a request", "--calls", "add_tax", cwd=repo).code == 2
