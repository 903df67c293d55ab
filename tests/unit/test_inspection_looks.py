"""How inspection saves work without losing findings: cache, sample, time limit, reads."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from chargehand.checks.areas import Areas
from chargehand.checks.cache import LayeredCache, MemoryCache, key_of, plan_version
from chargehand.checks.inspection import Inspection, Limits, examine, inspect
from chargehand.checks.trees import MemoryTrees
from chargehand.core.records import Change

SECRET = "AKIA" + "QWERTYUIOPASDFGH"
AREAS = Areas(commands=("pytest -q",))


class CountingTrees(MemoryTrees):
    """Counts the reads of inspection."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def read_blob(self, id: str, /, *, limit: int | None = None) -> bytes:
        self.reads += 1
        return super().read_blob(id, limit=limit)


class Steps:
    """A clock that advances by one second whenever it is read."""

    def __init__(self) -> None:
        self._ticks: Iterator[int] = itertools.count()

    def __call__(self) -> float:
        return float(next(self._ticks))


def project(files: int) -> dict[str, str]:
    return {f"src/m{n}.py": f"x = {n}\n" for n in range(files)}


def look(trees: MemoryTrees, base: str, files: Mapping[str, str], **options: object) -> Inspection:
    changes = trees.changes(base, trees.add(files))
    areas = options.pop("areas", AREAS)
    return examine(changes, trees, base, areas, **options)


def test_only_the_changed_file_is_read_again():
    trees, cache = CountingTrees(), MemoryCache()
    base, files = trees.add({}), project(1000)
    first = look(trees, base, files, cache=cache)
    assert (first.looked, first.cached, trees.reads) == (1000, 0, 1000)
    trees.reads = 0
    second = look(trees, base, {**files, "src/m7.py": f"k = '{SECRET}'\n"}, cache=cache)
    assert (second.looked, second.cached, trees.reads) == (1000, 999, 1)
    assert [found.rule for found in second.findings] == ["secret"]


def test_cached_findings_are_reported_again():
    trees, cache = CountingTrees(), MemoryCache()
    base = trees.add({"tests/test_a.py": "def test_a():\n    assert f()\n"})
    bad = {"a.py": f"k = '{SECRET}'\n", "conftest.py": "", "requirements.txt": "git+https://evil.test/a\n"}
    first = look(trees, base, bad, cache=cache)
    reads = trees.reads
    again = look(trees, base, bad, cache=cache)
    assert (again.findings, again.cached, trees.reads) == (first.findings, 4, reads)
    assert {"secret", "check_surface", "dependency_source", "test_deleted"} == {f.rule for f in again.findings}


@pytest.mark.parametrize(
    "damage", [lambda e: b"", lambda e: e[:-1], lambda e: e[:20] + b"\xc0" + e[21:], lambda e: b"\0" * 99]
)
def test_a_damaged_cache_entry_is_replaced(damage):
    trees, cache = MemoryTrees(), MemoryCache()
    base, bad = trees.add({}), {"a.py": f"k = '{SECRET}'\n"}
    first = look(trees, base, bad, cache=cache)
    (change,) = trees.changes(base, trees.add(bad))
    key = key_of(change, plan=plan_version(AREAS, trees, base))
    cache.put({key: damage(cache.get([key])[key])})
    again = look(trees, base, bad, cache=cache)
    assert (again.findings, again.cached) == (first.findings, 0)
    assert look(trees, base, bad, cache=cache).cached == 1, "and kept in place of the damaged one"


def test_an_entry_of_another_change_is_not_believed():
    trees, cache = MemoryTrees(), MemoryCache()
    base, bad = trees.add({}), {"a.py": f"k = '{SECRET}'\n", "b.py": "clean\n"}
    look(trees, base, bad, cache=cache)
    keys = [
        key_of(change, plan=plan_version(AREAS, trees, base)) for change in trees.changes(base, trees.add(bad))
    ]
    kept = cache.get(keys)
    cache.put({keys[0]: kept[keys[1]]})
    assert [found.path for found in look(trees, base, bad, cache=cache).findings] == ["a.py"]


