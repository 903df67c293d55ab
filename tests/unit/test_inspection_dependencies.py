"""Dependencies, locks, tolerances, size of a change: each rule with a change it must catch and a clean twin."""

from __future__ import annotations

import json

import pytest
from tests.unit._inspecting import findings, rules, weakened

from chargehand.checks.detection import find_new_packages
from chargehand.checks.trees import MemoryTrees

LOOSER = [("tolerance_loosened", "warning")]
PYPROJECT = '[project]\nname = "a"\ndependencies = ["requests>=2", "Rich_Text"]\n'
USUAL = "https://pypi.org/simple"


def told(path: str, old: str | None, new: str | None, **others: str) -> list[tuple[str, str]]:
    """Return (rule, severity) of the dependency findings for one changed file among unchanged others."""
    before = {**others} if old is None else {path: old, **others}
    after = {**others} if new is None else {path: new, **others}
    named = ("dependency_changed", "dependency_source", "lock_mismatch")
    return sorted((rule, severity) for rule, severity, _ in rules(before, after) if rule in named)


ADDED, OTHERS = [("dependency_changed", "warning")], [("dependency_changed", "info")]


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        ("pyproject.toml", PYPROJECT, PYPROJECT.replace('"Rich_Text"', '"Rich_Text", "evil"'), ADDED),
        ("pyproject.toml", PYPROJECT, PYPROJECT.replace(', "Rich_Text"', ""), OTHERS),
        ("pyproject.toml", PYPROJECT, PYPROJECT.replace(">=2", ">=3"), OTHERS),
        ("pyproject.toml", PYPROJECT, PYPROJECT.replace("Rich_Text", "rich-text"), []),
        ("pyproject.toml", PYPROJECT, PYPROJECT + '[dependency-groups]\ndev = ["evil"]\n', ADDED),
        (
            "pyproject.toml",
            "[tool.poetry.dependencies]\na = '1'\n",
            "[tool.poetry.dependencies]\na = '2'\n",
            OTHERS,
        ),
        ("pyproject.toml", PYPROJECT, PYPROJECT + 'description = "requests is not changed"\n', []),
        ("requirements-dev.txt", "a==1\n", "a==1 --hash=sha256:0\n# evil\n\n", []),
        ("requirements-dev.txt", "a==1\n", "a==1 \\\n  ; python_version > '3'\nevil\n", [*OTHERS, *ADDED]),
        ("requirements/base.in", "a\n", "a\nb\n", ADDED),
        ("notes/requirements.md", "a\n", "a\nb\n", []),
        ("package.json", '{"dependencies": {"a": "1"}}', '{"devDependencies": {"a": "1", "evil": "2"}}', ADDED),
        ("package.json", '{"dependencies": {"a": "1"}}', '{"version": "2", "dependencies": {"a": "1"}}', []),
        (
            "Cargo.toml",
            '[dependencies]\na = "1"\n',
            '[dependencies]\na = { version = "2", features = ["b/c"] }\n',
            OTHERS,
        ),
        ("Cargo.toml", "[target.x.dependencies]\n", '[target.x.dependencies]\nevil = "1"\n', ADDED),
        ("go.mod", "module x.y/z\n", "module x.y/z\nrequire (\n\texample.com/evil v1.0.0 // indirect\n)\n", ADDED),
        ("go.mod", "module x.y/z\nrequire a.b/c v1.0.0\n", "module x.y/z\ngo 1.22\nrequire a.b/c v1.0.0\n", []),
    ],
)
def test_changed_dependencies_are_reported(path: str, old: str, new: str, expected: list[tuple[str, str]]):
    assert told(path, old, new) == expected


FOREIGN = ("dependency_source", "warning")


