"""Belief networks: reference posteriors, refused files, evidence, and learning."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chargehand.core.errors import NotFoundError, UsageError
from chargehand.decisions.beliefs.formats import read_cases, read_network, write_network
from chargehand.decisions.beliefs.inference import JunctionTree, QueryCache, infer
from chargehand.decisions.beliefs.learning import TABLE_WEIGHT, learn_cases
from chargehand.decisions.beliefs.network import BeliefNetwork, BeliefNode, build_network

DATA = Path(__file__).parents[3] / "shared/data"
needs_data = pytest.mark.skipif(
    not DATA.exists() and not os.environ.get("CI"), reason="the reference networks are not beside this checkout"
)
NETWORKS = ("asia", "cancer", "child", "earthquake", "insurance", "survey")
# The reference writes three of the names in child.bif without their punctuation.
RENAMED = {"lt5": "<5", "12p": "12+", "ge7_5": ">=7.5", "Asy_Patchy": "Asy/Patchy"}
RAIN = b"""{"note": "Rain wets the grass."}
{"node": "wet", "states": ["yes", "no"], "parents": ["rain"], "table": [[0.9, 0.1], [0.2, 0.8]]}
{"node": "rain", "states": ["yes", "no"], "counts": [[1, 3]], "note": "One day of four."}
"""


def rain() -> BeliefNetwork:
    return read_network(RAIN)


def chain(length: int) -> BeliefNetwork:
    """A chain of binary nodes, each of which copies its parent with probability 0.9."""
    first = BeliefNode(name="n0", states=("a", "b"), table=((0.5, 0.5),))
    rest = [
        BeliefNode(name=f"n{i}", states=("a", "b"), parents=(f"n{i - 1}",), table=((0.9, 0.1), (0.1, 0.9)))
        for i in range(1, length)
    ]
    return build_network([first, *rest])


@needs_data
@pytest.mark.parametrize("name", NETWORKS)
def test_posteriors_equal_the_reference(name: str) -> None:
    expected = json.loads((DATA / "bayes_reference.json").read_text())[name]
    network = read_network((DATA / f"bayes/{name}.bif").read_bytes())
    assert len(network.nodes) == expected["nodes"]
    assert sum(len(node.parents) for node in network.nodes) == expected["arcs"]
    assert expected["queries"]
    for query in expected["queries"]:
        evidence = {}
        for node, given in query["evidence"].items():
            states = network.node(node).states
            state = given if given in states else RENAMED[given]
            evidence[node] = [float(each == state) for each in states]
        posterior = infer(network, [query["var"]], evidence).probabilities
        for state, value in zip(network.node(query["var"]).states, posterior, strict=True):
            assert value == pytest.approx(query["posterior"][state], abs=1e-6)
    assert read_network(write_network(network)) == network


@needs_data
def test_all_posteriors_of_a_network_of_27_nodes_take_milliseconds() -> None:
    network = read_network((DATA / "bayes/insurance.bif").read_bytes())
    tree = JunctionTree(network)
    taken = []
    for _ in range(5):
        started = time.perf_counter()
        beliefs = tree.calibrate({"Age": [1.0, 0, 0]})
        assert all(beliefs.joint([node.name]).sum() == pytest.approx(1) for node in network.nodes)
        taken.append(time.perf_counter() - started)
    assert min(taken) < 0.02


def test_hard_soft_and_joint_queries_follow_from_the_tables() -> None:
    network = rain()
    assert infer(network, ["rain"], {}).probabilities.tolist() == pytest.approx([0.25, 0.75])
    hard = infer(network, ["rain"], {"wet": [1, 0]})
    assert hard.probabilities.tolist() == pytest.approx([0.225 / 0.375, 0.15 / 0.375])
    assert np.exp(hard.log_evidence) == pytest.approx(0.375)
    # A sensor that says wet with 0.8 if it is wet, and with 0.3 if not.
    soft = infer(network, ["rain"], {"wet": [0.8, 0.3]})
    yes, no = 0.25 * (0.9 * 0.8 + 0.1 * 0.3), 0.75 * (0.2 * 0.8 + 0.8 * 0.3)
    assert soft.probabilities[0] == pytest.approx(yes / (yes + no))
    assert infer(network, ["rain"], {"wet": [8, 3]}).probabilities == pytest.approx(soft.probabilities)
    joint = infer(network, ["rain", "wet"], {})
    assert joint.probabilities.ravel().tolist() == pytest.approx([0.225, 0.025, 0.15, 0.6])
    turned = infer(network, ["wet", "rain"], {})
    assert np.allclose(turned.probabilities, joint.probabilities.T)


def test_distant_nodes_can_be_queried_jointly() -> None:
    joint = infer(chain(30), ["n29", "n0"], {}).probabilities
    same = (1 + 0.8**29) / 4
    assert joint.tolist() == [pytest.approx([same, 0.5 - same]), pytest.approx([0.5 - same, same])]


def test_a_long_product_does_not_underflow() -> None:
    cause = BeliefNode(name="cause", states=("a", "b"), table=((0.5, 0.5),))
    effects = [
        BeliefNode(name=f"e{i}", states=("a", "b"), parents=("cause",), table=((0.1, 0.9), (0.2, 0.8)))
        for i in range(800)
    ]
    network = build_network([cause, *effects])
    evidence = {f"e{i}": (1.0, 0.0) for i in range(800)}
    posterior = infer(network, ["cause"], evidence)
    assert posterior.probabilities[1] == pytest.approx(1)
    assert posterior.log_evidence == pytest.approx(800 * np.log(0.2) + np.log(0.5))


def test_a_node_with_thousands_of_children_is_no_problem() -> None:
    cause = BeliefNode(name="cause", states=("a", "b"), table=((0.5, 0.5),))
    table = ((0.5, 0.5), (0.4, 0.6))
    effects = [BeliefNode(name=f"e{i}", states=("a", "b"), parents=("cause",), table=table) for i in range(1999)]
    posterior = infer(build_network([cause, *effects]), ["cause"], {"e7": (1.0, 0.0)})
    assert posterior.probabilities[0] == pytest.approx(5 / 9)


def test_impossible_evidence_is_an_error() -> None:
    network = read_network(
        b'{"node": "a", "states": ["x", "y"], "table": [[1, 0]]}\n'
        b'{"node": "b", "states": ["x", "y"], "parents": ["a"], "table": [[1, 0], [0, 1]]}'
    )
    with pytest.raises(UsageError, match="probability 0") as refused:
        infer(network, ["a"], {"b": [0, 1]})
    assert refused.value.code == "evidence_impossible"


@pytest.mark.parametrize(
    ("targets", "evidence", "error"),
    [
        (["snow"], {}, "no node 'snow'"),
        (["rain"], {"snow": [1, 0]}, "no node 'snow'"),
        (["rain", "rain"], {}, "not different nodes"),
        ([], {}, "not different nodes"),
        (["rain"], {"wet": [1]}, "each of its 2 states"),
        (["rain"], {"wet": [0, 0]}, "one of them positive"),
        (["rain"], {"wet": [-1, 1]}, "a number from 0 on"),
        (["rain"], {"wet": [float("nan"), 1]}, "a number from 0 on"),
        (["rain"], {"wet": [float("inf"), 1]}, "a number from 0 on"),
    ],
)
def test_wrong_queries_are_refused(targets: list[str], evidence: dict[str, list[float]], error: str) -> None:
    for ask in (infer, QueryCache().query):
        with pytest.raises(UsageError, match=error):
            ask(rain(), targets, evidence)


def test_a_network_too_wide_for_exact_inference_is_refused() -> None:
    """A grid of 40 by 40 needs cliques of 40 binary nodes."""
    nodes = []
    for row in range(40):
        for column in range(40):
            parents = tuple(f"{r},{c}" for r, c in ((row - 1, column), (row, column - 1)) if min(r, c) >= 0)
            table = ((0.5, 0.5),) * 2 ** len(parents)
            nodes.append(BeliefNode(name=f"{row},{column}", states=("a", "b"), parents=parents, table=table))
    with pytest.raises(UsageError) as refused:
        infer(build_network(nodes), ["0,0"], {})
    assert refused.value.code == "network_too_large"


def line(**changes: Any) -> str:
    return json.dumps({"node": "a", "states": ["x", "y"], "table": [[0.5, 0.5]], **changes})


GOOD = line(node="good")


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ("{", r"line 2: .*truncated.*'\{'"),
        ("[1]", "line 2: Expected `object`, got `array`: '\\[1\\]'"),
        (line(states="x"), "line 2: Expected `array`, got `str`"),
        (line(colour="red"), "line 2: .*unknown field `colour`"),
        (line(node=""), "line 2: .*'' is not a name"),
        (line(node="a\nb"), "line 2: .*is not a name of 1 to 200 printable"),
        (line(states=["x"], table=[[1]]), "line 2: 'a': it has 1 states"),
        (line(states=["x", "x"]), "line 2: 'a': the state 'x' is named twice"),
        (line(node="good"), "line 2: 'good': another node has this name"),
        (line(parents=["good", "good"]), "line 2: 'a': the parent 'good' is named twice"),
        (line(parents=["a"]), "line 2: 'a': it is its own parent"),
        (line(parents=["b"]), "line 2: 'a': its parent 'b' is no node"),
        (line(table=[[0.5, 0.4]]), "line 2: 'a': table row 1 sums to 0.9, not to 1"),
        (line(table=[[0.5, 0.25, 0.25]]), "line 2: 'a': table row 1 has 3 numbers, not 2"),
        (line(table=[[1.5, -0.5]]), "line 2: 'a': table row 1 contains -0.5"),
        (line(table=[[0.5, 0.5]] * 2), "line 2: 'a': table has 2 rows, not 1"),
        (
            line(parents=["good"], table=[[1, 0], [0.5, 0.6]]),
            r"line 2: 'a': table row 2 \(good=y\) sums to 1.1, not to 1",
        ),
        (line(table=[]), "line 2: 'a': it needs either `table` or `counts`"),
        (line(counts=[[1, 1]]), "line 2: 'a': it needs either `table` or `counts`"),
        (line(table=[], counts=[[0, 0]]), "line 2: 'a': counts row 1 sums to 0"),
        (line(table=[], counts=[[1, -1]]), "line 2: 'a': counts row 1 contains -1"),
        (line().replace("0.5, 0.5", "1e999, 0.5"), "line 2: "),
        (line().replace("0.5, 0.5", "NaN, 0.5"), "line 2: "),
    ],
)
def test_a_bad_line_is_named_with_value_and_reason(bad: str, error: str) -> None:
    with pytest.raises(UsageError, match=error) as refused:
        read_network(f"{GOOD}\n{bad}\n".encode())
    assert refused.value.code == "network_invalid"


def test_cycles_are_refused() -> None:
    table = [[0.5, 0.5]] * 2
    lines = [line(node=a, parents=[b], table=table) for a, b in (("a", "b"), ("b", "c"), ("c", "a"))]
    with pytest.raises(UsageError, match=r"cycle: '[abc]' -> '[abc]' -> '[abc]' -> '[abc]'"):
        read_network("\n".join(lines).encode())


def test_files_without_a_network_are_refused() -> None:
    for content in (b"", b"\n\n", b'{"note": "nothing"}'):
        with pytest.raises(UsageError, match="it has 0 nodes"):
            read_network(content)
    with pytest.raises(UsageError, match="line 1: "):
        read_network(b'\xff{"node": "a"}')


BIF = """// a comment
network "two words" { property author someone ; }
variable A { type discrete [ 2 ] { <5, Asy/Patchy }; property x y ; }
variable B { type discrete [ 2 ] { "a, b", 12+ }; }
probability ( A ) { table 0.1, 0.9 ; }
/* another */
probability ( B | A ) { default 0.5, 0.5; (<5) 0.2, 0.8; }
"""


def test_the_interchange_format_allows_comments_quotes_properties_and_odd_names() -> None:
    network = read_network(BIF.encode())
    assert network.node("A").states == ("<5", "Asy/Patchy")
    assert network.node("B").states == ("a, b", "12+")
    assert network.node("B").table == ((0.2, 0.8), (0.5, 0.5))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("[ 2 ] { <5", "[ 3 ] { <5", "line 3: 'A' declares 3 states and names 2"),
        ("table 0.1, 0.9", "table 0.1, 0.8", "line 5: 'A': table row 1 sums to 0.9"),
        ("table 0.1, 0.9", "table 0.1, x", "line 5: 'x' is not a number"),
        ("table 0.1, 0.9", "table 0.1 0.9", "line 5: '0.9' instead of , or ;"),
        ("(<5) 0.2", "(<6) 0.2", r"line 7: 'B': \('<6',\) are no states of its 1 parents"),
        ("(<5) 0.2", "(<5, <5) 0.2", "line 7: 'B': .* are no states of its 1 parents"),
        ("default 0.5, 0.5;", "", r"line 7: 'B' has no row for \(Asy/Patchy\)"),
        ("default 0.5, 0.5;", "(<5) 1, 0;", r"line 7: 'B' has two rows for \('<5',\)"),
        ("default 0.5, 0.5;", "table 1, 0;", "line 7: 'B' has parents and a `table`"),
        ("probability ( A ) { table 0.1, 0.9 ; }", "", "'A' has no probability block"),
        ("probability ( B | A )", "probability ( C | A )", "line 7: 'C' is no declared variable"),
        ("probability ( B | A )", "probability ( A )", "line 7: 'A' has two probability blocks"),
        ("variable B", "variable A", "line 4: 'A' is declared twice"),
        ("discrete", "continuous", "line 3: 'continuous' instead of discrete"),
        ("0.8; }", "0.8;", "line 7: the file ends too early"),
        ('"a, b"', '"a, b', "line 4: .*unclosed quote"),
    ],
)
def test_a_bad_interchange_file_is_refused_with_its_line(old: str, new: str, error: str) -> None:
    assert old in BIF
    with pytest.raises(UsageError, match=error) as refused:
        read_network(BIF.replace(old, new, 1).encode())
    assert refused.value.code == "network_invalid"


def test_complete_cases_add_to_counts() -> None:
    network = rain()
    cases = read_cases(b'{"rain": "yes", "wet": "yes"}\n{"rain": "no", "wet": "no"}\n', network)
    learned = learn_cases(network, cases)
    assert (learned.cases, learned.incomplete, learned.rounds) == (2, 0, 0)
    assert learned.network.node("rain").counts == ((2, 4),)
    # A table without counts weighs as ten cases in each row.
    assert TABLE_WEIGHT == 10
    assert learned.network.node("wet").counts == (pytest.approx((10, 1)), pytest.approx((2, 9)))
    assert learned.network.node("wet").table == (pytest.approx((10 / 11, 1 / 11)), pytest.approx((2 / 11, 9 / 11)))
    # The old version is as it was, and the new one names it.
    assert network == rain()
    assert learned.network.parent == network.version != learned.network.version
    assert read_network(write_network(learned.network), parent=network.version) == learned.network


def test_incomplete_cases_add_expected_counts_that_fit_their_own_tables() -> None:
    network = rain()
    learned = learn_cases(network, read_cases(b'{"wet": "yes"}\n{"wet": "yes", "rain": null}\n', network))
    assert (learned.incomplete, learned.rounds) == (2, pytest.approx(10, abs=9))
    after = learned.network
    probability = infer(after, ["rain"], {"wet": [1, 0]}).probabilities[0]
    assert after.node("rain").counts[0] == pytest.approx(
        (1 + 2 * probability, 3 + 2 * (1 - probability)), abs=1e-4
    )
    assert after.node("wet").counts[0] == pytest.approx((9 + 2 * probability, 1), abs=1e-4)
    total = sum(map(sum, after.node("wet").counts))
    assert total == pytest.approx(22)


def test_an_observed_node_alone_counts_as_such() -> None:
    """Rain has no parents: its count grows by exactly the observed cases, and wet's by their expectation."""
    network = rain()
    after = learn_cases(network, read_cases(b'{"rain": "yes"}\n' * 4, network)).network
    assert after.node("rain").counts == (pytest.approx((5, 3)),)
    # Unobserved consequences carry no news about how rain wets.
    assert after.node("wet").table[0] == pytest.approx((0.9, 0.1))


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ("{", "line 2: "),
        ('{"snow": "yes"}', "line 2: the network has no node 'snow'"),
        ('{"rain": "maybe"}', "line 2: 'rain' has no state 'maybe', only 'yes', 'no'"),
        ('{"rain": 1}', "line 2: Expected `str | null`, got `int`"),
    ],
)
def test_bad_cases_are_refused_with_their_line(bad: str, error: str) -> None:
    with pytest.raises(UsageError, match=error) as refused:
        read_cases(f'{{"rain": "yes"}}\n{bad}\n'.encode(), rain())
    assert refused.value.code == "cases_invalid"