def test_other_rules_and_other_changes_have_other_keys():
    change = Change(path="a", kind="modified", old_mode=1, new_mode=2, old_id="3", new_id="4")
    values = {"path": "b", "kind": "added", "old_mode": 9, "new_mode": 9, "old_id": "9", "new_id": "9"}
    others = [replace(change, **{name: value}) for name, value in values.items()]
    keys = {key_of(each, plan="p") for each in (change, *others)} | {key_of(change, plan="q")}
    assert len(keys) == 8
    trees = MemoryTrees()
    base = trees.add({})

    def version(tree: str = base, **areas: object) -> str:
        return plan_version(Areas(**areas), trees, tree)

    assert version(commands=("a",)) != version(commands=("b",))
    assert version(large_bytes=1) != version(large_bytes=2)
    assert version(installed=frozenset({"yaml"})) != version(), "what is installed decides what a module hides"
    assert version(acceptance=("tests/test_a.py",)) != version()
    assert version(trees.add({"a": "b"})) != version(), "the base says which programs checks run"
    assert version(allow=("src/**",)) == version(), "areas are not cached, they are held anew"


def test_changed_areas_apply_to_cached_files():
    trees, cache = MemoryTrees(), MemoryCache()
    base = trees.add({})
    files = {"conftest.py": "", "src/a.py": "x"}
    assert [f.rule for f in look(trees, base, files, cache=cache, areas=Areas()).findings] == ["check_surface"]
    forbidden = look(trees, base, files, cache=cache, areas=Areas(forbid=("src/**",), check_surface_allowed=True))
    assert [(f.rule, f.severity) for f in forbidden.findings] == [
        ("check_surface", "info"),
        ("area_forbidden", "error"),
    ]
    assert forbidden.cached == 2


def test_a_cache_evicts_the_least_recently_used_entry():
    cache = MemoryCache(entries=2)
    cache.put({"a": b"1", "b": b"2"})
    assert set(cache.get(["a"])) == {"a"}
    cache.put({"c": b"3"})
    assert cache.get(["a", "b", "c"]) == {"a": b"1", "c": b"3"}


def test_a_hit_in_the_far_cache_is_kept_in_the_near_cache():
    class Counting(MemoryCache):
        def __init__(self) -> None:
            super().__init__()
            self.asked: list[str] = []

        def get(self, keys: Collection[str], /) -> Mapping[str, bytes]:
            self.asked += keys
            return super().get(keys)

    far = Counting()
    far.put({"a": b"1"})
    layered = LayeredCache(MemoryCache(), far)
    assert layered.get(["a", "b"]) == layered.get(["a"]) == {"a": b"1"}
    assert far.asked == ["a", "b"]


RISKY = {
    "conftest.py": "",
    "chargehand.toml": "",
    "requirements.txt": "a\n",
    "run.sh": "x",
    "tests/test_z.py": "def test_a():\n    assert f()\n",
}


def test_a_sample_takes_the_riskiest_and_the_rest_by_lot():
    trees = CountingTrees()
    base = trees.add({})
    changes = trees.changes(base, trees.add({**project(500), **RISKY}, modes={"run.sh": 0o100755}))

    def seen(seed: str, files: int = 100) -> tuple[Inspection, set[str]]:
        cache = MemoryCache()
        found = examine(changes, trees, base, AREAS, cache=cache, limits=Limits(files=files, seed=seed))
        keys = {key_of(change, plan=plan_version(AREAS, trees, base)): change.path for change in changes}
        return found, {keys[key] for key in cache.get(keys)}

    first, paths = seen("tree one")
    assert (first.looked, first.total, first.degraded) == (100, 505, False)
    assert first.reason == "a sample of 100 of 505 changes, the riskiest first"
    assert set(RISKY) <= paths
    assert seen("tree one")[1] == paths, "the same tree, the same sample"
    assert seen("tree two")[1] != paths, "another tree, another lot"
    assert seen("any", 4)[1] == set(RISKY) - {"tests/test_z.py"}


