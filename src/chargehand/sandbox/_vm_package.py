"""Reads Debian packages without dpkg: an `ar` archive that holds a tar archive; see deb(5)."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

from chargehand.core.errors import TierUnavailableError

_MAGIC = b"!<arch>\n"
_HEADER = 60
_END = b"`\n"
_LARGEST_MEMBER = 512 << 20
_COMPRESSIONS = ("data.tar", "data.tar.gz", "data.tar.xz", "data.tar.bz2")


def read_package(path: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Return the content of the plain files whose name without a leading `./` is `wanted`.

    Raises `TierUnavailableError` that names the file for what is no Debian package.
    """
    try:
        return _files(_data(path), wanted)
    except (OSError, ValueError, EOFError, tarfile.TarError) as error:
        raise TierUnavailableError(
            f"{str(path)!r} is no Debian package: {error}",
            hint="give the .deb file of a kernel or busybox-static",
        ) from error


def _data(path: Path) -> bytes:
    """Return the member that holds the files; raises `ValueError`, `OSError`."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it does not begin as one")
        seen = []
        while header := file.read(_HEADER):
            if len(header) < _HEADER or header[58:] != _END:
                raise ValueError("the header of a member is damaged")
            name, size = header[:16].decode("ascii").strip().rstrip("/"), int(header[48:58])
            if not 0 <= size <= _LARGEST_MEMBER:
                raise ValueError(f"a member of {size} bytes")
            if name in _COMPRESSIONS:
                data = file.read(size)
                if len(data) < size:
                    raise ValueError(f"{name} is cut off")
                return data
            seen.append(name)
            file.seek(size + size % 2, io.SEEK_CUR)
        raise ValueError(f"it has none of {', '.join(_COMPRESSIONS)} but {', '.join(seen) or 'nothing'}")


def _files(data: bytes, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:*") as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if member.isfile() and wanted(name):
                file = archive.extractfile(member)
                found[name] = file.read(_LARGEST_MEMBER) if file else b""
    return found
