"""The twenty tasks of a plan on the standard library, each with its scripted agent."""

from __future__ import annotations

import json
from typing import Any

from test_reviews import script
from tests.native_kit import FINISH, call, says, scripted

from chargehand.models.scripts import Script, ScriptLine

HELPERS = '''\
import json, re
path = pathlib.Path
def make(name, text):
    path(name).parent.mkdir(parents=True, exist_ok=True)
    path(name).write_text(text)
def append(name, text):
    make(name, (path(name).read_text() if path(name).exists() else "") + text)
def swap(name, old, new):
    text = path(name).read_text()
    assert text.count(old) == 1, (name, old)
    path(name).write_text(text.replace(old, new))
def test(name, module, *lines):
    body = "".join(f"        {each}\\n" for each in lines)
    name = name.replace("-", "_")
    make(f"tests/test_{name}.py", f"""\\
import unittest

import {module}


class AddedTest(unittest.TestCase):
    def test_it(self):
{body}""")
'''
ASKS = (
    "make(os.environ['CHARGEHAND_MESSAGE'], json.dumps({'type': 'clarification_request',"
    " 'status': 'request_clarification', 'payload': {'question': 'How wide?'}}))\n"
)


def works(body: str) -> str:
    """Return the agent that runs a Python program, with these helpers, in the workspace."""
    return script(HELPERS + body)


