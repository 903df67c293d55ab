"""Makes repositories of a given size: directories, sizes and names as in real projects, always the same."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}
_VOCABULARY = """
account balance cache client config decode depot driver encode engine event filter format handler index
journal kernel layer limit lock merge model mount order packet parser path policy port query queue reader
record report request result router scan schema server session signal socket source state store stream table
target task token tree value verdict worker writer
"""
_WORDS = _VOCABULARY.split()
_KINDS = (".py", ".py", ".py", ".c", ".h", ".js", ".md", ".json", ".txt")
_FILES_A_DIRECTORY = 12
_MEDIAN_BYTES, _SPREAD = 2500, 1.1  # log-normal: a mean of about 4.6 kB
_WHOLE_SIZED = 100_000  # files; with more, each is smaller, so that the total stays at half a gigabyte


def git(directory: Path, *arguments: str, environment: dict[str, str] | None = None, input: bytes = b"") -> str:
    """Run git as a person would, without the machine's own configuration; return its output."""
    done = subprocess.run(
        ["git", "-C", str(directory), *arguments],
        env={**ENVIRONMENT, **(environment or {})},
        input=input,
        stdout=subprocess.PIPE,
        check=True,
    )
    return done.stdout.decode().strip()


def make_repository(directory: Path, *, files: int) -> Path:
    """Make a repository with one commit of `files` files on `main`, checked out."""
    directory.mkdir(parents=True)
    git(directory, "init", "--quiet", "--initial-branch=main")
    quick = ("-c", "core.compression=1")  # the contents have nothing in common: a search for deltas is in vain
    command = ["git", "-C", str(directory), *quick, "fast-import", "--quiet", "--depth=0"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE) as importer:
        assert importer.stdin is not None
        _write_commit(importer.stdin, files)
    if importer.returncode:
        raise RuntimeError(f"git fast-import ended with {importer.returncode}")
    for key in ("gc.auto", "maintenance.auto"):
        git(directory, "config", key, "0")  # no side pays for the garbage of another
    git(directory, "reset", "--quiet", "--hard", "main")
    git(directory, "status")  # refresh the index like a person's, with valid file data
    return directory


def paths(files: int) -> list[str]:
    """Return the paths of a repository of that many files."""
    return list(_paths(random.Random(files), files))


def _write_commit(stream: IO[bytes], files: int) -> None:
    dice = random.Random(files)
    median = _MEDIAN_BYTES * min(1.0, _WHOLE_SIZED / files)
    text = " ".join(dice.choices(_WORDS, k=200_000)).replace(" e", "\ne").encode()
    stream.write(b"commit refs/heads/main\ncommitter Ada <ada@example.org> 1700000000 +0000\ndata 5\nfirst\n")
    for number, path in enumerate(paths(files)):
        size = min(400_000, int(dice.lognormvariate(0, _SPREAD) * median))
        start = dice.randrange(len(text) // 2)
        content = b"# %d %s\n" % (number, path.encode()) + text[start : start + size] + b"\n"
        stream.write(b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(content), content))


def _paths(dice: random.Random, files: int) -> Iterator[str]:
    """Yield the paths: each new directory is below an earlier one, more likely one near the top."""
    directories = ["src", "tests", "docs"]
    made = 0
    while made < files:
        parent = directories[int(len(directories) * dice.random() ** 2)]
        if parent.count("/") > 6:
            continue
        directory = f"{parent}/{dice.choice(_WORDS)}{len(directories)}"
        directories.append(directory)
        for number in range(min(files - made, dice.randint(1, 2 * _FILES_A_DIRECTORY))):
            yield f"{directory}/{dice.choice(_WORDS)}_{number}{dice.choice(_KINDS)}"
            made += 1
