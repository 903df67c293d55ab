"""A whole mission that changes one line and whose only check is `true`, as a process of its own."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from benchmarks.measure import Result, Side, compare, settle, spend
from benchmarks.repositories import ENVIRONMENT, git, paths
from benchmarks.shop import MANY, Opened, Shop

AIM = 0.6
_PROGRAM = Path(sys.executable).with_name("chargehand")
_numbers = count(1)
_BY_HAND = """
set -e
git worktree add --quiet -b "$1" "$2" main
cd "$2"
echo "changed by $1" >> "$3"
true
git commit --quiet --all -m "$1"
"""


async def run(shop: Shop, opened: Opened, *, rounds: int) -> list[Result]:
    """Compare with the same by hand: worktree, change, check, commit; its removal is left out.

    The start of the interpreter is taken off, as it is no part of the work; base and probe are there.
    """
    path = paths(shop.files)[5]
    target = shop.place / "by-hand"
    environ = shop.environ

    async def ours() -> float:
        settle()
        start = min(spend([sys.executable, "-c", "pass"], environment=environ).wall for _ in range(3))
        agent = f"command:sh -c 'echo changed by {next(_numbers)} >> {path}'"
        argv = [str(_PROGRAM), "run", "change one line", "--agent", agent, "--only-check", "true", "--json"]
        return spend(argv, cwd=shop.repository, environment=environ).wall - start

    async def by_hand() -> float:
        settle()
        branch = f"by-hand-{next(_numbers)}"
        argv = ["sh", "-c", _BY_HAND, "sh", branch, str(target), path]
        spent = spend(argv, cwd=shop.repository, environment=ENVIRONMENT)
        git(shop.repository, "worktree", "remove", str(target))
        git(shop.repository, "branch", "--quiet", "-D", branch)
        return spent.wall

    sides = [Side(name="chargehand run", sample=ours, repeat=3)]
    if shop.peers:
        most = None if shop.files < MANY else 2
        sides.append(Side(name="git worktree, commit, by hand", sample=by_hand, most=most))
    result = await compare(
        "mission", "one line, check `true`", sides, rounds=rounds, files=shop.files, aim=AIM, seconds=90
    )
    return [result]