@pytest.mark.parametrize(
    ("path", "foreign", "usual"),
    [
        ("requirements.txt", "--index-url https://evil.test/simple\n", f"--index-url {USUAL}\n"),
        ("requirements.txt", "--extra-index-url=http://pypi.org/simple\n", f"-i {USUAL}\n"),
        ("requirements.txt", "--trusted-host evil.test\n", "-r other.txt\n"),
        ("requirements.txt", "git+https://evil.test/a.git@main#egg=a\n", "./wheels/a.whl\n"),
        ("requirements.txt", "a @ https://evil.test/a.whl\n", "-e .\n"),
        ("requirements.txt", "-e git+ssh://git@evil.test/a.git\n", "-e ./a\n"),
        (
            "pyproject.toml",
            '[[tool.uv.index]]\nurl = "https://evil.test"\n',
            f'[[tool.uv.index]]\nurl = "{USUAL}"\n',
        ),
        (
            "pyproject.toml",
            '[tool.uv.sources]\na = { git = "https://evil.test/a" }\n',
            "[tool.uv.sources]\na = { path = '../a' }\n",
        ),
        (
            "pyproject.toml",
            '[project]\ndependencies = ["a @ file:///tmp/a"]\n',
            '[project]\nurls = { home = "https://evil.test" }\n',
        ),
        (
            "package.json",
            '{"dependencies": {"a": "evil/a"}}',
            '{"repository": "ours/a", "homepage": "https://b.test"}',
        ),
        ("package.json", '{"overrides": {"a": {"b": "git+ssh://git@evil.test/b"}}}', '{"overrides": {"a": "1"}}'),
        (".npmrc", "registry=https://evil.test/\n", "registry=https://registry.npmjs.org/\n; https://evil.test\n"),
        (
            "Cargo.toml",
            "[patch.crates-io]\na = { git = 'https://evil.test/a' }\n",
            "[dependencies]\na = { path = '../a' }\n",
        ),
        ("go.mod", "module m\nreplace a.b/c => evil.test/c v1.0.0\n", "module m\nreplace a.b/c => ./c\n"),
        (
            "uv.lock",
            "[[package]]\nname = 'a'\nsource = { registry = 'https://evil.test' }\n",
            f"[[package]]\nname = 'a'\nsource = {{ registry = '{USUAL}' }}\n",
        ),
        (
            "Cargo.lock",
            "[[package]]\nname = 'a'\nsource = 'git+https://evil.test/a#0'\n",
            "[[package]]\nname = 'a'\nsource = 'registry+https://github.com/rust-lang/crates.io-index'\n",
        ),
        (
            "package-lock.json",
            json.dumps({"packages": {"n/a": {"resolved": "https://evil.test/a.tgz"}}}),
            json.dumps(
                {
                    "packages": {
                        "n/a": {
                            "resolved": "https://registry.npmjs.org/a.tgz",
                            "funding": {"url": "https://b.test"},
                        }
                    }
                }
            ),
        ),
        (
            "yarn.lock",
            'a@1:\n  resolved "https://evil.test/a.tgz#0"\n',
            '# see https://b.test\na@1:\n  resolved "https://registry.yarnpkg.com/a.tgz"\n',
        ),
        (
            "Pipfile.lock",
            '{"_meta": {"sources": [{"url": "https://evil.test"}]}}',
            f'{{"_meta": {{"sources": [{{"url": "{USUAL}"}}]}}}}',
        ),
    ],
)
def test_a_new_place_to_take_packages_from_needs_a_person(path: str, foreign: str, usual: str):
    (asked,) = [found for found in findings({}, {path: foreign}) if found.rule == "dependency_source"]
    assert (asked.severity, asked.path, asked.needs_person) == ("warning", path, True)
    assert FOREIGN not in told(path, None, usual)
    assert FOREIGN not in told(path, foreign, foreign + "\n"), "what was there before is nothing new"
    assert FOREIGN not in told(path, foreign, None)


def test_a_password_in_a_url_is_not_repeated():
    (found,) = findings({}, {"requirements.txt": "--index-url https://me:hunter2@evil.test/simple\n"})
    assert "https://evil.test" in found.message
    assert "hunter2" not in found.message


def test_an_unreadable_lock_is_reported_as_a_foreign_source():
    for path in ("uv.lock", "package-lock.json", "Cargo.lock"):
        assert told(path, "", "{[") == [FOREIGN, ("lock_mismatch", "warning")]
    assert told("uv.lock", "{[", None, **{"pyproject.toml": PYPROJECT}) == [("lock_mismatch", "warning")]


MISMATCH = ("lock_mismatch", "warning")


@pytest.mark.parametrize(
    ("manifest", "lock"),
    [
        ("pyproject.toml", "uv.lock"),
        ("go.mod", "go.sum"),
        ("Pipfile", "Pipfile.lock"),
        ("Cargo.toml", "Cargo.lock"),
    ],
)
def test_a_lock_and_its_manifest_must_change_together(manifest: str, lock: str):
    one, two = {
        "pyproject.toml": ('[project]\ndependencies = ["a"]\n', '[project]\ndependencies = ["b"]\n'),
        "go.mod": ("require a.b/c v1.0.0\n", "require a.b/c v1.0.1\n"),
        "Pipfile": ('[packages]\na = "*"\n', '[packages]\na = "1"\n'),
        "Cargo.toml": ('[dependencies]\na = "1"\n', '[dependencies]\na = "2"\n'),
    }[manifest]
    for inside in ("", "deep/er/"):
        base = {f"{inside}{manifest}": one, lock: "{}" if lock.endswith("Pipfile.lock") else ""}
        moved = {**base, lock: "\n{}" if lock.endswith("Pipfile.lock") else "# new\n"}
        found = {
            (rule, severity, path) for rule, severity, path in rules(base, {**base, f"{inside}{manifest}": two})
        }
        assert (*MISMATCH, f"{inside}{manifest}") in found
        assert (*MISMATCH, lock) in rules(base, moved)
        both = rules(base, {**moved, f"{inside}{manifest}": two})
        assert not [found for found in both if found[0] == "lock_mismatch"]
    assert MISMATCH not in told(manifest, one, two), "where there is no lock none was forgotten"
    assert MISMATCH not in told(lock, None, "{}" if lock.endswith("Pipfile.lock") else "")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("assert a == approx(1)", "assert a == approx(1, rel=0.5)", LOOSER),
        ("assert a == approx(1)", "assert a == approx(1, abs=0.5)", LOOSER),
        ("assert a == approx(1)", "assert a == approx(1, rel=1e-9)", []),
        ("assert a == approx(1)", "assert a == approx(1, abs=1e-12)", []),
        ("self.assertAlmostEqual(a, 1)", "self.assertAlmostEqual(a, 1, places=2)", LOOSER),
        ("self.assertAlmostEqual(a, 1)", "self.assertAlmostEqual(a, 1, delta=0.5)", LOOSER),
        ("self.assertAlmostEqual(a, 1)", "self.assertAlmostEqual(a, 1, places=9)", []),
        ("assert math.isclose(a, 1)", "assert math.isclose(a, 1, rel_tol=0.1)", LOOSER),
        ("assert math.isclose(a, 1)", "assert math.isclose(a, 1, rel_tol=1e-9)", []),
        ("np.testing.assert_allclose(a, b)", "np.testing.assert_allclose(a, b, 1e-2)", LOOSER),
        ("np.testing.assert_allclose(a, b, 1e-2)", "np.testing.assert_allclose(a, b)", []),
        ("assert_array_almost_equal(a, b)", "assert_array_almost_equal(a, b, 2)", LOOSER),
    ],
)
def test_a_tolerance_looser_than_the_library_default_is_reported(
    old: str, new: str, expected: list[tuple[str, str]]
):
    assert weakened(f"def test_x(self):\n    {old}\n", f"def test_x(self):\n    {new}\n") == expected


