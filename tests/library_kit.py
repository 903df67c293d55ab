"""Git repositories made of installed packages or given files, for the reference library."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

from chargehand.knowledge.library import Library
from chargehand.knowledge.records import LibraryEntry

COMMIT = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "state")


def git(place: Path, *words: str) -> str:
    """Run git in a repository and return its output."""
    done = subprocess.run(["git", "-C", str(place), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write_repository(place: Path, files: Mapping[str, str | bytes]) -> Path:
    """Commit exactly these files in the repository at `place`, making it if missing."""
    if not (place / ".git").exists():
        place.mkdir(parents=True, exist_ok=True)
        git(place, "init", "-q", "-b", "main")
    git(place, "rm", "-rq", "--ignore-unmatch", ".")
    for path, content in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_bytes(content.encode() if isinstance(content, str) else content)
    git(place, "add", "--all", "--force")
    git(place, *COMMIT)
    return place


def package_repository(place: Path, name: str) -> Path:
    """Commit the sources of an installed package, with its licence at the top."""
    files: dict[str, bytes] = {}
    for each in distribution(name).files or ():
        if each.suffix in (".py", ".pyi") and ".." not in each.parts:
            files[str(each)] = Path(str(each.locate())).read_bytes()
        elif each.name.startswith("LICENSE"):
            files[each.name] = Path(str(each.locate())).read_bytes()
    return write_repository(place, files)


def entries(library: Library) -> list[LibraryEntry]:
    """Return all repositories of a library by name."""
    return [library.describe(name) for name in library.names()]
