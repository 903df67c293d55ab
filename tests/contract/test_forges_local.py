"""The local forge keeps the contract of forges, also between processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from tests.local_forge_kit import LocalHost, naughty_texts

from chargehand.forges.contract import CommitStatus, ForgeError, ForgeSetup
from chargehand.forges.local import LocalForge
from chargehand.forges.local_directory import LocalDirectory, create_repository
from chargehand.forges.registries import FORGES
from chargehand.testing.forges.case import ForgeCase
from chargehand.testing.forges.flaky import FlakyForge, ForgeFault
from chargehand.testing.forges.suite import ForgeContract, fails


@pytest.fixture
def case(tmp_path: Path) -> ForgeCase:
    create_repository(tmp_path / "forge", "ada/demo", {"ada": "admin", "bob": "read"})
    host = LocalHost(tmp_path / "forge")
    found = ForgeCase(
        forge=host.open_forge(""), other=host.bob, host=host, repository="ada/demo", scratch=tmp_path, many=300
    )
    found.commit("main", {"readme.txt": "hello\n"})
    return found


class TestLocal(ForgeContract):
    """The contract."""

    @pytest.fixture
    def case(self, case: ForgeCase) -> ForgeCase:
        return case


class TestFlakyWithoutFaults(ForgeContract):
    """A wrapper without faults changes nothing."""

    @pytest.fixture
    def case(self, case: ForgeCase) -> ForgeCase:
        return msgspec.structs.replace(case, forge=FlakyForge(case.forge))


def test_many_processes_write_comments_that_are_ordered(case: ForgeCase) -> None:
    number = case.host.create_issue(case.repository, "busy")
    program = (
        "import pathlib, sys; from chargehand.forges.local import LocalForge\n"
        "forge = LocalForge(pathlib.Path(sys.argv[1]), 'ada')\n"
        "for n in range(50): print(forge.add_comment('ada/demo', int(sys.argv[2]), f'{sys.argv[3]} {n}').id)"
    )
    root = str(case.scratch / "forge")
    command = [sys.executable, "-c", program, root, str(number)]
    running = [subprocess.Popen([*command, each], stdout=subprocess.PIPE, text=True) for each in "abc"]
    given = [[int(line) for line in each.communicate(timeout=60)[0].split()] for each in running]
    found = case.forge.comments(case.repository, number)
    assert [each.id for each in found] == sorted(each for ids in given for each in ids)
    assert len(found) == 150
    assert all(ids == sorted(ids) for ids in given)


def test_five_thousand_comments_are_read(case: ForgeCase) -> None:
    number = case.host.create_issue(case.repository, "long")
    first = case.forge.add_comment(case.repository, number, "comment 0")
    for count in range(1, 5_000):
        new = msgspec.structs.replace(first, id=first.id + count, body=f"comment {count}")
        LocalDirectory(case.scratch / "forge").save(case.repository, f"comments/{number}/{new.id:012d}.json", new)
    assert [each.body for each in case.forge.comments(case.repository, number)] == [
        f"comment {count}" for count in range(5_000)
    ]


def test_without_a_token_the_first_administrator_acts(case: ForgeCase) -> None:
    assert case.host.open_forge("").account().login == "ada"
    assert case.host.open_forge("bob").account().login == "bob"


@pytest.mark.parametrize("url", ["https://example.org", "file://elsewhere/x", "file:relative", ""])
def test_an_address_of_another_kind_is_invalid(url: str) -> None:
    fails("invalid", lambda: FORGES["local"].open(ForgeSetup(url=url, sleep=time.sleep)))


@pytest.mark.parametrize(
    "name", ["demo", "../ada/demo", "ada/../../x", "/ada/demo", "ada/demo.git", "ada/", "ada/-x", "a\0/b"]
)
def test_the_name_of_a_repository_cannot_leave_the_directory(case: ForgeCase, name: str) -> None:
    fails("invalid", lambda: case.forge.repository(name))


@pytest.mark.parametrize("name", ["", "-d", "main^{tree}", "../../HEAD", "a b", "x\0y", "@{-1}", "é" * 300])
def test_a_hostile_name_of_a_branch_is_no_branch(case: ForgeCase, name: str) -> None:
    assert case.forge.branch(case.repository, name) is None


def test_a_missing_directory_and_a_damaged_file_are_transient_or_broken(case: ForgeCase, tmp_path: Path) -> None:
    gone = LocalForge(tmp_path / "nowhere", "ada")
    assert fails("unreachable", lambda: gone.add_comment("ada/demo", 1, "x")).is_transient
    number = case.host.create_issue(case.repository, "bug")
    path = LocalDirectory(tmp_path / "forge").place(case.repository, f"items/{number}.json")
    path.write_text(path.read_text()[:-5])
    fails("broken", lambda: case.forge.issue(case.repository, number))


def test_the_log_of_a_check_ends_with_its_last_lines(case: ForgeCase) -> None:
    forge = LocalForge(case.scratch / "forge", "ada")
    head = case.commit("logged", {"new.txt": "x\n"})
    forge.set_log(case.repository, head, CommitStatus(context="ci", state="failure"), "x" * 100 + "the end")
    (status,) = forge.statuses(case.repository, head)
    assert forge.read_log(case.repository, status, most=10) == "xxxthe end"
    forged = msgspec.structs.replace(status, log="../settings.json")
    assert forge.read_log(case.repository, forged) == ""


@pytest.mark.parametrize(("when", "acted"), [("before", 0), ("lost_before", 0), ("lost_after", 1)])
def test_a_fault_before_or_after_the_change(
    case: ForgeCase, when: Literal["before", "lost_before", "lost_after"], acted: int
) -> None:
    number = case.host.create_issue(case.repository, "bug")
    flaky = FlakyForge(case.forge, ForgeFault(call=2, when=when, problem="broken"))
    flaky.change_issue(case.repository, number, add_labels=["agent"])
    error = fails("broken", lambda: flaky.add_comment(case.repository, number, "x"))
    assert error.may_have_acted is (when != "before")
    assert len(flaky.comments(case.repository, number)) == acted
    flaky.add_comment(case.repository, number, "y")
    assert (flaky.changes, flaky.calls["add_comment"], flaky.calls["comments"]) == (3, 2, 1)


def test_a_forge_that_is_down_and_a_crash_of_the_caller(case: ForgeCase) -> None:
    flaky = FlakyForge(case.forge, ForgeFault(method="branch", call=2, error=KeyboardInterrupt(), lasting=True))
    assert flaky.branch(case.repository, "main")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            flaky.branch(case.repository, "main")
    flaky.down = True
    fails("unreachable", lambda: flaky.repository(case.repository))
    flaky.down = False
    assert flaky.repository(case.repository).name == case.repository


def test_naughty_texts_are_texts_of_every_kind(case: ForgeCase) -> None:
    forge, name = case.forge, case.repository
    number = case.host.create_issue(name, "naughty")
    texts = naughty_texts()
    for text in texts:
        forge.add_comment(name, number, text)
    for text in texts[::5]:
        assert forge.branch(name, text) is None
        assert forge.right(name, text) == "none"
        with contextlib.suppress(ForgeError):
            assert forge.attach(name, number, text, b"x").startswith(forge.url)
    assert [each.body for each in forge.comments(name, number)] == texts
    forge.change_issue(name, number, add_labels=texts)
    assert set(forge.issue(name, number).labels) == set(texts)
    outside = {path.name for path in case.scratch.iterdir()}
    assert outside == {"forge", "ada-demo"}
