"""`python -m chargehand`, and the script `chargehand`."""

# The built-in half of `signal`, whose own imports take longer than all that comes before the first handler.
import _signal  # type: ignore[import-not-found]  # the types of the standard library leave it out
import os

_INTERRUPTED = 130
# Objects that may be new before rings among them are looked for; Python's own number is 700.
_NEW_OBJECTS = 20_000


def _leave_on_signals() -> None:
    """Let SIGINT and SIGTERM end the process at once: before and after its work there is nothing to lose."""
    for number in (_signal.SIGINT, _signal.SIGTERM):
        _signal.signal(number, lambda *_: os._exit(_INTERRUPTED))


# As this is imported, since nobody imports it but to run it: what comes next takes the time of a key press.
_leave_on_signals()
import sys  # noqa: E402
from typing import NoReturn  # noqa: E402


def main() -> NoReturn:
    """Run the command line, then end the process without taking its modules apart.

    The interpreter spends 0.15 s of a mission's second on freeing what the kernel frees at once. What it does
    before that is done here too: threads are waited for, exit handlers run, both streams are flushed. Ctrl-C
    ends it without a traceback from its first import to its last exit handler.
    """
    # Imported here: a person may press Ctrl-C while that takes its time.
    import atexit
    import contextlib
    import gc
    import threading

    # Most of what a program makes at its start stays: looking through it 130 times was a tenth of a command.
    gc.set_threshold(_NEW_OBJECTS, 10, 10)
    from chargehand.cli.main import main as run_command_line

    code: object = 1
    try:
        try:
            run_command_line()
        except SystemExit as ended:
            code = ended.code
        finally:
            _leave_on_signals()
    except KeyboardInterrupt:  # before the first line of the command, or after its last
        code = _INTERRUPTED
        _leave_on_signals()
    # Private, as no public call does either: executors end their threads only when the first tells them to, so
    # joining all threads would wait for ever. The types of `threading` leave it out.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None where the caller closed it
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
