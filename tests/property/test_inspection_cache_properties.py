"""In any order of operations, a cache changes which files are read, never the findings."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples

from chargehand.checks.areas import Areas
from chargehand.checks.cache import MemoryCache, rules_digest
from chargehand.checks.inspection import examine
from chargehand.checks.trees import MemoryTrees

_TEST = "def test_{}():\n    assert f() == {}\n"
_CONTENTS = st.sampled_from(
    [
        "",
        "x = 1\n",
        "k = 'AKIA" + "QWERTYUIOPASDFGH'\n",
        "\0binary",
        _TEST.format("a", 1),
        _TEST.format("a", 1) + _TEST.format("b", 2),
        "import pytest\n@pytest.mark.skip\n" + _TEST.format("a", 1),
        "def test_a():\n    assert f() == approx(1, rel=1e999)\n",
        '[project]\ndependencies = ["a"]\n',
        "git+https://evil.test/a\n",
        "[tool.pytest.ini_options]\n",
        "def (\n",
        "\ud800".encode("utf-8", "surrogatepass"),
        "x" * 3000,
    ]
)
_PATHS = st.sampled_from(
    [
        "a.py",
        "tests/test_a.py",
        "tests/test_b.py",
        "src/test_a.py",
        "pyproject.toml",
        "requirements.txt",
        "uv.lock",
        "conftest.py",
        "src/lib.rs",
        "\udcff\n.py",
    ]
)
_TREES = st.dictionaries(_PATHS, _CONTENTS, max_size=6)
_MODES = st.dictionaries(_PATHS, st.sampled_from([0o100644, 0o100755, 0o120000]), max_size=3)
_AREAS = st.sampled_from(
    [
        Areas(),
        Areas(commands=("python tests/test_a.py",)),
        Areas(forbid=("src/**",), large_bytes=100),
        Areas(check_surface_allowed=True, large_change_files=2),
    ]
)


@settings(max_examples=examples(150))
@given(base=_TREES, looks=st.lists(st.tuples(_TREES, _MODES, _AREAS), min_size=1, max_size=5))
def test_cached_and_uncached_inspection_are_equal(base, looks):
    trees, cache = MemoryTrees(), MemoryCache(entries=8)
    start = trees.add(base)
    for files, modes, areas in [*looks, *reversed(looks)]:
        changes = trees.changes(start, trees.add(files, modes=modes))
        plain = examine(changes, trees, start, areas)
        kept = examine(changes, trees, start, areas, cache=cache)
        assert kept.findings == plain.findings
        assert (kept.looked, kept.degraded) == (len(changes), False)


def test_a_rule_in_any_folder_of_the_package_is_part_of_the_digest(tmp_path: Path) -> None:
    (tmp_path / "suites").mkdir()
    (tmp_path / "a.py").write_text("x = 1")
    digests = []
    for source in ("y = 1", "y = 2"):
        (tmp_path / "suites/b.py").write_text(source)
        rules_digest.cache_clear()
        digests.append(rules_digest(tmp_path))
    rules_digest.cache_clear()
    assert digests[0] != digests[1]
