"""The formatters that a project names, and the files for each."""

from __future__ import annotations

import pytest

from chargehand.checks.formatters import detect_formatters, formatted_by
from chargehand.checks.trees import MemoryTrees

RUFF = "[tool.ruff]\nline-length = 100\n"


def found(files: dict[str, str]) -> list[str]:
    trees = MemoryTrees()
    return [each.name for each in detect_formatters(trees, trees.add(files))]


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({"pyproject.toml": RUFF}, ["ruff"]),
        ({"ruff.toml": ""}, ["ruff"]),
        ({"pyproject.toml": RUFF + "[tool.black]\n"}, ["black"]),
        ({"pyproject.toml": "[project]\nname = 'x'\n", "a.py": ""}, []),
        ({"pyproject.toml": "this is no TOML ["}, []),
        ({".prettierrc": "{}"}, ["prettier"]),
        ({"package.json": '{"prettier": {}}'}, ["prettier"]),
        ({"package.json": '{"devDependencies": {"prettier": "3"}}'}, []),
        ({"go.mod": "module x\n"}, ["gofmt"]),
        ({"Cargo.toml": '[package]\nedition = "2024"\n'}, ["rustfmt"]),
        ({".clang-format": "BasedOnStyle: LLVM\n"}, ["clang-format"]),
        ({".editorconfig": "[*]\nindent_size = 2\n"}, []),
        ({".editorconfig": "[*.sh]\nindent_size = 2\n"}, ["shfmt"]),
        ({".editorconfig": "[*.{bash,sh}]\nindent_size = 2\n"}, ["shfmt"]),
        ({"ruff.toml": "", ".prettierrc.json": "{}", "go.mod": ""}, ["ruff", "prettier", "gofmt"]),
    ],
)
def test_formatters_are_detected_from_project_files(files: dict[str, str], names: list[str]) -> None:
    assert found(files) == names


def test_the_edition_of_rust_is_the_projects() -> None:
    trees = MemoryTrees()
    for text, edition in (('[package]\nedition = "2018"\n', "2018"), ('[package]\nedition = "$(x)"\n', "2021")):
        (rust,) = detect_formatters(trees, trees.add({"Cargo.toml": text}))
        assert rust.command == ("rustfmt", "--edition", edition, "--")


def test_formatted_files_exclude_vendored_files_and_can_be_limited() -> None:
    trees = MemoryTrees()
    paths = ["a.py", "src/b.py", "src2/c.py", "src/c.txt", "vendor/d.py", "node_modules/e.py", "link.py", "-x.py"]
    tree = trees.add({"ruff.toml": "", **dict.fromkeys(paths, "x=1\n")}, modes={"link.py": 0o120000})
    formatters = detect_formatters(trees, tree)
    assert formatted_by(trees, tree, formatters)["ruff"] == ("a.py", "src/b.py", "src2/c.py", "-x.py")
    assert formatted_by(trees, tree, formatters, within=["src/"])["ruff"] == ("src/b.py",)
    assert formatted_by(trees, tree, formatters, within=["a.py", "src2"])["ruff"] == ("a.py", "src2/c.py")
    assert formatted_by(trees, tree, formatters, within=["nowhere"])["ruff"] == ()
    assert formatted_by(trees, tree, formatters, within=["."])["ruff"] == (
        "a.py",
        "src/b.py",
        "src2/c.py",
        "-x.py",
    )
