"""Files of a sandbox, accessed from the host by small shell scripts that run in the sandbox.

Never through the host's own file system: there a link made by the agent would lead to files of the host.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Sequence
from typing import Literal, get_args

from msgspec import Struct

from chargehand.agents.patch.parsing import in_git
from chargehand.agents.tool_specs import Mistake
from chargehand.core.text import printable, shown_path
from chargehand.sandbox.contract import WORKSPACE, ExecResult, Sandbox

# Bytes of a file that is read as a whole.
LARGEST_TEXT = 4_000_000
Kind = Literal["file", "directory", "other", "dangling"]
_KINDS: tuple[Kind, ...] = get_args(Kind)

# The first path that exists, of a path and the directories above it. The `x` keeps line feeds at the end of a
# name, which a command substitution would cut off.
_LOOK = r"""
root=$(pwd -P; echo x); root=${root%?x}
n=0
for p do
  if [ -e "$p" ] || [ -L "$p" ]; then
    kind=other
    if [ -d "$p" ]; then kind=directory; elif [ -f "$p" ]; then kind=file; fi
    [ -e "$p" ] || kind=dangling
    real=$(readlink -f -- "$p"; echo x); real=${real%?x}
    size=$(stat -L -c %s -- "$p")
    printf '%s\0' "$n" "$kind" "$size" "$root" "$real"
    exit 0
  fi
  n=$((n + 1))
