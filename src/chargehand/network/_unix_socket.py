"""Sockets of the host that a sandbox is shown: where its mirror and its proxy listen."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from chargehand.core.errors import InfrastructureError


def bound_socket(path: Path) -> socket.socket:
    """Return a listening socket at `path`, however long that is; a stale one there is replaced.

    Any user may connect: the sandbox runs under another uid, and the directory is what keeps others out.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if path.is_socket():
                path.unlink()
            # The kernel takes 107 bytes; a path by descriptor is short wherever the state directory lies.
            listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
        path.chmod(0o666)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def cannot_listen(path: Path, error: OSError, *, code: str) -> InfrastructureError:
    """Return the error for a socket that could not be made."""
    return InfrastructureError(
        f"cannot listen on {str(path)!r}: {error.strerror or error}",
        code=code,
        hint="its directory must exist and be writable, and the name must be free",
    )
