"""Public addresses in the test's network namespaces: reached without a grant, except the machine's own."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAR, OWN = "93.184.215.34", "93.184.215.14"
_HOST = f"""
while ! ip link show v1 >/dev/null 2>&1; do sleep 0.05; done
ip addr add {FAR}/24 dev v1 && ip link set v1 up
exec {sys.executable} -m http.server 80 --bind {FAR} --directory "$1" >/dev/null 2>&1
"""
_WORLD = f"""
set -e
ip link set lo up
unshare -n sh -c '{_HOST}' sh "$1" &
host=$!
trap 'kill $host' EXIT
sleep 0.3
ip link add v0 type veth peer name v1 netns $host
ip addr add {OWN}/24 dev v0
ip link set v0 up
{sys.executable} -m tests.integration.test_egress_namespaces "$1"
"""


def test_a_public_address_is_reachable_except_those_of_the_machine(tmp_path: Path) -> None:
    if not (shutil.which("ip") and shutil.which("unshare")):
        if os.environ.get("CI") == "true":
            pytest.fail("needs iproute2 and unshare")
        pytest.skip("needs iproute2 and unshare")
    (tmp_path / "file").write_text("far away")
    argv = ["unshare", "-rn", "sh", "-c", _WORLD, "sh", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode and "unshare" in done.stderr and os.environ.get("CI") != "true":
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    far, own = done.stdout.splitlines()
    assert far == "200 far away"
    assert own == f"403 mine.test:80 leads to {OWN} (this machine)"


async def _asked(place: Path) -> None:
    from tests.egress_kit import Names, get, proxy

    names = Names(far_test=[[FAR]], mine_test=[[OWN]])
    async with proxy(place, "far.test", "mine.test", names=names) as out:
        for _ in range(100):  # until the host listens
            answer = await out.say(get("far.test", "/file"))
            if b" 502 " not in answer[:20]:
                break
        print(answer.split(b" ")[1].decode(), answer.rpartition(b"\r\n")[2].decode())
        await out.say(get("mine.test"))
        while not any(one.host == "mine.test" for one in out.log):
            await asyncio.sleep(0.01)
        print(out.log[-1].status, out.log[-1].reason)


if __name__ == "__main__":
    asyncio.run(_asked(Path(sys.argv[1])))