done
exit 9
"""
# In the target's directory, so that the later move is an atomic rename on one file system.
_STAGE = r"""
set -e
case $1 in */*) mkdir -p -- "${1%/*}" ;; esac
trap 'rm -f -- "$1"' EXIT
cat > "$1"
if [ -n "$2" ]; then chmod "$(stat -L -c %a -- "$2")" "$1"; fi
case $3 in yes) chmod +x "$1" ;; no) chmod a-x "$1" ;; esac
trap - EXIT
"""
# All moves in one command, as close together as possible.
_COMMIT = r"""
set -e
while [ $# -gt 0 ]; do
  case $1 in
    move) mv -f -- "$2" "$3"; shift 3 ;;
    drop) rm -f -- "$2"; shift 2 ;;
  esac
done
"""


class PathStatus(Struct, frozen=True, kw_only=True):
    """The file at a path, or (`missing` not empty) the nearest existing directory above it.

    `word` is the path as a program names it from the workspace; `real` is its target, relative to the workspace if
    it is inside, else None.
    """

    word: str
    kind: Kind
    size: int
    real: str | None
    missing: str = ""

    @property
    def exists(self) -> bool:
        """Return whether the path itself exists."""
        return not self.missing


class PendingWrite(Struct, frozen=True, kw_only=True):
    """One file to write (`data`) or to remove (None), by its path in the workspace; see `SandboxFiles.write`."""

    path: str
    data: bytes | None
    mode_of: str = ""
    executable: bool | None = None


class SandboxFiles:
    """Reads and writes files of one sandbox; a model's wrong request raises `Mistake`.

    A path from a model is relative to `cwd`, where commands start, and so are the paths that it is shown.
    """

    def __init__(self, sandbox: Sandbox, *, seconds: float) -> None:
        self.cwd = sandbox.cwd
        self._sandbox = sandbox
        self._seconds = seconds

    async def run(self, script: str, *words: str, stdin: bytes = b"", limit: int = LARGEST_TEXT) -> ExecResult:
        """Run a shell script in the workspace; raises `Mistake` if it takes too long."""
        result = await self._sandbox.exec(
            ["/bin/sh", "-c", script, "sh", *words],
            timeout=self._seconds,
            cwd=WORKSPACE,
            stdin=stdin,
            output_limit=limit,
            # Without it messages and sorting depend on the image.
            environment={"LC_ALL": "C.UTF-8"},
        )
        if result.timed_out:
            raise Mistake(f"this took longer than {self._seconds:g} s and was stopped: ask for less at once")
        return result

    async def look(self, path: str) -> PathStatus:
        """Return the status of a path; raises `Mistake` if it cannot be a path."""
        if not path or "\0" in path:
            raise Mistake(f"{path!r} is not a path")
        full = posixpath.normpath(posixpath.join(self.cwd, path)).replace("//", "/")
        word = "." if full == WORKSPACE else full
        if full.startswith(WORKSPACE + "/"):  # "./" so that no name can look like an option
            word = "./" + full[len(WORKSPACE) + 1 :]
        above_word = word
        above = [word]
        while above_word not in (".", "/"):
            above_word = posixpath.dirname(above_word)
            above.append(above_word)
        result = await self.run(_LOOK, *above)
        fields = result.stdout.split(b"\0")
        if result.exit_code != 0 or len(fields) != 6:
            raise Mistake(f"{path!r} cannot be looked at: {last_words(result)}")
        at, kind, size, root, real = (field.decode("utf-8", "surrogateescape") for field in fields[:5])
        found = above[int(at)]
        missing = posixpath.relpath(word, found) if found != word else ""
        # By path components: "/workspace-evil" begins with "/workspace" too.
        inside = real == root or real.startswith(root.rstrip("/") + "/")
        relative = posixpath.normpath(posixpath.join(posixpath.relpath(real, root), missing)) if inside else None
        known: Kind = kind if kind in _KINDS else "other"
        return PathStatus(word=word, kind=known, size=int(size or 0), real=relative, missing=missing)

    def shown(self, word: str) -> str:
        """Return a path of the workspace as a model names it."""
        place = posixpath.normpath(posixpath.join(WORKSPACE, word))
        inside = place == WORKSPACE or place.startswith(f"{WORKSPACE}/")
        return posixpath.relpath(place, self.cwd) if inside and place != self.cwd else place

    async def content(self, path: str, entry: PathStatus) -> bytes:
        """Return all bytes of a file; raises `Mistake` if it is too large or cannot be read."""
        if entry.size > LARGEST_TEXT:
            raise Mistake(f"{path} has {entry.size} bytes, too many for this tool: use bash (sed, head, tail)")
        result = await self.run('cat -- "$1"', entry.word)
        if result.exit_code != 0 or result.truncated:
            raise Mistake(f"{path} cannot be read: {last_words(result)}")
        return result.stdout

    async def names(self, word: str) -> list[str]:
        """Return the names in a directory, those of directories with a slash; raises `Mistake`."""
        result = await self.run('ls -1Ap -- "$1"', word)
        if result.exit_code != 0:
            raise Mistake(f"{word} cannot be listed: {last_words(result)}")
        # Only at line feeds, with which `ls` ends names: a name may contain other line breaks.
        names = result.stdout.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")
        return sorted(map(shown_path, filter(None, names)))

    async def write(self, changes: Sequence[PendingWrite]) -> None:
        """Write all changes, or none unless the last step itself fails half-way; raises `Mistake` on failure.

        Each file keeps its mode, or takes that of `mode_of`; `executable` changes it.
        """
        steps: list[str] = []
        staged: list[str] = []
        for change in changes:
            if change.data is None:
                steps += ["drop", f"./{change.path}"]
                continue
            beside = posixpath.join(
                "./" + posixpath.dirname(change.path), f".chargehand-{secrets.token_hex(6)}.tmp"
            )
            mode = {None: "", True: "yes", False: "no"}[change.executable]
            result = await self.run(_STAGE, beside, change.mode_of, mode, stdin=change.data)
            if result.exit_code != 0:
                await self._unstage(staged)
                raise Mistake(f"{change.path} cannot be written, so nothing was: {last_words(result)}")
            staged.append(beside)
            steps += ["move", beside, f"./{change.path}"]
        result = await self.run(_COMMIT, *steps)
        if result.exit_code != 0:
            await self._unstage(staged)
            raise Mistake(f"not everything could be written (look with git status): {last_words(result)}")

    async def _unstage(self, staged: Sequence[str]) -> None:
        await self.run('for f do rm -f -- "$f"; done', *staged)


def writable(path: str, entry: PathStatus) -> str:
    """Return the target of a write to `path`, relative to the workspace; raises `Mistake` if not allowed."""
    if entry.real is None or entry.real == ".":
        raise Mistake(
            f"{path!r} is not a file inside {WORKSPACE}: only files of the workspace can be changed here"
        )
    if in_git(entry.real) or in_git(entry.word):
        raise Mistake(f"{path!r} is inside .git, which only git itself may change")
    if entry.exists and entry.kind != "file":
        noun = {"directory": "a directory", "dangling": "a dangling link"}.get(entry.kind, "not a regular file")
        raise Mistake(f"{path!r} is {noun}")
    if not entry.exists and entry.kind != "directory":
        raise Mistake(f"{path!r} cannot exist: its parent is not a directory")
    return entry.real


def last_words(result: ExecResult) -> str:
    """Return the last line of a failed program's error output."""
    words = printable(result.stderr.decode("utf-8", "replace")).strip().splitlines()
    return words[-1][-300:].removeprefix("sh: ") if words else f"exit code {result.exit_code}"
