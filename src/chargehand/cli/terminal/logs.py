"""How long-lived commands log: lines for people or JSON, without secrets, in files that do not grow for ever."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chargehand.app.reading import StateReader
from chargehand.core.config import Config, LogConfig
from chargehand.core.errors import ChargehandError
from chargehand.core.log_fields import current_log_fields
from chargehand.core.text import shown_path
from chargehand.models.redaction import Redactor

# Of a log file that we open ourselves; the part before is kept beside it.
LARGEST_FILE = 10 << 20
_STDERR = 2
# Of what an exception came from: two may name each other.
_DEEPEST = 8
_SECRET_NAME = re.compile(r"[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD)")
# What other libraries log below this may hold whole addresses and bodies.
_FOREIGN = logging.WARNING


def set_up_logs() -> None:
    """Let this process log to stderr as the user's configuration says; what is wrong with it is logged.

    A worker's stderr may be `logs/worker.log`: that is cut once it is too large.
    """
    problem: ChargehandError | None = None
    config, secrets = LogConfig(), dict[str, str]()
    # Wherever it was started: only the user's own configuration counts, and the directory may be gone.
    with StateReader.open(cwd=Path("/")) as reader:
        home = reader.home
        try:
            # It may be what somebody else has to mend: the command itself says so, where it needs it.
            found = reader.user_configuration().config
            config, secrets = found.log, known_secrets(reader, found)
        except ChargehandError as error:
            problem = error
    handler = _StderrHandler(home / "logs" / "worker.log")
    formatter = JsonFormatter if config.format == "json" else TextFormatter
    handler.setFormatter(formatter(Redactor(secrets)))
    logging.basicConfig(level=_FOREIGN, handlers=[handler])
    logging.getLogger("chargehand").setLevel(config.level.upper())
    if problem is not None:
        logging.getLogger("chargehand").warning("logging as by default: %s", problem)


def known_secrets(reader: StateReader, config: Config) -> dict[str, str]:
    """Return the secrets that are stored, and those that the configuration or the environment names as such."""
    names = {each.name for each in reader.credentials.names()}
    names |= {model.key for model in config.models.values() if model.key is not None}
    names |= {name for name in reader.environ if _SECRET_NAME.fullmatch(name)}
    found = {name: reader.environ.get(name) or reader.credentials.get(name) for name in sorted(names)}
    return {name: value for name, value in found.items() if value}


class TextFormatter(logging.Formatter):
    """One line for people: time, level, logger, message, where it was; then a traceback, if there is one."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        fields = _fields(record)
        shown = f" [{' '.join(f'{name}={value}' for name, value in fields.items())}]" if fields else ""
        # Not as it is: a message may quote an agent, and a line break in it would forge a line.
        head = shown_path(f"{record.name}: {record.getMessage()}{shown}")
        lines = [f"{_time(record)} {record.levelname} {head}"]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return self._redactor.text("\n".join(lines))


class JsonFormatter(logging.Formatter):
    """One JSON object on a line; an exception is an object, too, with its causes."""

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
    """Return what a record says beside its message: where it was logged, and what it brings along as `fields`."""
    return {**current_log_fields(), **getattr(record, "fields", {})}


def _describe(error: BaseException, *, deep: int = _DEEPEST) -> dict[str, Any]:
    """Return an exception as data, with the one that it came from, as a traceback shows it."""
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
    """Writes to stderr; where that is the worker's log file, it is cut before it grows too large."""

    def __init__(self, path: Path) -> None:
        super().__init__(sys.stderr)
        self._path = path
        trim_log(path, _STDERR)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        trim_log(self._path, _STDERR)
        super().emit(record)


def trim_log(path: Path, descriptor: int, *, largest: int = LARGEST_FILE) -> None:
    """Move the content of the log file at `path`, if `descriptor` is open on it and it is too large, to `.1`.

    The file stays the same one: sandboxes and a worker that is just being started hold it open, and its lock.
    """
    with contextlib.suppress(OSError):  # there is none, or its disk is full: the next line tries again
        size = os.fstat(descriptor).st_size
        if size <= largest or not os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return
        with path.with_suffix(".lock").open("a") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            # Another worker may have done it while this one waited.
            if os.fstat(descriptor).st_size > largest:
                shutil.copyfile(path, path.with_suffix(".log.1"))
                # All who write to it append: they go on at its new end.
                os.ftruncate(descriptor, 0)