def test_a_sample_checks_all_paths_and_a_full_inspection_all_content():
    trees = MemoryTrees()
    base, files = trees.add({}), {**project(300), "src/secret.txt": SECRET, "other/x.txt": "x"}
    areas = Areas(allow=("src/**",))
    quick = look(trees, base, files, areas=areas, limits=Limits(files=10, seed="s"))
    assert [found.rule for found in quick.findings] == ["area_outside"]
    full = look(trees, base, files, areas=areas)
    assert (full.looked, full.degraded, full.reason) == (302, False, "")
    assert {found.rule for found in full.findings} == {"area_outside", "secret"}


def test_a_sample_does_not_report_moved_tests():
    trees = MemoryTrees()
    test = "def test_{}():\n    assert f()\n"
    old = {f"tests/test_{n}.py": test.format(n) for n in range(20)}
    base = trees.add(old)
    moved = {f"tests/unit/test_{n}.py": test.format(n) for n in range(20)}
    assert look(trees, base, moved, limits=Limits(files=10, seed="s")).findings == ()
    assert look(trees, base, moved).findings == ()
    del moved["tests/unit/test_3.py"]
    assert [found.rule for found in look(trees, base, moved).findings] == ["test_deleted"]


def test_a_timeout_degrades_the_result_and_names_unseen_files():
    trees = CountingTrees()
    base = trees.add({})
    found = look(trees, base, {**project(20), "src/z.txt": SECRET}, limits=Limits(seconds=5), monotonic=Steps())
    assert (found.degraded, found.looked, found.total, found.findings) == (True, 4, 21, ())
    assert found.reason.startswith("not looked at within 5 s: 17 of 21 (src/m12.py, ")
    assert trees.reads == 4


def test_each_blob_is_read_once_and_never_twice():
    trees = CountingTrees()
    base = trees.add({"pyproject.toml": "[project]\n", "tests/test_a.py": "def test_a():\n    assert f()\n"})
    files = {"pyproject.toml": f"# {SECRET}\n", "tests/test_a.py": f"def test_a():\n    assert f('{SECRET}')\n"}
    look(trees, base, files)
    assert trees.reads == 4 + 1, "the settings of the base's checks are read once more"
    trees.reads = 0
    look(trees, base, files)
    assert trees.reads == 4, "what a base's checks run is known from then on"


def test_patterns_are_compiled_once_for_all_looks(monkeypatch: pytest.MonkeyPatch):
    from chargehand.checks import areas as _areas

    compiled: list[object] = []
    real = _areas._compile
    monkeypatch.setattr(_areas, "_compile", lambda patterns: compiled.append(patterns) or real(patterns))
    areas = Areas(forbid=tuple(f"no{n}/**" for n in range(100)), commands=("once",))
    trees = MemoryTrees()
    base = trees.add({})
    for _ in range(3):
        assert look(trees, base, project(1000), areas=areas).findings == ()
    assert len(compiled) == 3, "allow, forbid and protect, each once"


def test_each_version_of_a_large_changed_file_is_read_once():
    trees = CountingTrees()
    base = trees.add({"a.py": "".join(f"x{n} = {n}\n" for n in range(10_000))})
    lines = [f"y{n} = {n}\n" for n in range(10_000)]
    lines[7_654] = f"k = '{SECRET}'\n"
    (found,) = look(trees, base, {"a.py": "".join(lines)}).findings
    assert (found.rule, found.line, trees.reads) == ("secret", 7_655, 2)


HEADERS = "--- a/evil.py\n+++ b/evil.py\n@@ -1 +1 @@\ndiff --git a/x b/x\nrename to ../../etc\n"


def test_content_like_a_diffs_header_and_odd_names_change_no_path(tmp_path: Path):
    names = [
        "plain.py",
        "with space.py",
        'quo"te.py',
        "tab\\t.py",
        "ünï.py",
        "日本.py",
        "-dash.py",
        "a => b.py",
        "b/c d/e",
    ]
    trees = MemoryTrees()
    base, tree = trees.add({}), trees.add(dict.fromkeys(names, HEADERS + SECRET))
    found = inspect(trees.changes(base, tree), trees, base, AREAS)
    assert {each.path for each in found} == set(names)
    assert {(each.rule, each.line) for each in found} == {("secret", 6)}
