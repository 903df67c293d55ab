"""A depot with an index of the repository map, and trees made from texts."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from chargehand.knowledge.index import CodeIndex
from chargehand.knowledge.maps import RepositoryMap
from chargehand.workspace.depot import Depot
from tests.trees_kit import File, make_tree


class MapKit:
    """A depot in `place` and its index, which is open until `close`."""

    def __init__(self, place: Path) -> None:
        repository = place / "repository"
        for words in (("init", "-q", str(repository)), ("-C", str(repository), *COMMIT)):
            subprocess.run(["git", *words], check=True, capture_output=True)
        self.root = place / "state"
        self.depot = Depot.open(self.root, repository=repository)
        self.index = CodeIndex(self.root, self.depot)

    def tree(self, files: Mapping[str, str | bytes | File]) -> str:
        """Write a tree of these files."""
        return make_tree(
            self.depot, {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
        )

    def map(self, files: Mapping[str, str | bytes | File]) -> RepositoryMap:
        """Return the complete map of a tree of these files."""
        made = RepositoryMap(self.index, self.tree(files))
        assert made.bring().complete
        return made


COMMIT = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first")
