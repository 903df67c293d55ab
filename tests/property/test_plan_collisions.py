"""Collisions of tasks: patterns meet if some path matches both, and the order of two tasks does not matter."""

from __future__ import annotations

import itertools
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec
from tests.conftest import examples

from chargehand.core.plans import Plan, Task
from chargehand.missions.planning.collisions import collision, footprint, planned_collisions
from chargehand.missions.planning.patterns import compile_path, compile_pattern, pattern_problem, patterns_meet

NAMES = ["".join(name) for size in (1, 2) for name in itertools.product("abAB", repeat=size)]
FEW = ["a", "b", "A", "B", "ab"]
PATHS = ["/".join(parts) for depth in (1, 2) for parts in itertools.product(NAMES, repeat=depth)]
PATHS += ["/".join(parts) for parts in itertools.product(FEW, repeat=3)]
PLAIN = st.sampled_from(["a", "b", "ab", "B"])
WILD = st.sampled_from(["*", "?", "**", "a*", "*b", "?b", "[ab]", "[!a]", "[A-Z]?", "a**", "\\a", "[^b]*"])


def patterns(*, areas: bool = False) -> st.SearchStrategy[str]:
    body = st.lists(PLAIN | WILD, min_size=1, max_size=3).map("/".join)
    return st.tuples(st.sampled_from(["", "/"] if areas else [""]), body, st.sampled_from(["", "/"])).map("".join)


def fold(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()


def matched(pattern: str, *, floating: bool) -> set[str]:
    """Return the paths that a pattern matches by git's rules, ignoring case."""
    spec = GitIgnoreSpec.from_lines([pattern if floating or pattern.startswith("/") else f"/{pattern}"])
    return {fold(path) for path in PATHS if spec.match_file(path)}


@given(patterns(areas=True), patterns(areas=True), st.booleans())
@settings(max_examples=examples(300))
@example("a*", "*b", True)
@example("**/b", "a/**", False)
@example("a", "a/b", False)
@example("*/", "a/b/", True)
@example("[!a]", "B", True)
@example("?b", "[!a]*", False)
def test_patterns_meet_if_a_path_matches_both(left: str, right: str, floating: bool) -> None:
    met = patterns_meet(compile_pattern(left, floating=floating), compile_pattern(right, floating=floating))
    assert met == patterns_meet(
        compile_pattern(right, floating=floating), compile_pattern(left, floating=floating)
    )
    common = matched(left, floating=floating) & matched(right, floating=floating)
    # Never too narrow: a collision that some path shows is always found.
    assert met or not common
    # Nor too wide, if the paths are deep enough to show all that patterns have in common.
    assert common or not met or left.count("/") + right.count("/") > 1


@given(patterns(), st.sampled_from(PATHS))
@settings(max_examples=examples(300))
def test_a_written_path_meets_its_matching_patterns(pattern: str, path: str) -> None:
    met = patterns_meet(compile_pattern(pattern), compile_path(path))
    assert met or fold(path) not in matched(pattern, floating=False)
    assert met == patterns_meet(compile_path(path), compile_pattern(pattern))


TASKS = st.builds(
    Task,
    id=st.sampled_from(["x", "y", "z"]),
    text=st.just("x"),
    change=st.lists(patterns(), max_size=2).map(tuple),
    areas=st.lists(patterns(areas=True), max_size=2).map(tuple),
    contracts=st.lists(st.sampled_from(["api:a", "api:b"]), max_size=1).map(tuple),
)
WRITTEN = st.lists(st.sampled_from([*PATHS[:12], "[ab]", "/**", "*", "caf\u00e9", "cafe\u0301"]), max_size=3)


@given(TASKS, TASKS, WRITTEN, WRITTEN)
@settings(max_examples=examples(200))
def test_collisions_are_symmetric_and_name_both(one: Task, two: Task, first: list[str], second: list[str]) -> None:
    a, b = footprint(one, first), footprint(two, second)
    found = collision(a, b)
    turned = collision(b, a)
    assert found == turned or (one.id == two.id and (found is None) == (turned is None))
    if found is not None:
        assert repr(one.id) in found.message
        assert repr(two.id) in found.message
    if {fold(path) for path in first} & {fold(path) for path in second}:
        assert found is not None
        assert found.code == "collision_file"
    # More knowledge about a task never removes a collision.
    if collision(footprint(one), footprint(two)) is not None:
        assert found is not None


@given(st.text(st.sampled_from("ab*?[]!^-\\/:. #{}é\u0130ßſK"), min_size=1, max_size=12), st.booleans())
@settings(max_examples=examples(300))
def test_an_accepted_pattern_is_a_gitignore_pattern(text: str, areas: bool) -> None:
    problem, hint = pattern_problem(text, areas=areas)
    if problem:
        assert hint
        return
    compiled = compile_pattern(text, floating=areas)
    assert patterns_meet(compiled, compiled)
    assert GitIgnoreSpec.from_lines([text]).patterns


def task(name: str, **more: object) -> Task:
    return Task(id=name, text="x", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "two", "code", "told"),
    [
        ({"make": ("a.py",)}, {"change": ("a.py",)}, "collision_file", "'a.py'"),
        ({"make": ("README.md",)}, {"delete": ("readme.md",)}, "collision_file", "'README.md' ('readme.md')"),
        ({"change": ("src/**",)}, {"change": ("src/a/b.py",)}, "collision_file", "'src/**' ('src/a/b.py')"),
        ({"change": ("src",)}, {"change": ("src/a.py",)}, "collision_file", "'src' ('src/a.py')"),
        ({"change": ("*.py",)}, {"change": ("src/a.py",)}, None, ""),
        ({"areas": ("*.py",)}, {"change": ("src/a.py",)}, "collision_area", "'*.py' ('src/a.py')"),
        ({"areas": ("src/**",)}, {"areas": ("*.py",)}, "collision_area", "'src/**' ('*.py')"),
        ({"areas": ("src/**",), "change": ("src/a",)}, {"areas": ("src/**",), "change": ("src/b",)}, None, ""),
        ({"areas": ("src/**",)}, {"areas": ("docs/**",)}, None, ""),
        ({"areas": ("docs/",)}, {"areas": ("/docs/a",)}, "collision_area", "'docs/' ('/docs/a')"),
        ({"contracts": ("api:x",)}, {"contracts": ("api:y", "api:x")}, "collision_contract", "'api:x'"),
        ({}, {"change": ("**",)}, None, ""),
        ({"change": ("src/*_test.py",)}, {"change": ("src/test_*.py",)}, "collision_file", "'src/*_test.py'"),
        ({"change": ("*.py",)}, {"change": ("*.js",)}, None, ""),
        ({"change": ("a?.py",)}, {"change": ("b*.py",)}, None, ""),
    ],
)
def test_collision_of_two_tasks(
    one: dict[str, object], two: dict[str, object], code: str | None, told: str
) -> None:
    found = collision(footprint(task("t1", **one)), footprint(task("t2", **two)))
    assert (found.code if found else None) == code
    if found:
        assert "'t1' and 't2'" in found.message
        assert told in found.message


