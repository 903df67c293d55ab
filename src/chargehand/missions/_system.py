"""What the operating system refuses, as errors a person can act on."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from chargehand.core.errors import InfrastructureError

_SPACE = ("no_space", "free some space, or run 'chargehand gc'")
_ACCESS = ("not_permitted", "make it readable and writable for you, or set CHARGEHAND_HOME to another directory")
_KNOWN = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.EROFS: _ACCESS,
    errno.EIO: ("disk_failed", "check the disk; 'chargehand audit verify' tells whether the log is whole"),
    errno.EMFILE: ("too_many_files", "raise the limit of open files (ulimit -n)"),
    errno.ENFILE: ("too_many_files", "the whole machine has too many open files"),
    errno.ENOMEM: ("no_memory", "free some memory"),
}


@contextmanager
def system_errors() -> Iterator[None]:
    """Turn what the machine lacks (space, permission, memory …) into `InfrastructureError`; the rest passes."""
    try:
        yield
    except OSError as error:
        code, hint = _KNOWN.get(error.errno or 0, ("", ""))
        if not code:
            raise
        at = f" at {error.filename!r}" if error.filename is not None else ""
        raise InfrastructureError(f"{error.strerror}{at}", code=code, hint=hint) from error
