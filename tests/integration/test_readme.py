"""The README and the pages about changes, subscriptions and models: their commands work as shown, offline."""

from __future__ import annotations

import html
import re
import tomllib
from pathlib import Path

import pytest
from tests.conftest import make_repository
from tests.page_kit import Reader, answer, is_drawn, read_blocks, reader_with_model, steps

from chargehand.app.demo.project import make_project
from chargehand.configuration.records import RepositoryFile, ResolvedConfig
from chargehand.configuration.resolve import resolve

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
REQUEST = "Fix the discount"
CART = {
    "cart.py": "def discounted(price, percent):\n    return price - price * percent // 100\n",
    "test_cart.py": (
        "import unittest\n\nfrom cart import discounted\n\n\nclass CartTest(unittest.TestCase):\n"
        "    def test_it(self):\n        self.assertEqual(discounted(1000, 20), 800)\n"
    ),
}


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return reader_with_model(tmp_path)


@pytest.mark.needs_bwrap
def test_the_readme_shows_a_real_run(reader: Reader) -> None:
    reader.place = make_project(reader.place)
    commands = [step.command for step in steps(README) if step.command]
    assert len(commands) == 7
    for command in commands:
        if command == f'chargehand run "{REQUEST}"':
            drawn = answer(reader.open(command), [("answer later): ", "4")])
        elif not command.startswith("chargehand demo"):  # it has its own test
            reader.run(command)
    # Every line of the recording comes out, apart from what differs each time and where lines are wrapped.
    picture = html.unescape((ROOT / "docs/images/run.svg").read_text())
    rows = re.findall(r"<text[^>]*line-(\d+)\)[^>]*>(.*?)</text>", picture)
    lines = ["".join(text for number, text in rows if int(number) == each) for each in range(1, len(rows))]
    # Times of tests are shown in other forms too.
    pattern, shown = r"\d+\.\d+s?", "\n".join(lines).replace("\xa0", " ")
    assert is_drawn(re.sub(pattern, "", shown), re.sub(pattern, "", drawn)), drawn
    assert len(rows) > 30


def test_the_configuration_shown_is_accepted() -> None:
    (text,) = read_blocks((ROOT / "docs/how-to/first-repository.md").read_text(), "toml")
    assert tomllib.loads(text)
    resolved: ResolvedConfig = resolve(repository=RepositoryFile(content=text.encode(), commit="0" * 40))
    assert resolved.config.project.checks == ("python -m pytest -q",)
    assert not resolved.untrusted


@pytest.mark.needs_bwrap
@pytest.mark.parametrize(("page", "count"), [("uncommitted-changes", 6), ("subscriptions", 1), ("own-model", 7)])
def test_the_commands_of_a_page_work(reader: Reader, page: str, count: int) -> None:
    reader.place = make_repository(reader.place / "shop", CART)
    with (reader.place / "cart.py").open("a") as file:
        file.write("\n\nRATES = (10, 20)\n")
    assert reader.follow((ROOT / f"docs/how-to/{page}.md").read_text()) == count
