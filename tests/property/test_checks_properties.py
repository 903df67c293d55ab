"""Inspection: moving tests weakens nothing, losing a test never passes, areas go by path components."""

from __future__ import annotations

import keyword

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples

from chargehand.checks.areas import Areas
from chargehand.checks.inspection import base_tests_tree_plan, inspect
from chargehand.checks.paths import is_test_path
from chargehand.checks.trees import MemoryTrees

SOME = settings(max_examples=examples(60))
Files = dict[str, list[str]]
"""A project's tests: path to the names of its test functions."""

_WORDS = st.from_regex(r"[a-z]{1,4}", fullmatch=True).filter(lambda word: not keyword.iskeyword(word))
_PATHS = st.builds("tests/{}/test_{}.py".format, _WORDS, _WORDS)
_NAMES = st.builds("test_{}".format, _WORDS)


@st.composite
def projects(draw: st.DrawFn) -> Files:
    """Draw test files with functions, some with equal names in different files."""
    paths = draw(st.lists(_PATHS, min_size=1, max_size=4, unique=True))
    return {path: draw(st.lists(_NAMES, min_size=1, max_size=5, unique=True)) for path in paths}


def body(name: str) -> str:
    return f"def {name}():\n    assert work({name!r}) == {len(name)}\n"


def source(names: list[str], *, in_class: bool) -> str:
    if not in_class:
        return "\n".join(body(name) for name in names)
    methods = "".join(f"    def {name}(self):\n        assert work({name!r})\n" for name in names)
    return "class TestAll:\n    kind = 1\n" + methods


def render(files: Files, *, in_class: bool = False) -> dict[str, str]:
    return {path: source(names, in_class=in_class) for path, names in files.items()}


def asked(old: dict[str, str], new: dict[str, str]) -> set[str]:
    trees = MemoryTrees()
    base, tree = trees.add(old), trees.add(new)
    found = inspect(trees.changes(base, tree), trees, base, Areas())
    return {finding.rule for finding in found if finding.needs_person}


@SOME
@given(files=projects(), in_class=st.booleans(), data=st.data())
def test_moving_tests_between_files_is_never_weakening(files: Files, in_class: bool, data: st.DataObject):
    places = [*files, *data.draw(st.lists(_PATHS, max_size=3))]
    moved: Files = {path: [] for path in places}
    for name in [name for names in files.values() for name in names]:
        free = [place for place in places if name not in moved[place]]
        moved[data.draw(st.sampled_from(free))].append(name)
    kept = {path: names for path, names in moved.items() if names or data.draw(st.booleans())}
    assert asked(render(files, in_class=in_class), render(kept, in_class=in_class)) == set()


@SOME
@given(files=projects(), in_class=st.booleans(), data=st.data())
def test_a_deleted_test_is_always_found(files: Files, in_class: bool, data: st.DataObject):
    path = data.draw(st.sampled_from(sorted(files)))
    name = data.draw(st.sampled_from(files[path]))
    left = {**files, path: [other for other in files[path] if other != name]}
    if not left[path] and data.draw(st.booleans()):
        del left[path]
    # Other tests may be added and moved at the same time: they do not make up for the missing one.
    left["tests/test_zz.py"] = [new for new in data.draw(st.lists(_NAMES, max_size=3, unique=True)) if new != name]
    assert asked(render(files, in_class=in_class), render(left, in_class=in_class)) & {
        "test_removed",
        "test_deleted",
    }


@SOME
@given(files=projects(), data=st.data())
def test_a_disabled_test_is_always_found(files: Files, data: st.DataObject):
    path = data.draw(st.sampled_from(sorted(files)))
    name = data.draw(st.sampled_from(files[path]))
    way = data.draw(
        st.sampled_from(["@pytest.mark.skip\n{}", "@unittest.skip('x')\n{}", "@pytest.mark.xfail\n{}"])
    )
    old = render(files)
    new = {**old, path: old[path].replace(body(name), way.format(body(name)))}
    target = data.draw(st.sampled_from([path, "tests/test_zz.py"]))
    if target != path:
        new = {**old, path: old[path].replace(body(name), ""), target: way.format(body(name))}
    assert "test_skipped" in asked(old, new)


_PARTS = st.lists(
    st.sampled_from(["src", "a", "b", "srcs", "src-evil", ".src", "x\n", "ü", "\udcff"]), min_size=1, max_size=4
)


@SOME
@given(parts=_PARTS, area=st.lists(st.sampled_from(["src", "a", "b", "srcs"]), min_size=1, max_size=3))
def test_areas_contain_by_components(parts: list[str], area: list[str]):
    trees = MemoryTrees()
    base, tree = trees.add({}), trees.add({"/".join(parts): "x"})
    changes = trees.changes(base, tree)
    pattern = "/".join(area) + "/**"
    inside = len(parts) > len(area) and parts[: len(area)] == area
    anchored = "/" + pattern
    allowed = inspect(changes, trees, base, Areas(allow=(anchored,)))
    forbidden = inspect(changes, trees, base, Areas(forbid=(anchored,)))
    assert [f.rule for f in allowed] == ([] if inside else ["area_outside"])
    assert [f.rule for f in forbidden] == (["area_forbidden"] if inside else [])


_FILES = st.dictionaries(
    st.sampled_from(
        ["a.py", "tests/test_a.py", "tests/x", "tests", "conftest.py", "tests/test_a.py/y", "tox.ini", "b/c"]
    ),
    st.sampled_from(["1", "2", "def test_a():\n    assert f()\n"]),
).map(lambda files: {p: c for p, c in files.items() if not any(o.startswith(p + "/") for o in files)})


@SOME
@given(old=_FILES, new=_FILES)
def test_the_base_plan_gives_the_bases_tests_and_a_tree_without_clashes(old: dict[str, str], new: dict[str, str]):
    trees = MemoryTrees()
    base, tree = trees.add(old), trees.add(new)
    plan = base_tests_tree_plan(trees.changes(base, tree), trees, base)
    merged = {path: (mode, blob) for path, mode, blob in trees.entries(tree)}
    for path, entry in plan.items():
        if entry is None:
            merged.pop(path, None)
        else:
            merged[path] = entry
    kept = {path: (mode, blob) for path, mode, blob in trees.entries(base)}
    has_tests = "tests/test_a.py" in kept
    judging = [path for path in {*merged, *kept} if is_test_path(path) or path == "tox.ini"]
    for path in judging:
        assert merged.get(path) == kept.get(path) or (path not in kept and not has_tests)
    assert not any(other.startswith(path + "/") for path in merged for other in merged)
