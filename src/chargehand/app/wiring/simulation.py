"""A plan's simulation in a process of its own, with limits of memory and time, so that callers stay responsive."""

from __future__ import annotations

import resource
import subprocess
import sys

import msgspec

from chargehand.core.codec import decode_as
from chargehand.core.errors import InfrastructureError
from chargehand.decisions.forecast_records import PlanForecast, PlanProspect

_SECONDS = 20.0
_MEMORY_BYTES = 2 << 30
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class SimulationOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A plan to simulate, and the seed that makes the result repeatable."""

    prospect: PlanProspect
    seed: int


def simulate_capped(prospect: PlanProspect, seed: int, *, seconds: float = _SECONDS) -> PlanForecast:
    """Simulate a plan in a new process, which is killed after so many seconds and if the caller is interrupted.

    Raises `InfrastructureError` (`forecast_failed`) if it reaches a limit or fails.
    """
    order = msgspec.json.encode(SimulationOrder(prospect=prospect, seed=seed))
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
            process.wait()  # which the `with` leaves out after an interrupt
    if process.returncode != 0:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2][:200]
        message = f"the simulation of the plan ended with {process.returncode}: {last or 'no message'}"
        raise InfrastructureError(message, code="forecast_failed")
    return decode_as(output, PlanForecast)


def main() -> None:
    """Read an order from stdin, and write the forecast to stdout."""
    limits = {"AS": _MEMORY_BYTES, "CPU": int(_SECONDS), "CORE": 0, "FSIZE": 0}
    for name, value in limits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
    from chargehand.decisions.plan_simulation import simulate_plan

    order = decode_as(sys.stdin.buffer.read(), SimulationOrder)
    sys.stdout.buffer.write(msgspec.json.encode(simulate_plan(order.prospect, order.seed)))


if __name__ == "__main__":
    main()
