"""Finds where the branch that a mission started from stands now."""

from __future__ import annotations

from chargehand.core.errors import RepositoryError
from chargehand.core.records import Base
from chargehand.workspace._depot import Depot
from chargehand.workspace._history import read_ref


def moved_base(depot: Depot, base: Base) -> Base | None:
    """Return the commit that the branch of `base` is at now, also in the depot, where it went on from there.

    `None` where it is where it was, is gone, or goes on from somewhere else (it was reset or rewritten). The
    user's repository is only read.
    """
    if base.branch is None:
        return None
    ref = f"refs/heads/{base.branch}"
    if read_ref(depot.repository.git, ref) in (None, base.commit):
        return None
    try:
        tip = depot.resolve_base(ref)
    except RepositoryError:  # it went away, or cannot be read whole: nothing to go on from
        return None
    follows = depot.git.run("merge-base", "--is-ancestor", base.commit, tip.commit).code == 0
    return tip if follows and tip.commit != base.commit else None
