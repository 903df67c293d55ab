"""`chargehand project hook …`: the pre-commit hook that checks the format of what is staged."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from chargehand.cli.output import Output
from chargehand.core.text import shown_path
from chargehand.workspace.checkout import install_hook, remove_hook
from chargehand.workspace.repository import find_repository


def install(out: Output, *, repo: Path | None) -> int:
    """Install the pre-commit hook of a repository."""
    program = shutil.which("chargehand") or str(Path(sys.executable).with_name("chargehand"))
    hook = install_hook(find_repository(repo or Path.cwd()), Path(program).absolute())
    out.document({"path": str(hook.path), "changed": hook.changed})
    out.text(f"{'wrote' if hook.changed else 'is there already:'} {shown_path(str(hook.path))}")
    return 0


def remove(out: Output, *, repo: Path | None) -> int:
    """Remove the pre-commit hook of a repository."""
    hook = remove_hook(find_repository(repo or Path.cwd()))
    out.document({"path": str(hook.path), "changed": hook.changed})
    out.text(f"{'removed' if hook.changed else 'there is none at'} {shown_path(str(hook.path))}")
    return 0
