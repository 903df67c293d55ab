"""Reachability in directed graphs of states."""

from __future__ import annotations

from chargehand.decisions.processes.mdp import Booleans


def find_reaching(edges: Booleans, targets: Booleans) -> Booleans:
    """Return the targets and the states from which a path leads to one; edges have the shape (S, S)."""
    found = targets
    while True:
        grown = found | (edges & found).any(axis=1)
        if (grown == found).all():
            return grown
        found = grown
