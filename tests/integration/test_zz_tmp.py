from __future__ import annotations
import sys
sys.path[:0]=['tests/integration','.']
from pathlib import Path
import pytest
from desk import Desk, repository, shell
pytestmark = pytest.mark.needs_bwrap
RED = {
    "calc.py": "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a + b\n",
    "test_calc.py": (
        "import unittest\nfrom calc import add, sub\n\n\nclass T(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 1), 3)\n\n"
        "    def test_sub(self):\n        self.assertEqual(sub(2, 1), 1)\n"
    ),
}
CHECK = ("--only-check", "python3 -m unittest -q")
@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return Desk(tmp_path_factory.mktemp("desk"))
@pytest.fixture
def repo(tmp_path):
    return repository(tmp_path / "repo", RED)
HONEST = shell("echo '# more' >> calc.py")
WORSE = shell("sed -i 's/return a + b/return a - b - 1/' calc.py")

def test_accept(desk, repo):
    said = desk.say("run", "comment", "--agent", HONEST, *CHECK, "--accept-known", cwd=repo)
    print(said)
    assert said.code == 0
    worse = desk.say("run", "comment", "--agent", WORSE, *CHECK, "--accept-known", cwd=repo)
    print(worse)
    assert worse.code == 1
def test_later(desk, repo):
    said = desk.say("run", "comment", "--agent", HONEST, *CHECK, cwd=repo)
    print(said)
    assert said.code == 3
    said = desk.say("mission","promote", said.document["mission"], cwd=repo)
    print(said)
    assert said.code == 0
def test_ask(desk, repo):
    said = desk.say("run", "comment", "--agent", HONEST, *CHECK, "--red-base","ask", cwd=repo)
    print(said)
    assert said.code == 3
    m = said.document["mission"]
    print(desk.say("mission","answer", m, "run again", cwd=repo))
    print(desk.say("worker", "--until-idle", cwd=repo))
    print(desk.say("mission","show", m, cwd=repo, as_json=False).stdout)
    print(desk.say("mission","answer", m, "accept", cwd=repo))
    print(desk.say("worker", "--until-idle", cwd=repo))
    out=desk.say("mission","show", m, cwd=repo, as_json=False).stdout
    print(out)
    assert desk.state(said).status=="promoted"