def test_impossible_cases_are_refused() -> None:
    network = read_network(
        b'{"node": "a", "states": ["x", "y"], "table": [[0.5, 0.5]]}\n'
        b'{"node": "b", "states": ["x", "y"], "parents": ["a"], "table": [[1, 0], [1, 0]]}'
    )
    for bad in (b'{"a": "x", "b": "y"}', b'{"b": "y"}'):
        with pytest.raises(UsageError, match=r"line 2: the network gives .*probability 0"):
            learn_cases(network, read_cases(b'{"a": "x", "b": "x"}\n' + bad, network))
    with pytest.raises(UsageError, match="no case"):
        read_cases(b"\n", network)


def test_eight_readers_never_see_half_an_update() -> None:
    """The writer learns versions in which both nodes moved; readers check that each answer fits one version."""
    cache, network = QueryCache(), rain()
    versions = {network.version: network}
    current, done = [network], threading.Event()
    seen: list[tuple[str, float, float]] = []
    errors: list[BaseException] = []

    def read() -> None:
        try:
            while True:
                last = done.is_set()
                version = current[0]
                joint = cache.query(version, ["rain", "wet"], {}).probabilities
                alone = cache.query(version, ["rain"], {"wet": (1.0, 0.0)}).probabilities
                seen.append((version.version, float(joint[0, 0]), float(alone[0])))
                if last:
                    return
        except BaseException as error:
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(8)]
    for reader in readers:
        reader.start()
    for turn in range(40):
        case = b'{"rain": "yes", "wet": "yes"}\n' if turn % 2 else b'{"rain": "no"}\n{"wet": "yes"}\n'
        learned = learn_cases(current[0], read_cases(case, network)).network
        versions[learned.version] = learned
        current[0] = learned
    done.set()
    for reader in readers:
        reader.join(timeout=60)
    assert not errors
    assert len(versions) == 41
    assert versions[current[0].version] is current[0]
    assert {version for version, *_ in seen} >= {current[0].version}
    for version, joint, alone in set(seen):
        expected = versions[version]
        (rain_row,), wet_rows = expected.node("rain").table, expected.node("wet").table
        assert joint == pytest.approx(rain_row[0] * wet_rows[0][0], abs=1e-12)
        wet = rain_row[0] * wet_rows[0][0] + rain_row[1] * wet_rows[1][0]
        assert alone == pytest.approx(rain_row[0] * wet_rows[0][0] / wet, abs=1e-12)


def test_a_cached_answer_belongs_to_its_version() -> None:
    cache, network = QueryCache(), rain()
    before = cache.query(network, ["rain"], {})
    assert cache.query(network, ["rain"], {}) is before
    learned = learn_cases(network, read_cases(b'{"rain": "yes", "wet": "yes"}', network)).network
    assert cache.query(learned, ["rain"], {}).probabilities[0] == pytest.approx(0.4)
    assert cache.query(network, ["rain"], {}) is before
    with pytest.raises(ValueError, match="read-only"):
        before.probabilities[0] = 1


def test_unknown_nodes_come_with_the_nearest_name() -> None:
    with pytest.raises(NotFoundError) as refused:
        rain().node("rian")
    assert "rain" in refused.value.hint
