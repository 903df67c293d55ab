"""Code that moves out of the reach of a coverage gate is named, and a person decides."""

from __future__ import annotations

import pytest

from chargehand.checks.areas import Areas
from chargehand.checks.inspection import inspect
from chargehand.checks.trees import MemoryTrees

SUMS = (
    "def add(a, b):\n    return a + b\n\n\n"
    "def price(count, each):\n    total = count * each\n    return total - 5\n"
)
RATE = (
    "def rate(kind):\n    if kind == 'a':\n        return 1\n    if kind == 'b':\n        return 2\n    return 3\n"
)
USES = "from MODULE import rate\n\n\n" + SUMS
GATE = "pytest --cov=calc --cov-fail-under=90"
PLAIN = "pytest -q"
OMIT = "[run]\nomit =\n    calc/_vendor/*\n    */compat.py\n[report]\nfail_under = 90\n"
EXCLUDE = OMIT + "exclude_also =\n    not measured\n    if TYPE_CHECKING:\n    raise NotImplementedError\n"
TABLES = (
    "[tool.pytest.ini_options]\naddopts = ['--cov=calc', '--cov-fail-under', '90']\n"
    "[tool.coverage.run]\nomit = ['calc/_vendor/*']\n"
)


def ask(
    command: str,
    settings: dict[str, str],
    new: dict[str, str],
    old: dict[str, str] | None = None,
    directory: str = "",
) -> list[tuple[str, str]]:
    """Return the rules, with paths, under which a change of a project needs a person."""
    trees = MemoryTrees()
    base = {"calc/sums.py": SUMS, "tests/test_sums.py": "def test(): pass\n", **settings, **(old or {})}
    place = f"{directory}/" if directory else ""
    before = trees.add({place + path: text for path, text in base.items()})
    after = trees.add({place + path: text for path, text in {**base, **new}.items()})
    areas = Areas(commands=(command,), directory=directory)
    found = inspect(trees.changes(before, after), trees, before, areas)
    return [(each.rule, each.path) for each in found if each.needs_person]


def uses(module: str, path: str, text: str = RATE) -> dict[str, str]:
    return {path: text, "calc/sums.py": USES.replace("MODULE", module)}


UNMEASURED = {
    "outside of the package": (GATE, {}, uses("rates", "rates.py"), {}),
    "another package": (GATE, {}, uses("rates", "rates/__init__.py"), {}),
    "outside of the source": (
        "coverage run -m pytest && coverage report",
        {".coveragerc": "[run]\nsource = calc\n[report]\nfail_under = 90\n"},
        uses("rates", "rates.py"),
        {},
    ),
    "left out by its name": (PLAIN, {".coveragerc": OMIT}, uses("calc.compat", "calc/compat.py"), {}),
    "a module that is there": (
        PLAIN,
        {".coveragerc": OMIT},
        uses("calc.compat", "calc/compat.py", "OLD = 1\n\n\n" + RATE),
        {"calc/compat.py": "OLD = 1\n"},
    ),
    "a directory that is left out": (
        PLAIN,
        {".coveragerc": OMIT},
        uses("calc._vendor", "calc/_vendor/rate.py"),
        {},
    ),
    "in pyproject": (PLAIN, {"pyproject.toml": TABLES}, uses("calc._vendor", "calc/_vendor/rate.py"), {}),
    "in setup.cfg": (
        GATE,
        {"setup.cfg": "[coverage:run]\nomit = calc/rates.py, x.py\n"},
        uses("calc.rates", "calc/rates.py"),
        {},
    ),
    "not included": (
        "coverage report --fail-under=90",
        {".coveragerc": "[run]\ninclude = calc/s*\n"},
        uses("calc.rates", "calc/rates.py"),
        {},
    ),
    "by the command": (
        "coverage run --omit='calc/r*' -m pytest && coverage report --fail-under 90",
        {},
        uses("calc.rates", "calc/rates.py"),
        {},
    ),
    "moved without a name": (
        GATE,
        {},
        {"rates.py": "a = 1\n" + RATE.partition("\n")[2], "calc/sums.py": SUMS},
        {"calc/sums.py": SUMS + RATE},
    ),
}