def test_written_paths_collide_even_if_undeclared() -> None:
    declared, other = task("a", change=("x",)), task("b", areas=("src/**",))
    assert collision(footprint(declared), footprint(other)) is None
    found = collision(footprint(declared, ["src/y.py"]), footprint(other))
    assert found is not None
    assert found.code == "collision_area"
    assert collision(footprint(task("c"), ["f"]), footprint(task("d"), ["F"])) is not None
    # A path that looks like a pattern is not a pattern.
    assert collision(footprint(task("c"), ["[ab]"]), footprint(task("d"), ["a"])) is None
    strange = collision(footprint(task("c"), ["a\n\udcff"]), footprint(task("d"), ["a\n\udcff"]))
    assert strange is not None
    assert strange.message.isprintable()


def test_only_unordered_tasks_collide_by_plan() -> None:
    plan = Plan(
        tasks=(
            task("a", change=("f",)),
            task("b", after=("a",)),
            task("c", after=("b",), change=("f",)),
            task("d", change=("f",)),
        )
    )
    assert [(one, two) for one, two, _ in planned_collisions(plan)] == [("a", "d"), ("c", "d")]


def test_collisions_of_hundreds_of_tasks_are_computed_quickly() -> None:
    import time

    tasks = [task(f"t{n}", change=(*(f"src/p{n}/f{k}.py" for k in range(20)), f"docs/p{n}*")) for n in range(200)]
    before = time.process_time()
    found = sum(1 for _ in planned_collisions(Plan(tasks=tuple(tasks))))
    assert 0 < found < 2_000  # docs/p1* and docs/p12*
    assert time.process_time() - before < 20