@pytest.mark.parametrize(
    ("path", "head", "strict", "loose"),
    [
        (
            "a.test.ts",
            "it('x', () => {{ {} }})\n",
            "expect(f(1)).toBeCloseTo(g(2), 5)",
            "expect(f(1)).toBeCloseTo(g(2), 1)",
        ),
        ("a.test.ts", "it('x', () => {{ {} }})\n", "expect(a).toBeCloseTo(1)", "expect(a).toBeCloseTo(1, 1)"),
        ("a.test.ts", "it('x', () => {{ {} }})\n", "expect(a).toBe(1)", "expect(a).toBeCloseTo(1, 5)"),
        (
            "a.test.js",
            "it('x', () => {{ {} }})\n",
            "expect(a).to.be.closeTo(1, 0.01)",
            "expect(a).to.be.closeTo(1, 0.5)",
        ),
        (
            "a_test.go",
            "func TestX(t *testing.T) {{\n{}\n}}\n",
            "assert.InDelta(t, 1, f(2), 0.1)",
            "assert.InDelta(t, 1, f(2), 5)",
        ),
        (
            "src/a.rs",
            "#[test]\nfn x() {{ {} }}\n",
            "assert_relative_eq!(a, b, epsilon = 1e-9)",
            "assert_relative_eq!(a, b, epsilon = 0.1)",
        ),
        (
            "ATest.java",
            "@Test\nvoid x() {{ {} }}\n",
            "assertThat(a).isCloseTo(b, within(0.01))",
            "assertThat(a).isCloseTo(b, within(1.0))",
        ),
        (
            "a_spec.rb",
            "it 'x' do\n{}\nend\n",
            "expect(a).to be_within(0.1).of(b)",
            "expect(a).to be_within(5).of(b)",
        ),
    ],
)
def test_tolerances_of_other_languages(path: str, head: str, strict: str, loose: str):
    assert weakened(head.format(strict), head.format(loose), path) == LOOSER
    assert weakened(head.format(loose), head.format(strict), path) == []
    assert weakened(head.format(strict), head.format(strict) + "\n", path) == []


def test_hostile_lines_of_tolerances_cost_no_more_than_their_length():
    for path, piece in [
        ("a.test.ts", "expect(closeTo("),
        ("a.test.ts", "expect(.toBeCloseTo((a),"),
        ("a_spec.rb", "assert_in_delta ,"),
    ]:
        line = piece * 120
        assert weakened("x\n", f"it('x', () => {{\n{line}\n" * 60, path) == []


def test_too_large_a_change_is_reported_once():
    large = {f"src/{n}.txt": "x" * 10 for n in range(10)}
    told_large = [("large_change", "warning", "")]
    assert rules({}, large, large_change_files=9) == told_large
    assert rules({}, large, large_change_files=10) == []
    assert rules({}, large, large_change_bytes=99) == told_large
    assert rules({}, large, large_change_bytes=100) == []
    assert rules(large, {}, large_change_bytes=0) == [], "what goes away is no new content"


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("package-lock.json", "null"),
        ("package-lock.json", '{"packages": {"node_modules/a": "1.0.0"}}'),
        ("Pipfile.lock", "[]"),
        ("uv.lock", 'package = ["a"]'),
        ("Cargo.lock", "= ="),
    ],
)
def test_a_lock_that_an_agent_broke_may_ask_for_anything(path: str, content: str):
    trees = MemoryTrees()
    base, broken = trees.add({path: ""}), trees.add({path: content})
    assert find_new_packages(trees.changes(base, broken), trees) == (path,)
