"""The table [secrets] of the user's own file, as it is at each moment."""

from __future__ import annotations

from pathlib import Path

from chargehand.configuration.locations import load_user_file
from chargehand.core.own_config import SecretsConfig


class SecretSettings:
    """Returns [secrets] of the file at `path`, which is read again when it has changed. Raises `ConfigError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[object, SecretsConfig] | None = None

    def __call__(self) -> SecretsConfig:
        """Return the table as it is now."""
        try:
            status = self._path.stat()
            stamp: object = (status.st_ino, status.st_mtime_ns, status.st_size)
        except OSError:
            stamp = None
        if self._known is None or self._known[0] != stamp:
            self._known = (stamp, self._read())
        return self._known[1]

    def _read(self) -> SecretsConfig:
        file = load_user_file(self._path)
        # Without the table, secrets work even if the rest of the file is wrong.
        if file is None or "secrets" not in file.text:
            return SecretsConfig()
        from chargehand.configuration.resolve import resolve

        return resolve(user=file).config.secrets