def adds(name: str, file: str, code: str, *asserts: str, more: str = "", **keys: Any) -> dict[str, Any]:
    """Return the task that adds code to a module of the library, and a test for it."""
    module = file.removeprefix("lib/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    lines = [each.replace("IT.", f"{module}.") for each in asserts]
    body = f"append({file!r}, {code!r})\ntest({name!r}, {module!r}, *{lines!r})\n{more}"
    return {"id": name, "text": f"Add what {name} needs to {module}", "agent": works(body), **keys}


# One makes `quote` of `html.escape` keyword-only, the other passes it by position: each is correct alone.
STRICT = """\
swap("lib/html/__init__.py", "def escape(s, quote=True):", "def escape(s, *, quote=True):")
test("strict", "html", "with self.assertRaises(TypeError):", "    html.escape('x', False)")
"""
TABLE = """from html import escape


def row(*cells):
    return "".join(f"<td>{escape(each, False)}</td>" for each in cells)
"""
TABLE_TEST = (
    "import unittest\n\nfrom html.table import row\n\n\nclass TableTest(unittest.TestCase):\n"
    "    def test_row(self):\n        self.assertEqual(row('a&', '\"'), '<td>a&amp;</td><td>\"</td>')\n"
)
# The conversation of the second: it asks a person, works, and continues after hearing of both changes.
TABLE_TALK = Script(
    lines=(
        *scripted(
            (
                says("", call("ask", question="Escape quotes in cells?", options=["yes", "no"])),
                says("", call("bash", command=f"cat > lib/html/table.py <<'E'\n{TABLE}E")),
                says("", call("bash", command=f"cat > tests/test_table.py <<'E'\n{TABLE_TEST}E")),
                FINISH,
            )
        ).lines,
        ScriptLine(
            attempt=2,
            turn=1,
            expect=("is not together with what was merged since", "escape() takes 1 positional argument"),
            reply=says("", call("edit", path="lib/html/table.py", old="(each, False)", new="(each, quote=False)")),
        ),
        ScriptLine(attempt=2, turn=2, reply=FINISH),
    )
)
# Both insert their entry at the top without declaring it: the later one finds its entry missing and inserts it
# again.
NEWS = """\
swap("lib/news.py", "ENTRIES = [\\n", "ENTRIES = [\\n    {name!r},\\n")
"""
# Changes a file that its task does not declare, and cannot finish without a message from a person.
WRAP = f"""\
wide = re.search(r"a person said: (\\d+)", request)
width = wide[1] if wide else "0"
append("lib/textwrap.py", "\\n\\ndef wrap_words(text):\\n    return wrap(text, width=" + width + ")\\n")
test("wrap-words", "textwrap", "self.assertEqual(textwrap.wrap_words('one two three'), ['one two', 'three'])")
if not wide:
    {ASKS.strip()}
"""


_LINES = """import json


def dump_lines(values):
    return "".join(json.dumps(each) + "\\n" for each in values)
"""


def semantic() -> list[dict[str, Any]]:
    """Return the two tasks whose changes only break in combination."""
    return [
        {
            "id": "strict",
            "text": "Take quote of html.escape by keyword only",
            "agent": works(STRICT),
            "change": ["lib/html/__init__.py"],
            "priority": 9,
        },
        {
            "id": "table",
            "text": "Add rows of tables to html",
            "agent": "native",
            "models": ["table"],
            "make": ["lib/html/table.py", "tests/test_table.py"],
            "priority": 9,
        },
    ]


def undeclared() -> list[dict[str, Any]]:
    """Return a task that changes an undeclared file and asks, and a later one that declares that file."""
    wide = "\n\ndef wrap_wide(text):\n    return wrap(text, width=40)\n"
    return [
        {"id": "wrap-words", "text": "Wrap words", "agent": works(WRAP), "priority": 9},
        adds(
            "wrap-wide",
            "lib/textwrap.py",
            wide,
            "self.assertEqual(IT.wrap_wide('a b'), ['a b'])",
            after=["lines"],
            change=["lib/textwrap.py", "tests/test_wrap_wide.py"],
        ),
        adds(
            "lines",
            "lib/json/lines.py",
            _LINES,
            "self.assertEqual(IT.dump_lines([1, 'a']), '1\\n\"a\"\\n')",
            after=["news-one", "news-two"],
            make=["lib/json/lines.py"],
        ),
    ]


def news() -> list[dict[str, Any]]:
    """Return two tasks that change the same line; the plan does not show it."""
    return [
        {"id": f"news-{name}", "text": f"Tell of {name}", "agent": works(NEWS.format(name=name)), "priority": 8}
        for name in ("one", "two")
    ]


def by_file() -> list[dict[str, Any]]:
    """Return two tasks that both declare a file."""
    return [
        adds(
            f"json-{name}",
            "lib/json/__init__.py",
            f"\n\ndef dumps_{name}(value):\n    return dumps(value, {how})\n",
            f"self.assertEqual(IT.loads(IT.dumps_{name}({{'b': [1], 'a': 2}})), {{'b': [1], 'a': 2}})",
            change=["lib/json/__init__.py"],
        )
        for name, how in (("sorted", "sort_keys=True"), ("short", "separators=(',', ':')"))
    ]


def by_area() -> list[dict[str, Any]]:
    """Return two tasks that may only change the same area, and their own tests."""
    code = {
        "names": "\n\ndef level_names():\n    return sorted(_levelToName.values())\n",
        "counts": "\n\ndef level_count():\n    return len(_levelToName)\n",
    }
    asserts = {
        "names": "self.assertIn('INFO', IT.level_names())",
        "counts": "self.assertGreater(IT.level_count(), 4)",
    }
    return [
        adds(
            f"log-{name}",
            "lib/logging/__init__.py",
            code[name],
            asserts[name],
            areas=["lib/logging/", f"tests/test_log_{name}.py"],
        )
        for name in code
    ]


_FLAT = """

def flat(read):
    return {f"{s}.{k}": v for s in read.sections() for k, v in read[s].items()}
"""
_FLAG = """

def flag(parser, name):
    return parser.add_argument("--" + name, action="store_true")
"""
_DICTS = """

def read_dicts(text):
    return list(DictReader(text.splitlines()))
"""
_COUNTS = """from email.ids import new_id


def new_ids(n):
    return [new_id(each) for each in range(n)]
"""


def plain() -> list[dict[str, Any]]:
    """Return eight tasks without conflicts, some with dependencies."""
    id_code = "def new_id(n):\n    return f'<{n}@example.org>'\n"
    type_code = "def types(made):\n    return [each.get_content_type() for each in made.walk()]\n"
    word_code = "\n\ndef count_words(text):\n    return len(split(text))\n"
    spread_code = "\n\ndef spread(data):\n    return max(data) - min(data)\n"
    walks = "import email.message; self.assertEqual(IT.types(email.message.Message()), ['text/plain'])"
    flags = "p = IT.ArgumentParser(); IT.flag(p, 'x'); self.assertTrue(p.parse_args(['--x']).x)"
    flats = "p = IT.ConfigParser(); p.read_string('[s]\\nk = v'); self.assertEqual(IT.flat(p), {'s.k': 'v'})"
    dicts = "self.assertEqual(IT.read_dicts('a,b\\n1,2'), [{'a': '1', 'b': '2'}])"
    return [
        adds("mail-ids", "lib/email/ids.py", id_code, "self.assertEqual(IT.new_id(1), '<1@example.org>')"),
        adds(
            "mail-count",
            "lib/email/counts.py",
            _COUNTS,
            "self.assertEqual(len(set(IT.new_ids(9))), 9)",
            after=["mail-ids"],
        ),
        adds("mail-walk", "lib/email/walks.py", type_code, walks, after=["mail-count"]),
        adds("csv-dicts", "lib/csv.py", _DICTS, dicts),
        adds("args-flag", "lib/argparse.py", _FLAG, flags),
        adds("words", "lib/shlex.py", word_code, "self.assertEqual(IT.count_words('a \\'b c\\''), 2)"),
        adds("flat", "lib/configparser.py", _FLAT, flats, after=["args-flag"]),
        adds(
            "spread",
            "lib/statistics.py",
            spread_code,
            "self.assertEqual(IT.spread([3, 1, 7]), 6)",
            after=["csv-dicts"],
        ),
    ]


def last(*after: str) -> dict[str, Any]:
    """Return the task that uses the results of all others."""
    agent = works(
        'names = sorted(each.stem for each in path("tests").glob("test_*.py"))\n'
        'make("lib/index.py", f"TESTS = {names!r}\\n")\n'
        "test('index', 'index', 'self.assertIn(\"test_library\", index.TESTS)')\n"
    )
    return {"id": "index", "text": "List all tests", "agent": agent, "after": list(after)}


def twenty() -> list[dict[str, Any]]:
    """Return all twenty tasks."""
    tasks = [*semantic(), *undeclared(), *news(), *by_file(), *by_area(), *plain()]
    return [*tasks, last(*(task["id"] for task in tasks))]


def six() -> list[dict[str, Any]]:
    """Return the smallest set of tasks that shows each kind of conflict."""
    held, names = by_area(), ("wrap-words", "wrap-wide")
    wrapped = [{**task, "after": ["log-names"]} if task["id"] == "wrap-wide" else task for task in undeclared()]
    return [*semantic(), *(task for task in wrapped if task["id"] in names), *held]


def config(place: str) -> str:
    """Return the configuration whose model replays the conversation of `table`, from a file at `place`.

    No faults are tried: that takes half of the processor time of a plan whose tasks add tests.
    """
    model = f'[models.table]\nprovider = "script"\nscript = {json.dumps(place)}\nprice = 1.0\n'
    return f'{model}[limits]\nfault_time = "1s"\n'
