from __future__ import annotations
from pathlib import Path
import pytest
from desk import Desk, repository, shell
pytestmark = pytest.mark.needs_bwrap
FLAKY = {
    "calc.py": "def add(a, b):\n    return a + b\n",
    "test_calc.py": (
        "import random, unittest\nfrom calc import add\n\n\nclass T(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 1), 3)\n\n"
        "    def test_luck(self):\n        self.assertGreater(random.random(), 0.6)\n"
    ),
}
STABLE = {**FLAKY, "test_calc.py": FLAKY["test_calc.py"].split("    def test_luck")[0]}
CHECK = ("--only-check", "python3 -m unittest -q")
@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return Desk(tmp_path_factory.mktemp("desk"))
HONEST = shell("echo '# more' >> calc.py")
def test_known_flaky(desk, tmp_path):
    repo = repository(tmp_path / "repo", FLAKY)
    for i in range(6):
        said = desk.say("run", f"comment {i}", "--agent", shell(f"echo '# {i}' >> calc.py"), *CHECK, cwd=repo)
        print(said.code, said.document["status"], said.reasons, [ (v.status,v.flaky, v.known) for v in desk.state(said).verdicts])
def test_made_flaky(desk, tmp_path):
    repo = repository(tmp_path / "repo", STABLE)
    agent = shell("printf 'import random\\ndef add(a, b):\\n    return a + b + (random.random() < 0.5)\\n' > calc.py")
    for i in range(5):
        said = desk.say("run", f"comment {i}", "--agent", agent, "--attempts", "4", *CHECK, cwd=repo)
        print(said.code, said.document["status"], said.reasons, [ (v.status,v.flaky, v.known) for v in desk.state(said).verdicts][1:])
def test_new_flaky(desk, tmp_path):
    repo = repository(tmp_path / "repo", STABLE)
    check=("--only-check", "python3 -m unittest -v")
    (tmp_path/"t.py").write_text(FLAKY["test_calc.py"])
    agent = "command:cp " + str(tmp_path/"t.py") + " test_calc.py"
    agent = shell("printf '    def test_luck(self):\\n        import random\\n        self.assertGreater(random.random(), 0.6)\\n' >> test_calc.py")
    for i in range(5):
        said = desk.say("run", f"comment {i}", "--agent", agent, *check, cwd=repo)
        print(said.code, said.document["status"], said.reasons, [ (v.status,v.flaky, v.known) for v in desk.state(said).verdicts][1:])
