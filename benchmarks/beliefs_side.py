"""One engine of belief networks, as a process: loads a network, asks it, and prints times and posteriors.

It runs in the peer's environment too, which lacks the product.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Posteriors = dict[str, list[float]]
"""By node, the probabilities of its states in the order of the file."""


def main() -> None:
    """Print one JSON object: seconds of loading, of all posteriors from nothing, of all and one once compiled."""
    kind, network, given, repeat = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])
    made = {"chargehand": _chargehand, "pyagrum": _pyagrum}[kind]
    load, compile_it, states = made(network)
    loaded = _time(load, repeat)
    first = _time(lambda: compile_it()(given, list(states)), repeat)
    ask = compile_it()
    every = _time(lambda: ask(given, list(states)), repeat)
    one = _time(lambda: ask(given, [min(states)]), repeat)
    times = {"load": loaded, "compiled and all": first, "all": every, "one": one}
    print(json.dumps({"times": times, "posteriors": ask(given, list(states))}))


def _time(work: Callable[[], Any], repeat: int) -> list[float]:
    taken = []
    for _ in range(repeat):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return taken


Asking = Callable[[Mapping[str, str], Sequence[str]], Posteriors]
Made = tuple[Callable[[], Any], Callable[[], Asking], dict[str, list[str]]]


def _chargehand(place: Path) -> Made:
    from chargehand.decisions.beliefs.formats import read_network
    from chargehand.decisions.beliefs.inference import JunctionTree

    network = read_network(place.read_bytes())
    states = {node.name: list(node.states) for node in network.nodes}

    def compile_it() -> Asking:
        tree = JunctionTree(network)

        def ask(given: Mapping[str, str], targets: Sequence[str]) -> Posteriors:
            evidence = {name: [float(each == state) for each in states[name]] for name, state in given.items()}
            beliefs = tree.calibrate(evidence)
            return {name: beliefs.joint([name]).tolist() for name in targets}

        return ask

    return lambda: read_network(place.read_bytes()), compile_it, states


def _pyagrum(place: Path) -> Made:
    import pyagrum

    network = pyagrum.loadBN(str(place))
    states = {name: list(network.variableFromName(name).labels()) for name in network.names()}

    def compile_it() -> Asking:
        engine = pyagrum.LazyPropagation(network)

        def ask(given: Mapping[str, str], targets: Sequence[str]) -> Posteriors:
            # Without this it would return the kept posteriors of the call before.
            engine.eraseAllEvidence()
            engine.setEvidence(dict(given))
            engine.eraseAllTargets()
            for name in targets:
                engine.addTarget(name)
            engine.makeInference()
            return {name: engine.posterior(name).tolist() for name in targets}

        return ask

    return lambda: pyagrum.loadBN(str(place)), compile_it, states


if __name__ == "__main__":
    main()
