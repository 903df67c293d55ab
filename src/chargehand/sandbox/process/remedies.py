"""Maps a failed start of a sandbox to the exact command that remedies it."""

from __future__ import annotations

import shutil
from pathlib import Path

from chargehand.core.errors import InfrastructureError, TierUnavailableError

_INSTALL = {
    "apt-get": "apt-get install bubblewrap",
    "dnf": "dnf install bubblewrap",
    "pacman": "pacman -S bubblewrap",
    "zypper": "zypper install bubblewrap",
    "apk": "apk add bubblewrap",
}
SETTINGS = Path("/proc/sys")
_SYSCTLS = (
    ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", None),
)
# Files that docker and podman put into their containers.
CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))
_IN_CONTAINER = (
    "this container may not make namespaces; start it with `docker run --cap-add SYS_ADMIN --security-opt "
    "seccomp=unconfined --security-opt systempaths=unconfined` (podman: --security-opt unmask=ALL in place of the "
    "last; on a host with AppArmor also --security-opt apparmor=unconfined). Its programs then reach more of the "
    "host's kernel: use a machine or container for this alone"
)
# The launcher's text; bubblewrap uses the same words for a limit of namespaces.
_DISK_FULL = "[Errno 28]"
_APPARMOR = (
    "load a profile that lets bwrap make user namespaces (apparmor's bwrap-userns-restrict), or: "
    "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
)


def tier_unavailable(message: str) -> TierUnavailableError | InfrastructureError:
    """Return the error for a sandbox that did not start, with its remedy as hint; `no_space` on a full disk."""
    if _DISK_FULL in message:
        return InfrastructureError(
            "no space left on the disk while a sandbox was made",
            code="no_space",
            hint="free some space, or run 'chargehand gc'",
        )
    return TierUnavailableError(
        f"the process sandbox cannot start: {message or 'no reason given'}", hint=remedy_for(message)
    )


def remedy_for(message: str) -> str:
    """Return the command, profile or setting that lets the sandbox start."""
    if "bwrap: not found" in message:
        tools = [command for tool, command in _INSTALL.items() if shutil.which(tool)]
        return f"install bubblewrap: {tools[0] if tools else 'with your package manager'}"
    # Settings first: bubblewrap's message is the same for each of them.
    for name, bad, command in _SYSCTLS:
        setting = SETTINGS / name  # not every kernel has each of them
        if setting.is_file() and setting.read_text().strip() == bad:
            return command or _APPARMOR
    if _DISK_FULL in message:
        return "free disk space in the state directory (chargehand gc --dry-run shows its content)"
    if "overlay" in message:
        return (
            'set project.strategy = "direct", which needs no overlay, or use a file system overlayfs can stack on'
        )
    # Last: a container's own settings look like the host's, and only the launcher's refusal tells the difference.
    refused = "not permitted" in message or "No permissions" in message
    if refused and any(mark.exists() for mark in CONTAINER_MARKS):
        return _IN_CONTAINER
    return "use --sandbox container or --sandbox vm: `chargehand doctor` says which of them works"
