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
from chargehand.knowledge.records import CodeHits

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


def names(found: CodeHits) -> list[tuple[str, str]]:
    return [(hit.path, hit.name) for hit in found.hits]


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
    found = made.who_calls("add_tax")
    hits = found.hits
    assert (hits[0].path, hits[0].line, hits[0].name, hits[0].kind) == ("shop/cart.py", 6, "Cart.total", "call")
    assert (hits[-1].path, hits[-1].kind) == ("shop/cart.py", "import")
    assert names(made.who_calls("prices::add_tax")) == names(found)


def test_impact_follows_calls(made: RepositoryMap) -> None:
    assert names(made.impact_of(["rate_of"])) == [
        ("shop/prices.py", "add_tax"),
        ("shop/cart.py", "Cart.total"),
        ("shop/pages.py", "show_cart"),
        ("tests/test_cart.py", "test_total"),
    ]
    assert [hit.depth for hit in made.impact_of(["rate_of"]).hits] == [0, 1, 2, 2]


def test_tests_are_found_for_symbols_and_paths(made: RepositoryMap) -> None:
    assert names(made.tests_for(["rate_of"])) == [("tests/test_cart.py", "test_total")]
    assert names(made.tests_for(["shop/mail.py"])) == [("tests/test_mail.py", "test_letter")]


def test_an_unknown_symbol_is_an_error(made: RepositoryMap) -> None:
    for query in (made.who_calls, lambda name: made.impact_of([name]), lambda name: made.tests_for([name])):
        for name in ("no_such_symbol", "", "/", "\udcff", "a\udcff.py"):
            with pytest.raises(NotFoundError) as raised:
                query(name)
            assert raised.value.code == "symbol_not_found"
    assert made.search_code("\udcff") == CodeHits()


def test_paths_are_relative_to_a_directory_or_to_the_top(made: RepositoryMap) -> None:
    found = [("tests/test_mail.py", "test_letter")]
    for path in ("shop/mail.py", "./shop/mail.py", "shop//mail.py", "/shop/mail.py", "shop/../shop/mail.py"):
        assert names(made.tests_for([path])) == found
        assert names(made.tests_for([path], directory="tests")) == found
    for path in ("mail.py", "./mail.py", "../shop/mail.py"):
        assert names(made.tests_for([path], directory="shop")) == found
        assert names(made.impact_of([path], directory="shop")) == found
    assert made.tests_for(["."], directory="shop").hits
    assert made.tests_for(["./shop/"]).hits
    with pytest.raises(NotFoundError):
        made.tests_for(["./mail.py"])


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    """A symbol with very many users has tests, and each list says how many places it lacks."""
    kit = MapKit(tmp_path)
    files = {f"a/m{number:04}.py": f"def use{number}():\n    hot()\n" for number in range(1200)}
    files |= {
        f"tests/test_{name}.py": f"def test_{name}():\n    hot()\n"
        for name in (*(f"m{number:02}" for number in range(60)), "heat")
    }
    made = kit.map({**files, "heat.py": "def hot(): ...\n", "text.md": "hot\n" * 3})
    tests = made.tests_for(["heat.py"])
    assert names(tests)[0] == ("tests/test_heat.py", "test_heat")  # it shares a word with the target
    assert (len(tests.hits), tests.left_out, tests.counted) == (50, 11, False)
    assert tests.note() == "at least 11 more are left out"
    impact = made.impact_of(["hot"], most=100)
    assert (len(impact.hits), impact.left_out, impact.counted) == (100, 900, False)
    calls = made.who_calls("hot")
    assert (len(calls.hits), calls.left_out, calls.counted) == (50, 1211, True)
    assert calls.note() == "1211 more are left out"
    found = made.search_code("which test", most=10)
    assert (len(found.hits), found.left_out, found.counted) == (10, 51, False)
    assert made.render("test", tokens=100).endswith("less likely files are left out.")
    assert made.search_code("heat").note() == ""
    kit.index.close()


def test_of_a_common_name_the_likely_users_are_followed(tmp_path: Path) -> None:
    kit = MapKit(tmp_path)
    files = {f"a/m{number}.py": f"class C{number}:\n    def get(self): ...\n" for number in range(30)}
    files |= {
        f"tests/test_m{number}.py": f"def test_c{number}():\n    assert C{number}().get()\n"
        for number in range(30)
    }
    made = kit.map(files)
    one = made.tests_for(["C7.get"])
    assert names(one) == [("tests/test_m7.py", "test_c7")]
    assert one.common == ("get",)
    assert one.note() == "the users of common names are followed only in part: get"
    assert len(made.tests_for(["get"]).hits) == 30
    kit.index.close()


def test_recursion_ends(tmp_path: Path) -> None:
    kit = MapKit(tmp_path)
    made = kit.map({"a.py": "def f():\n    g()\n\n\ndef g():\n    f()\n"})
    assert names(made.impact_of(["f"])) == [("a.py", "g")]
    kit.index.close()
