"""Who holds a mission: a locked file says it is alive, its socket takes orders for it.

A lock that nobody holds belongs to a dead process, at once and without time-outs; see flock(2).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from chargehand.core import RefusedError

_ORDERS = ("cancel",)


class Liveness:
    """The locks of all missions of one state directory."""

    def __init__(self, home: Path) -> None:
        self._directory = home / "running"
        self._directory.mkdir(parents=True, exist_ok=True)

    def _lock_path(self, mission: str) -> Path:
        return self._directory / f"{mission}.lock"

    def _socket_path(self, mission: str) -> Path:
        return self._directory / f"{mission}.sock"

    @contextlib.asynccontextmanager
    async def hold(self, mission: str, *, on_cancel: Callable[[], None]) -> AsyncIterator[None]:
        """Hold the mission while the block runs, and take orders for it.

        Raises `RefusedError` when another process holds it.
        """
        with self._locked(mission):
            server = await self._serve(mission, on_cancel)
            try:
                yield
            finally:
                server.close()
                self._socket_path(mission).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self, mission: str) -> Iterator[None]:
        path = self._lock_path(mission)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.stat(path)  # gone when the holder before us removed it between our open and our lock
        except OSError:
            os.close(fd)
            raise RefusedError(
                f"mission {mission!r} is held by another process",
                code="mission_held",
                hint=f"chargehand mission cancel {mission} stops it",
            ) from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(fd)

    def live(self, mission: str) -> bool:
        """Tell whether a living process holds the mission right now."""
        try:
            fd = os.open(self._lock_path(mission), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(fd)
        return False

    def abandoned(self) -> tuple[str, ...]:
        """Return the missions whose process died while it held them."""
        names = (path.stem for path in self._directory.glob("*.lock"))
        return tuple(sorted(name for name in names if not self.live(name)))

    def forget(self, mission: str) -> None:
        """Remove what a dead process left of its hold."""
        self._lock_path(mission).unlink(missing_ok=True)
        self._socket_path(mission).unlink(missing_ok=True)

    async def _serve(self, mission: str, on_cancel: Callable[[], None]) -> asyncio.AbstractServer:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            order = (await reader.readline()).decode(errors="replace").strip()
            writer.write(b"ok\n" if order in _ORDERS else b"unknown order\n")
            writer.close()
            if order == "cancel":
                on_cancel()

        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = self._socket_path(mission)
        path.unlink(missing_ok=True)
        _at_path(sock.bind, path)
        return await asyncio.start_unix_server(answer, sock=sock)

    def order(self, mission: str, order: str) -> bool:
        """Give an order to the process that holds the mission; `False` where none listens."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(5)
            try:
                _at_path(sock.connect, self._socket_path(mission))
                sock.sendall(f"{order}\n".encode())
                return sock.recv(64) == b"ok\n"
            except OSError:
                return False


def _at_path(use: Callable[[str], None], path: Path) -> None:
    """Use a socket path of any length: the kernel allows 107 bytes, so go through the directory's descriptor."""
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{fd}/{path.name}")
    finally:
        os.close(fd)
