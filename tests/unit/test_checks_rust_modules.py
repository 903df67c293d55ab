"""Tests inside Rust's code: found in one version of a file, and laid over another."""

from __future__ import annotations

import pytest

from chargehand.checks.suites.rust_modules import find_test_modules, lay_tests_over, read_test_modules

CODE = """pub fn open() -> char {
    '{' // }
}
"""
OLD = "#[cfg(test)]\nmod tests {\n    #[test]\n    fn t() {\n        assert_eq!(super::open(), '{');\n    }\n}\n"
SOFT = OLD.replace("assert_eq!(super::open(), '{')", "super::open();")


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (CODE + OLD, ["tests"]),
        (CODE, []),
        ("#[cfg(not(test))]\nmod real { }\n", []),
        ('#[cfg(feature = "x")]\nmod real { }\n', []),
        ('#[cfg(all(test, feature = "x"))]\n#[allow(dead_code)]\npub(crate) mod t { mod u { } }\n', ["t"]),
        ("#[cfg(test)]\nmod tests;\n", []),
        ("#[cfg(test)]\nmod tests { fn f() {\n", []),
        (
            '/* #[cfg(test)] mod a {} */ const A: &str = "#[cfg(test)] mod b {}"; const B: &str = r#"""#;\n' + OLD,
            ["tests"],
        ),
        (
            "#[cfg(test)]\nmod t { fn f<'a>(x: &'a str) { let q = '\\''; let b = b'}'; let s = \"}\\\"}\"; } }\n",
            ["t"],
        ),
    ],
)
def test_modules(source: str, names: list[str]) -> None:
    found = find_test_modules(source)
    assert [module.key[0] for module in found] == names
    assert all(source[module.start] == "#" and source[module.end - 1] == "}" for module in found)
    assert lay_tests_over(source, source) == source


def test_the_base_s_tests_take_the_place_of_what_became_of_them() -> None:
    changed = CODE.replace("open", "first") + SOFT + "pub fn last() {}\n"
    assert lay_tests_over(CODE + OLD, changed) == changed.replace(SOFT, OLD)
    # What is gone comes back, what is new stays.
    more = OLD.replace("mod tests", "mod more")
    laid = lay_tests_over(CODE + OLD, CODE + more)
    assert [module.key for module in find_test_modules(laid)] == [("more", 0), ("tests", 0)]
    assert laid.startswith(CODE + more)


def test_modules_of_one_name_are_told_apart_by_their_order() -> None:
    old = f"mod a {{ {OLD} }}\nmod b {{ {SOFT} }}\n"
    new = f"mod a {{ {SOFT} }}\nmod b {{ {SOFT} }}\n"
    assert lay_tests_over(old, new) == old
    assert read_test_modules(old).count("mod tests") == 2
