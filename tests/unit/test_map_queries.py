"""The map for a request, and the queries: on a small project whose answers are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.knowledge_kit import MapKit

from chargehand.core.errors import NotFoundError
from chargehand.knowledge.maps import RepositoryMap

FILES = {
    "shop/prices.py": '"""Prices with taxes."""\n\n\ndef add_tax(net):\n    return net * rate_of("de")\n\n\n'
    "def rate_of(country):\n    return 1.19\n",
    "shop/cart.py": "from shop.prices import add_tax\n\n\nclass Cart:\n    def total(self):\n"
    "        return add_tax(sum(self.items))\n\n    def clear(self):\n        self.items = []\n",
    "shop/pages.py": "from shop.cart import Cart\n\n\ndef show_cart():\n    return Cart().total()\n",
    "shop/mail.py": '"""Sends letters to customers."""\n\n\ndef send_letter(to):\n    return to\n',
    "tests/test_cart.py": "from shop.cart import Cart\n\n\ndef test_total():\n    assert Cart().total() == 0\n",
    "tests/test_mail.py": "from shop.mail import send_letter\n\n\ndef test_letter():\n    send_letter('a')\n",
    "README.md": "# Shop\n\nA shop with a cart.\n",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryMap]:
    kit = MapKit(tmp_path_factory.mktemp("map"))
    yield kit.map(FILES)
    kit.index.close()


def names(hits: tuple[object, ...]) -> list[tuple[str, str]]:
    return [(hit.path, hit.name) for hit in hits]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("request_text", "first"),
    [
        ("The tax is added twice", "shop/prices.py"),
        ("send_letter fails for an empty address", "shop/mail.py"),
        ("See shop/pages.py: it is slow", "shop/pages.py"),
        ("`Cart.clear` keeps the items", "shop/cart.py"),
        ("letters to customers are lost", "shop/mail.py"),
    ],
)
def test_the_likely_file_comes_first(made: RepositoryMap, request_text: str, first: str) -> None:
    assert made.rank(request_text)[0] == first


def test_files_that_are_used_by_the_named_ones_are_listed(made: RepositoryMap) -> None:
    assert "shop/prices.py" in made.rank("See shop/cart.py")


def test_the_map_shows_definitions_with_lines(made: RepositoryMap) -> None:
    lines = made.render("add_tax adds the tax twice").splitlines()
    at = lines.index("shop/prices.py")
    assert lines[at + 1] == "  4: def add_tax(net):"


def test_a_request_about_nothing_has_no_map(made: RepositoryMap) -> None:
    assert made.render("") == made.render("the of and it") == made.render("Zweifelsohne") == ""


@given(st.text(max_size=200), st.integers(1, 400))
def test_a_map_fits_its_budget_and_is_always_the_same(made: RepositoryMap, text: str, tokens: int) -> None:
    request = f"{text} cart tax"
    first = made.render(request, tokens=tokens)
    assert len(first.encode()) <= 4 * tokens
    assert made.render(request, tokens=tokens) == first


@given(st.text(max_size=80))
def test_any_words_can_be_searched(made: RepositoryMap, words: str) -> None:
    made.search_code(words)


def test_search_finds_names_and_words(made: RepositoryMap) -> None:
    assert names(made.search_code("add_tax"))[0] == ("shop/prices.py", "add_tax")
    assert ("shop/prices.py", "rate_of") in names(made.search_code("rate"))
    assert names(made.search_code("Cart.total"))[0] == ("shop/cart.py", "Cart.total")


def test_callers_are_listed_with_the_definition_around_them(made: RepositoryMap) -> None:
    hits = made.who_calls("add_tax")
    assert (hits[0].path, hits[0].line, hits[0].name, hits[0].kind) == ("shop/cart.py", 6, "Cart.total", "call")
    assert (hits[-1].path, hits[-1].kind) == ("shop/cart.py", "import")
    assert names(made.who_calls("prices::add_tax")) == names(hits)


def test_impact_follows_calls(made: RepositoryMap) -> None:
    assert names(made.impact_of(["rate_of"])) == [
        ("shop/prices.py", "add_tax"),
        ("shop/cart.py", "Cart.total"),
        ("shop/pages.py", "show_cart"),
        ("tests/test_cart.py", "test_total"),
    ]
    assert [hit.depth for hit in made.impact_of(["rate_of"])] == [0, 1, 2, 2]


def test_tests_are_found_for_symbols_and_paths(made: RepositoryMap) -> None:
    assert names(made.tests_for(["rate_of"])) == [("tests/test_cart.py", "test_total")]
    assert names(made.tests_for(["shop/mail.py"])) == [("tests/test_mail.py", "test_letter")]


def test_an_unknown_symbol_is_an_error(made: RepositoryMap) -> None:
    for query in (made.who_calls, lambda name: made.impact_of([name]), lambda name: made.tests_for([name])):
        with pytest.raises(NotFoundError) as raised:
            query("no_such_symbol")
        assert raised.value.code == "symbol_not_found"


def test_recursion_ends(tmp_path: Path) -> None:
    kit = MapKit(tmp_path)
    made = kit.map({"a.py": "def f():\n    g()\n\n\ndef g():\n    f()\n"})
    assert names(made.impact_of(["f"])) == [("a.py", "g")]
    kit.index.close()
