"""A repository of real code that every machine has: part of Python's standard library, with our own tests.

It is copied from the interpreter that sandboxes see when a test runs; this repository contains no copy.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.conftest import git

PATH = "/usr/local/bin:/usr/bin:/bin"
PARTS = (
    "argparse.py",
    "calendar.py",
    "configparser.py",
    "csv.py",
    "difflib.py",
    "email",
    "html",
    "http",
    "json",
    "logging",
    "shlex.py",
    "statistics.py",
    "textwrap.py",
)
CHECK = "PYTHONPATH=lib python3 -m unittest discover -q -s tests -t ."
TESTS = """\
import argparse, calendar, configparser, csv, difflib, email, html, io, json, logging
import news, pathlib, shlex, textwrap
import email.message, email.policy, http.cookies, statistics
import unittest


class LibraryTest(unittest.TestCase):
    def test_it_is_this_one(self):
        lib = str(pathlib.Path("lib").resolve())
        for module in (argparse, calendar, configparser, csv, difflib, email, html, json, logging, textwrap):
            self.assertTrue(module.__file__.startswith(lib), module)

    def test_json(self):
        value = {"a": [1, 2.5, None, True, "\\u00fc"], "b": {"c": []}}
        self.assertEqual(json.loads(json.dumps(value, indent=1)), value)
        with self.assertRaises(json.JSONDecodeError) as caught:
            json.loads("[1,\\n 2,]")
        self.assertEqual(caught.exception.lineno, 2)

    def test_mail(self):
        made = email.message.EmailMessage()
        made["Subject"], made["To"] = "\\u00dcber", "a@example.org, b@example.org"
        made.set_content("one\\n")
        made.add_attachment(b"\\0\\1", maintype="application", subtype="octet-stream", filename="x.bin")
        read = email.message_from_bytes(bytes(made), policy=email.policy.default)
        self.assertEqual(read["Subject"], "\\u00dcber")
        self.assertEqual([part.get_filename() for part in read.iter_attachments()], ["x.bin"])

    def test_text(self):
        self.assertEqual(textwrap.wrap("one two three", 7), ["one two", "three"])
        self.assertEqual(textwrap.dedent("  a\\n   b\\n"), "a\\n b\\n")
        self.assertEqual(shlex.split("a 'b c' # d", comments=True), ["a", "b c"])
        self.assertEqual(html.unescape(html.escape("<&'\\">")), "<&'\\">")
        self.assertEqual(difflib.get_close_matches("aple", ["apple", "pear"]), ["apple"])

    def test_cookies(self):
        self.assertEqual(http.cookies.SimpleCookie("a=1; b=2")["b"].value, "2")

    def test_tables(self):
        self.assertEqual(list(csv.DictReader(io.StringIO("a,b\\n1,2\\n"))), [{"a": "1", "b": "2"}])
        read = configparser.ConfigParser()
        read.read_string("[s]\\nk = %(d)s/x\\nd = /y\\n")
        self.assertEqual(read["s"]["k"], "/y/x")
        self.assertEqual(statistics.median([3, 1, 2]), 2)
        self.assertEqual(calendar.monthrange(2024, 2)[1], 29)

    def test_arguments(self):
        parser = argparse.ArgumentParser(prog="p")
        parser.add_argument("--n", type=int, default=3)
        self.assertEqual(parser.parse_args(["--n", "4"]).n, 4)

    def test_log(self):
        record = logging.LogRecord("n", logging.INFO, "f", 1, "x %d", (3,), None)
        self.assertEqual(logging.Formatter("%(levelname)s %(message)s").format(record), "INFO x 3")

    def test_news(self):
        self.assertEqual(len(news.ENTRIES), len({*news.ENTRIES}))
"""


def library(place: Path) -> Path:
    """Create a repository of the standard library of a sandbox's `python3`; return it."""
    python = shutil.which("python3", path=PATH)
    assert python is not None
    told = subprocess.run(
        [python, "-I", "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    source = Path(told.stdout.strip())
    skipped = shutil.ignore_patterns("__pycache__", "test*", "idle*")
    for part in PARTS:
        target = place / "lib" / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if (source / part).is_dir():
            shutil.copytree(source / part, target, ignore=skipped)
        else:
            shutil.copyfile(source / part, target)
    files = {
        "tests/__init__.py": "",
        "tests/test_library.py": TESTS,
        "lib/news.py": 'ENTRIES = [\n    "First release",\n]\n',
        ".gitignore": "__pycache__/\n",
    }
    for name, text in files.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    git(place, "init", "--quiet", "--initial-branch=main")
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--message=library")
    return place
