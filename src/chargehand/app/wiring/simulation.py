"""A plan's simulation in a separate process, with limits of memory and time, so that callers stay responsive."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from chargehand.core.codec import decode_as
from chargehand.core.errors import InfrastructureError
from chargehand.decisions.forecast_records import PlanForecast, PlanProspect

_SECONDS = 20.0
_MEMORY_BYTES = 2 << 30
# Whatever else runs comes first, and after so many seconds of processor time much more so: a long simulation would
# delay a busy server. A usual one ends before that.
_NICE, _LONG, _NICEST = 10, 1.0, 19
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class SimulationOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A plan to simulate, the seed that makes the result repeatable, and the most seconds of processor time."""

    prospect: PlanProspect
    seed: int
    samples: int | None
    seconds: float


def simulate_capped(
    prospect: PlanProspect, seed: int, *, samples: int | None = None, seconds: float = _SECONDS
) -> PlanForecast:
    """Simulate a plan in a new process, which is killed after so many seconds and if the caller is interrupted.

    `samples` is as in `simulate_plan`. The process has a low priority, and the lowest after a second.
    Raises `InfrastructureError` (`forecast_failed`) if it reaches a limit or fails.
    """
    order = msgspec.json.encode(SimulationOrder(prospect=prospect, seed=seed, samples=samples, seconds=seconds))
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", __name__],
        env=_ONE_THREAD,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        try:
            output, errors = process.communicate(order, timeout=seconds)
        except subprocess.TimeoutExpired:
            message = f"the simulation of the plan took longer than {seconds:g} s"
            raise InfrastructureError(message, code="forecast_failed") from None
        finally:
            process.kill()
            process.wait()  # after an interrupt `Popen` would not
    if process.returncode != 0:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2][:200]
        message = f"the simulation of the plan ended with {process.returncode}: {last or 'no message'}"
        raise InfrastructureError(message, code="forecast_failed")
    return decode_as(output, PlanForecast)


def main() -> None:
    """Read an order from stdin, and write the forecast to stdout."""
    _lower_priority(_NICE)
    signal.signal(signal.SIGPROF, lambda *_: _lower_priority(_NICEST))
    signal.setitimer(signal.ITIMER_PROF, _LONG)
    order = decode_as(sys.stdin.buffer.read(), SimulationOrder)
    limits = {"AS": _MEMORY_BYTES, "CPU": math.ceil(order.seconds), "CORE": 0, "FSIZE": 0}
    for name, value in limits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
    from chargehand.decisions.plan_simulation import simulate_plan

    made = simulate_plan(order.prospect, order.seed, order.samples)
    sys.stdout.buffer.write(msgspec.json.encode(made))


def _lower_priority(nice: int) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    if os.getsid(0) == os.getpid():
        # Linux may share the processor between sessions first: then a priority counts within its session only.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))


if __name__ == "__main__":
    main()