@pytest.mark.parametrize("directory", ["", "api"])
@pytest.mark.parametrize("case", UNMEASURED)
def test_code_that_is_not_measured_any_more_asks(case: str, directory: str) -> None:
    command, settings, new, old = UNMEASURED[case]
    (hidden,) = set(new) - {"calc/sums.py"}
    place = f"{directory}/" if directory else ""
    assert ask(command, settings, new, old, directory) == [("unmeasured_code", place + hidden)]
    if not settings:
        assert ask(PLAIN, settings, new, old, directory) == [], "without a gate nothing is hidden from it"


MEASURED = {
    "in the package": (GATE, {}, uses("calc.rates", "calc/rates.py")),
    "a script of its own": (GATE, {}, {"scripts/release.py": RATE, "calc/sums.py": SUMS + "\nEACH = 5\n"}),
    "a version": (
        PLAIN,
        {".coveragerc": OMIT + "", "calc/compat.py": "VERSION = 1\n"},
        {"calc/compat.py": "VERSION = 2\n", "calc/sums.py": SUMS + "\nfrom calc.compat import VERSION\n"},
    ),
    "only there": (PLAIN, {".coveragerc": OMIT, "calc/compat.py": "OLD = 1\n"}, {"calc/compat.py": RATE}),
    "a test": (GATE, {}, {"tests/test_rate.py": RATE, "calc/sums.py": SUMS + "\n\n" + RATE}),
    "settings that cannot be read": (GATE, {".coveragerc": "[run\n"}, uses("calc.rates", "calc/rates.py")),
    "a limit of nothing": (
        PLAIN,
        {".coveragerc": OMIT.replace("90", "0")},
        uses("calc.compat", "calc/compat.py"),
    ),
}


@pytest.mark.parametrize("case", MEASURED)
def test_measured_or_never_measured_code_requires_no_decision(case: str) -> None:
    command, settings, new = MEASURED[case]
    assert ask(command, settings, new) == []


@pytest.mark.parametrize(
    ("line", "asks"),
    [("exec(text)", True), ("runpy.run_path('a.txt')", True), ("session.exec(query)", False), ("# exec", False)],
)
def test_code_that_is_run_by_its_text_asks(line: str, asks: bool) -> None:
    found = ask(GATE, {}, {"calc/sums.py": f"{SUMS}\n{line}\n"})
    assert found == ([("unmeasured_code", "calc/sums.py")] if asks else [])
    assert ask(PLAIN, {}, {"calc/sums.py": f"{SUMS}\n{line}\n"}) == []


BLOCK = "if TYPE_CHECKING:\n" + "".join(f"    {line}\n" for line in RATE.splitlines())
EXCLUDED = {
    "a comment": (SUMS + "\n\n" + RATE.replace("(kind):", "(kind):  # not measured"), True),
    "a block of code": (SUMS + BLOCK, True),
    "a block of imports": (
        SUMS + "if TYPE_CHECKING:\n    import a\n    from b import (\n        c,\n    )\n",
        False,
    ),
    "what is to be written": (SUMS + "\n\ndef rate(kind):\n    raise NotImplementedError\n", False),
    "a line that was there": (SUMS.replace("def add", "def plus"), False),
}


@pytest.mark.parametrize("case", EXCLUDED)
def test_excluded_lines_require_a_decision_if_they_contain_code(case: str) -> None:
    text, asks = EXCLUDED[case]
    found = ask("coverage run -m pytest && coverage report", {".coveragerc": EXCLUDE}, {"calc/sums.py": text})
    assert found == ([("check_suppressed", "calc/sums.py")] if asks else [])


def test_a_pattern_that_takes_too_long_counts_as_a_match() -> None:
    settings = {".coveragerc": "[report]\nfail_under = 90\nexclude_lines =\n    (a|aa)+$\n"}
    slow = f"VALUE = '{'a' * 200}!'\n"
    assert ask(PLAIN, settings, {"calc/sums.py": SUMS + slow}) == []
    asked = ask("coverage run -m pytest", settings, {"calc/sums.py": SUMS + slow})
    assert [path for _, path in asked] == ["calc/sums.py"]
