"""The people of a local forge, for tests of forges; stand-ins of other forges keep their state in one as well."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from chargehand.forges.contract import Forge, ForgeSetup, ReviewState, Right
from chargehand.forges.local import LocalForge
from chargehand.forges.local_directory import LocalDirectory, LocalRules, LocalSettings, create_repository
from chargehand.forges.registries import FORGES

NAUGHTY = Path(__file__).parents[2] / "shared" / "data" / "naughty_strings.json"


def naughty_texts() -> list[str]:
    """Return texts that programs have failed at; skip if the machine does not have them."""
    if not NAUGHTY.exists():
        pytest.skip("no list of naughty strings")
    found: list[str] = json.loads(NAUGHTY.read_text())
    return found


class LocalHost:
    """The people of a local forge: `ada` owns its repositories, `bob` reads."""

    def __init__(self, root: Path) -> None:
        self.directory = LocalDirectory(root)
        self.ada, self.bob = LocalForge(root, "ada"), LocalForge(root, "bob")

    def create_issue(self, repository: str, title: str, body: str = "") -> int:
        return self.ada.create_issue(repository, title, body)

    def lock_issue(self, repository: str, number: int) -> None:
        self.ada.lock_issue(repository, number)

    def submit_review(
        self,
        repository: str,
        number: int,
        state: ReviewState,
        body: str,
        lines: Sequence[tuple[str, int, str]] = (),
    ) -> None:
        self.bob.submit_review(repository, number, state, body, lines=lines)

    def set_right(self, repository: str, login: str, right: Right) -> None:
        rights = {**self.directory.settings(repository).rights, login: right}
        self.set(repository, rights=rights)

    def protect(self, repository: str, check: str) -> None:
        self.set(repository, protected={"main": LocalRules(checks=(check,))})

    def archive(self, repository: str) -> None:
        self.set(repository, archived=True)

    def rename(self, repository: str, name: str) -> None:
        new = f"{repository.rpartition('/')[0]}/{name}"
        self.directory.git_directory(repository).rename(self.directory.git_directory(new))
        self.directory.place(repository, "").rename(self.directory.place(new, ""))
        self.directory.save(repository, "settings.json", LocalSettings(rights={}, moved_to=new))

    def create_repository(self) -> str:
        create_repository(self.directory.root, "ada/empty", {"ada": "admin", "bob": "read"})
        return "ada/empty"

    def open_forge(self, token: str) -> Forge:
        setup = ForgeSetup(url=self.directory.root.as_uri(), token=token, sleep=time.sleep)
        return FORGES["local"].open(setup)

    def weak_forge(self) -> Forge | None:
        return None

    def set(self, repository: str, **values: object) -> None:
        settings = self.directory.settings(repository)
        self.directory.save(repository, "settings.json", msgspec.structs.replace(settings, **values))
