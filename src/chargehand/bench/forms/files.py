"""Files of suites: read from directories, and from patches on a commit."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from chargehand.bench.records import Files
from chargehand.core.errors import UsageError

_MOST_FILES = 20_000
_MOST_BYTES = 256 << 20
_GIT_SECONDS = 300.0
_EXECUTABLE = 0o100


def suite_error(message: str, hint: str = "") -> UsageError:
    """Return the error of a suite that cannot be read."""
    return UsageError(
        message, code="suite_invalid", hint=hint or "correct the suite, then `chargehand bench check` it"
    )


def read_directory(root: Path, *, prefix: str = "") -> dict[str, tuple[bytes, bool] | None]:
    """Return the files below a directory, empty if it is missing; paths begin with `prefix`.

    Raises `UsageError` (`suite_invalid`) for links, special files and more than 20,000 files or 256 MiB.
    """
    files: dict[str, tuple[bytes, bool] | None] = {}
    size = 0
    for place, directories, names in os.walk(root):
        directories[:] = sorted(each for each in directories if each not in (".git", "__pycache__"))
        for name in sorted(names):
            path = Path(place, name)
            if name == ".git":  # of a submodule or worktree
                continue
            if path.is_symlink() or not path.is_file():
                raise suite_error(f"{str(path)!r} is not a regular file", "replace it by a file")
            size += path.stat().st_size
            if len(files) >= _MOST_FILES or size > _MOST_BYTES:
                hint = "name a git repository with `repository` and `base`"
                raise suite_error(f"{str(root)!r} has more than 20,000 files or 256 MiB", hint)
            mode = path.stat().st_mode
            files[prefix + path.relative_to(root).as_posix()] = (path.read_bytes(), bool(mode & _EXECUTABLE))
        for each in directories:
            if Path(place, each).is_symlink():
                raise suite_error(f"{str(Path(place, each))!r} is a link to a directory", "replace it by files")
    return files


def run_git(repository: Path, *words: str, stdin: bytes = b"", environment: dict[str, str] | None = None) -> bytes:
    """Return the output of a git command; raise `UsageError` (`suite_invalid`) if it fails."""
    own = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*", *words],
            cwd=repository,
            env={**kept, **own, **(environment or {})},
            input=stdin,
            capture_output=True,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise suite_error(f"git {words[0]} in {str(repository)!r}: {error}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-500:]
        raise suite_error(f"git {words[0]} in {str(repository)!r} failed: {said}")
    return done.stdout


def apply_patch(repository: Path, commit: str, patch: bytes) -> Files:
    """Return the files that a patch on a commit changes, with their new content.

    The repository is not changed: index and new objects are temporary. Raises `UsageError` (`suite_invalid`).
    """
    if not patch.strip():
        return {}
    common = Path(os.fsdecode(run_git(repository, "rev-parse", "--git-common-dir").strip()))
    with tempfile.TemporaryDirectory(prefix="chargehand-patch-") as place:
        Path(place, "objects").mkdir()
        environment = {
            "GIT_INDEX_FILE": f"{place}/index",
            "GIT_OBJECT_DIRECTORY": f"{place}/objects",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str((repository / common / "objects").resolve()),
        }

        def git(*words: str, stdin: bytes = b"") -> bytes:
            return run_git(repository, *words, stdin=stdin, environment=environment)

        git("read-tree", commit)
        git("apply", "--cached", "--whitespace=nowarn", "-", stdin=patch)
        files: dict[str, tuple[bytes, bool] | None] = {}
        raw = git("diff-index", "--cached", "--raw", "--no-renames", "--no-abbrev", "-z", commit, "--")
        fields = raw.decode("utf-8", "surrogateescape").split("\0")
        for said, path in zip(fields[::2], fields[1::2], strict=False):
            _, mode, _, blob, status = said.split(" ")
            files[path] = None if status == "D" else (git("cat-file", "blob", blob), mode == "100755")
    return files
