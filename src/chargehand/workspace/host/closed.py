"""Count the bytes in directories that an agent made unreadable for their owner, an unprivileged user.

Their mode stays unchanged: a test may have set it and need it. The owner can read them as root of a new user
namespace. Only a single-threaded process can enter one, so this file is also run as a program.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

_NEW_USER = 0x10000000
_SECONDS = 60


def closed_bytes(places: Sequence[str], *, stop: tuple[int, int]) -> tuple[int, int]:
    """Return the number of entries below `places` and their size in bytes; stop early above a limit in `stop`.

    Return zeros if the system offers no user namespaces.
    """
    names = b"\0".join(map(os.fsencode, places))
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", __file__, *map(str, stop)],
            input=names,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0, 0
    counted = done.stdout.split()
    return (int(counted[0]), int(counted[1])) if done.returncode == 0 and len(counted) == 2 else (0, 0)


def _main() -> None:
    import ctypes

    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_USER):
        raise OSError(ctypes.get_errno(), "no user namespace")
    # The kernel gives root access to a directory only if the namespace maps both its user and its group.
    for name, text in (("uid_map", f"0 {user} 1"), ("setgroups", "deny"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as setting:
            setting.write(text)
    most = int(sys.argv[1]), int(sys.argv[2])
    entries = size = 0
    places = sys.stdin.buffer.read().split(b"\0")
    while places and entries <= most[0] and size <= most[1]:
        with suppress(OSError):  # it vanished and counts as nothing
            for entry in os.scandir(places.pop()):
                if entry.is_dir(follow_symlinks=False):
                    places.append(entry.path)
                size += entry.stat(follow_symlinks=False).st_blocks * 512
                entries += 1
                if entries > most[0] or size > most[1]:
                    break
    sys.stdout.write(f"{entries} {size}\n")


if __name__ == "__main__":
    _main()
