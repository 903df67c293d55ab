"""Logs of long-lived commands: text or JSON lines, without secrets, in files of limited size."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chargehand.core.config import Config
from chargehand.core.errors import ChargehandError
from chargehand.core.own_config import LogConfig
from chargehand.core.redaction import Redactor, current_log_fields
from chargehand.core.text import shown_path
from chargehand.reports.known_secrets import KnownSecrets
from chargehand.reports.reading import StateReader

# For a log file that we open ourselves; the previous part is kept next to it.
LARGEST_FILE = 10 << 20
_STDERR = 2
# Depth of exception causes: two exceptions may name each other.
_DEEPEST = 8
# Messages of other libraries below this level may contain full addresses and bodies.
_FOREIGN = logging.WARNING


def set_up_logs() -> None:
    """Let this process log to stderr as the user's configuration says; log any problem with the configuration.

    A worker's stderr may be `logs/worker.log`, which is truncated when it grows too large.
    """
    problem: ChargehandError | None = None
    config = LogConfig()
    # From the root directory: only the user's own configuration counts, and the current directory may be gone.
    with StateReader.open(cwd=Path("/")) as reader:
        home = reader.home
        secrets = KnownSecrets(reader, Config())
        try:
            # An administrator may have to fix it: the command itself reports the problem when it needs the value.
            found = reader.user_configuration().config
            secrets = KnownSecrets(reader, found)
            secrets.read()
            config = found.log
        except ChargehandError as error:
            problem = error
    handler = _StderrHandler(home / "logs" / "worker.log")
    formatter = JsonFormatter if config.format == "json" else TextFormatter
    handler.setFormatter(formatter(secrets))
    logging.basicConfig(level=_FOREIGN, handlers=[handler])
    logging.getLogger("chargehand").setLevel(config.level.upper())
    if problem is not None:
        logging.getLogger("chargehand").warning("logging as by default: %s", problem)


class TextFormatter(logging.Formatter):
    """One line for people: time, level, logger, message and context; then any traceback."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        fields = _fields(record)
        shown = f" [{' '.join(f'{name}={value}' for name, value in fields.items())}]" if fields else ""
        # Made safe: a message may quote an agent, and a line break in it would forge a line.
        head = shown_path(f"{record.name}: {record.getMessage()}{shown}")
        lines = [f"{_time(record)} {record.levelname} {head}"]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return self._redactor.text("\n".join(lines))


class JsonFormatter(logging.Formatter):
    """One JSON object per line; an exception is an object with its causes."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
            **_fields(record),
        }
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line["exception"] = _describe(error)
        return json.dumps(self._redactor.tree(line), default=str)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return a record's extra fields: the current log context and the record's own `fields`."""
    return {**current_log_fields(), **getattr(record, "fields", {})}


def _describe(error: BaseException, *, deep: int = _DEEPEST) -> dict[str, Any]:
    """Return an exception and its causes as data, as a traceback shows them."""
    found: dict[str, Any] = {
        "type": type(error).__name__,
        "message": str(error),
        "frames": [
            f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
        ],
    }
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and deep:
        found["cause"] = _describe(before, deep=deep - 1)
    return found


class _StderrHandler(logging.StreamHandler[Any]):
    """Writes to stderr; if that is the worker's log file, truncates it before it grows too large."""

    def __init__(self, path: Path) -> None:
        super().__init__(sys.stderr)
        self._path = path
        trim_log(path, _STDERR)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        trim_log(self._path, _STDERR)
        super().emit(record)


def trim_log(path: Path, descriptor: int, *, largest: int = LARGEST_FILE) -> None:
    """Move the content of the log file at `path` to `.1` if `descriptor` is open on it and it is too large.

    The file itself remains: sandboxes and a starting worker hold it open, with its lock.
    """
    with contextlib.suppress(OSError):  # it is missing, or its disk is full: the next line tries again
        size = os.fstat(descriptor).st_size
        if size <= largest or not os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return
        with path.with_suffix(".lock").open("a") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            # Another worker may have truncated it meanwhile.
            if os.fstat(descriptor).st_size > largest:
                shutil.copyfile(path, path.with_suffix(".log.1"))
                # All writers append: they continue at its new end.
                os.ftruncate(descriptor, 0)
