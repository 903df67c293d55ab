"""A pre-commit hook in the user's repository, made and removed by their own wish; another's is never touched."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from chargehand.core.errors import RefusedError
from chargehand.workspace._repository import Repository

_MARK = "# Made by `chargehand project hook install`; `chargehand project hook remove` takes it away."
_CALL = "format --check --staged"
_SCRIPT = """\
#!/bin/sh
{mark}
# A commit is held back only by files that the project's own formatters would change (exit code 1). Where they
# cannot be asked (Chargehand is not installed, there is no sandbox) it goes through: checks judge, not this.
program={program}
[ -x "$program" ] || program=$(command -v chargehand) || program=
if [ -z "$program" ]; then
    echo "pre-commit: chargehand is not installed here, so formatting was not checked" >&2
    exit 0
fi
"$program" {call}
code=$?
if [ "$code" -eq 1 ]; then
    echo "pre-commit: 'chargehand format --staged --apply' formats them; then 'git add' and commit again" >&2
    exit 1
fi
if [ "$code" -ne 0 ]; then
    echo "pre-commit: formatting could not be checked (exit code $code), and the commit goes on" >&2
fi
exit 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """Where the hook is, and whether the call changed anything."""

    path: Path
    changed: bool


def install_hook(repository: Repository, program: Path) -> Hook:
    """Write the hook where the repository's git looks for it (`core.hooksPath` too); ours is brought up to date.

    Raises `RefusedError`: `hook_exists` (another's is there), `hook_shared` (hooks lie outside the repository,
    where other repositories use them too).
    """
    path = _place(repository)
    content = _SCRIPT.format(mark=_MARK, program=shlex.quote(str(program)), call=_CALL)
    found = _read(path)
    if found == content:
        return Hook(path=path, changed=False)
    if found is not None and _MARK not in found:
        raise RefusedError(
            f"{str(path)!r} is a hook of somebody else",
            code="hook_exists",
            hint=f"add this line to it: chargehand {_CALL} || [ $? -ne 1 ] || exit 1",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.chargehand-{os.getpid()}")
    try:
        fresh.write_text(content)
        fresh.chmod(0o755)
        if found is None:
            os.link(fresh, path)  # fails where one came in between
        else:
            fresh.replace(path)
    except FileExistsError as problem:
        raise RefusedError(
            f"{str(path)!r} came just now", code="hook_exists", hint="look at it first"
        ) from problem
    finally:
        fresh.unlink(missing_ok=True)
    return Hook(path=path, changed=True)


def remove_hook(repository: Repository) -> Hook:
    """Remove the hook; where there is none nothing changes. Raises `RefusedError` (`hook_exists`) for others'."""
    path = _place(repository)
    found = _read(path)
    if found is None:
        return Hook(path=path, changed=False)
    if _MARK not in found:
        raise RefusedError(
            f"{str(path)!r} is a hook of somebody else", code="hook_exists", hint="take our line out by hand"
        )
    path.unlink()
    return Hook(path=path, changed=True)


def _place(repository: Repository) -> Path:
    """Return the hook's path; our own git has hooks off, so what it overrides is left out of the answer."""
    listed = repository.git.run("config", "--show-scope", "-z", "--type=path", "--get-all", "core.hooksPath")
    fields = listed.out.split(b"\0")[:-1]
    said = [(scope, value) for scope, value in zip(fields[::2], fields[1::2], strict=True) if scope != b"command"]
    if not said:
        return repository.common_dir / "hooks" / "pre-commit"
    directory = (repository.path / os.fsdecode(said[-1][1])).resolve()
    inside = directory.is_relative_to(repository.path.resolve()) or directory.is_relative_to(repository.common_dir)
    if not inside:
        raise RefusedError(
            f"hooks of this repository lie in {str(directory)!r}, where others use them too",
            code="hook_shared",
            hint=f"call `chargehand {_CALL}` from the hook there, or set core.hooksPath for this repository",
        )
    return directory / "pre-commit"


def _read(path: Path) -> str | None:
    if not os.path.lexists(path):
        return None
    try:
        return path.read_text(errors="replace")
    except OSError:  # a link that leads nowhere, a directory: somebody's all the same
        return ""
