"""Files that go opens but does not compile, by their names and build constraints."""

from __future__ import annotations

import os

import pytest

from chargehand.checks.go_builds import find_skipped
from chargehand.checks.trees import MemoryTrees

X86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the names are those of another processor")


@X86
@pytest.mark.parametrize(
    ("path", "head", "skipped"),
    [
        ("calc.go", "", False),
        ("windows.go", "", False),
        ("root_windows.go", "", True),
        ("root_windows_test.go", "", True),
        ("root_linux.go", "", False),
        ("root_linux_arm64.go", "", True),
        ("root_windows_amd64.go", "", True),
        ("root_windows_more.go", "", False),
        ("sub/root_amd64.go", "", False),
        ("a.go", "//go:build linux && amd64", False),
        ("a.go", "// Copyright\n\n//go:build !linux", True),
        ("a.go", "//go:build (darwin || windows) && cgo", True),
        ("a.go", "//go:build (darwin || custom) && amd64", False),
        ("a.go", "//go:build ignore", True),
        ("a.go", "//go:build integration", False),
        ("a.go", "//go:build !integration && windows // why", True),
        ("a.go", "//go:build go1.18 && unix", False),
        ("a.go", "//go:build )(", False),
        ("a.py", "//go:build windows", False),
    ],
)
def test_files_excluded_by_name_or_build_constraint_are_skipped(path: str, head: str, skipped: bool) -> None:
    trees = MemoryTrees()
    text = f"{head}\n\npackage calc\n\n//go:build windows\nfunc F() {{}}\n"
    assert find_skipped([path], trees, trees.add({path: text})) == (frozenset({path}) if skipped else frozenset())
