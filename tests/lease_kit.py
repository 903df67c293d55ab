"""A worker process with a lease: `python -m tests.lease_kit URL HOME TTL BEAT`.

It prints `joined ID`, `lost` when its lease is lost, and `renewed True|False` for every line that it reads; it
leaves when its stdin closes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from chargehand.durable.leases import LeasedWorkers
from chargehand.durable.workers import LocalWorkers


def main(url: str, home: Path, ttl: float, beat: float) -> None:
    """Join, renew the lease for each line of stdin, and leave."""
    workers = LeasedWorkers(url, LocalWorkers(home, version="1"), ttl=ttl, beat=beat)
    membership = workers.join("worker", on_lost=lambda: print("lost", flush=True))
    print(f"joined {membership.id}", flush=True)
    for _ in sys.stdin:
        print(f"renewed {workers.renew(membership.id)}", flush=True)
    membership.leave()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
