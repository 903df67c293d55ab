"""Texts are in plain English: mannered phrases are counted, and each package has a budget.

Texts are docstrings, comments, and the words of tests' names.

A phrase is fine now and then. The budgets are hits per 1,000 words, and may only fall.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.architecture import trees

ROOT = Path(__file__).parents[2]
MANNERED = re.compile(
    "|".join((
        r"\b[Ww]hat (?:is|was|are|were|it|they|has|may|can|must|an?|the|this|each|one)\b",
        r"\b[Ww]hat (?:stands|lies|comes|goes|runs)\b",
        r"\b[Ww]here (?:it|there|that|none|one|no|nothing|nobody|they|an?|any|another|each|this|its)\b",
        r"(?:^|(?<=[^\w, ]) )(?:[Ww]ho|[Ww]hoever) \w+s\b",
        r"\b(?:[Nn]obody|[Ss]omebody|anew|none|besides?|told|tells|one that)\b",
        r"\b(?:stands?|stood|lies|lay|goes on|went on|going on)\b",
        r"\bof (?:its|their|his|our|your) own\b",
        r"\b(?:is|are|was|were) there\b(?! (?:an?|any|no|to)\b)",
    ))
)  # fmt: skip
PACKAGES = sorted(str(path.parent.relative_to(ROOT)) for path in (ROOT / "src/chargehand").glob("*/__init__.py"))
# The records of the MCP server are schemas that clients have stored.
BUDGETS = dict.fromkeys((*PACKAGES, "web/src", "benchmarks", "tests"), 2.0) | {"src/chargehand/mcp": 3.0}


def texts(path: Path) -> Iterator[str]:
    """Yield each docstring and comment of a source file, and the words of each test's name."""
    source = path.read_text()
    if path.suffix != ".py":
        yield from re.findall(r"//[^\n]*|/\*.*?\*/", source, re.DOTALL)
        return
    for node in trees.nodes(path) if path.is_relative_to(ROOT / "src") else ast.walk(ast.parse(source)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and (text := ast.get_docstring(node)):
            yield text
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name.replace("_", " ")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# type:", "# noqa")):
            yield token.string


def count(place: Path) -> tuple[int, int]:
    """Return the number of mannered phrases and of words below a directory; generated files are left out."""
    hits = words = 0
    for path in sorted(place.rglob("*")):
        if path.suffix in (".py", ".ts", ".tsx") and path.name != "types.ts" and path != Path(__file__):
            for text in texts(path):
                hits += len(MANNERED.findall(text))
                words += len(text.split())
    return hits, words


@pytest.mark.parametrize(("place", "budget"), BUDGETS.items())
def test_a_package_keeps_to_its_budget(place: str, budget: float) -> None:
    hits, words = count(ROOT / place)
    assert words > 100
    assert 1_000 * hits / words <= budget


def test_a_mannered_text_is_counted(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(
        '"""What it holds goes on where none is told."""\n# it lies there, anew\nX = "none"\n'
    )
    (tmp_path / "page.tsx").write_text("/* nobody waits for what is there */\nconst none = 1;\n")
    assert count(tmp_path) == (8, 22)
    (tmp_path / "old.py").write_text('"""The lease of a mission: its holder and when it ends."""\n')
    (tmp_path / "page.tsx").unlink()
    assert count(tmp_path)[0] == 0
    (tmp_path / "old.py").write_text("def test_what_is_told_stands(): ...\n")
    assert count(tmp_path)[0] == 3
