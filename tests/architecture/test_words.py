"""Each class name has one meaning and is no picture that the glossary rules out; the glossary is short."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.architecture import trees

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src/chargehand").rglob("*.py"))
GLOSSARY = (ROOT / "docs/reference/glossary.md").read_text()
RULED_OUT = {
    "Desk",
    "Shelf",
    "Tape",
    "Bill",
    "Clerk",
    "Yard",
    "Meeting",
    "Cast",
    "Sight",
    "Spot",
    "Look",
    "Keeper",
}
# In tests and benchmarks too, in which these were the names of helpers.
KITS = {"Shop", "Workshop", "Fleet", "Stage"}
PARTICIPLE = re.compile(r"_+[a-z]*(?:ed|told|kept|said|found|made|shown|left)_*")
# Two only look like participles (the verb `_need`), one is in a released migration.
PARTICIPLES_LEFT = 3


def nodes(kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> Iterator[tuple[Path, ast.AST]]:
    for path in SOURCES:
        for node in trees.nodes(path):
            if isinstance(node, kind):
                yield path, node


def class_names() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path, node in nodes(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
        # Programs that run inside a sandbox cannot import the product, so each has its own small parts.
        if "/inside/" not in str(path) and not path.name.endswith("relay.py"):
            found[node.name].append(str(path.relative_to(ROOT / "src/chargehand")))
    return found


def test_no_class_name_has_two_meanings() -> None:
    assert {name: places for name, places in class_names().items() if len(places) > 1} == {}


def test_class_names_contain_no_ruled_out_words() -> None:
    assert sorted(RULED_OUT & set(class_names())) == []
    others = [path for place in ("tests", "benchmarks") for path in (ROOT / place).rglob("*.py")]
    named = [found for path in others for found in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)]
    assert [name for name in named if any(re.search(f"{each}$", name) for each in RULED_OUT | KITS)] == []


def test_lone_participles_become_fewer() -> None:
    names = [
        f"{path.name}:{node.name}"
        for path, node in nodes((ast.FunctionDef, ast.AsyncFunctionDef))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and PARTICIPLE.fullmatch(node.name)
    ]
    assert len(names) <= PARTICIPLES_LEFT, sorted(names)


def test_the_glossary_is_short_and_says_each_word_once() -> None:
    words = re.findall(r"^\| ([a-z][a-z -]*) \|", GLOSSARY, re.MULTILINE)[1:]
    assert words == sorted(set(words))
    assert 40 <= len(words) <= 80


@pytest.mark.parametrize(("name", "lone"), [("_told", True), ("_asked", True), ("_request_model", False)])
def test_the_participle_pattern(name: str, lone: bool) -> None:
    assert bool(PARTICIPLE.fullmatch(name)) is lone


def texts_of_messages(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the strings of a module apart from its docstrings."""
    documented = {
        id(node.value) for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


def test_no_message_names_a_page_that_an_installed_copy_lacks() -> None:
    page = re.compile(r"\bdocs/(?:how-to|reference|tutorial)/")
    named = [path.name for path in SOURCES for text in texts_of_messages(trees.nodes(path)) if page.search(text)]
    for path in (ROOT / "src/chargehand").rglob("*.toml"):
        named += [
            path.name for line in path.read_text().splitlines() if not line.startswith("#") and page.search(line)
        ]
    assert not named
    example = '"""See docs/how-to/a.md."""\nHINT = "see docs/how-to/a.md"'
    assert list(texts_of_messages(tuple(ast.walk(ast.parse(example))))) == ["see docs/how-to/a.md"]
