"""Checks of merged trees start with the caches of the person's base, and with no file that agents' code wrote."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from command_line import Cli, repository, shell
from tests.conftest import git
from tests.integration.test_coordinator import Crew, task
from tests.integration.test_warm_checks import write

from chargehand.core.records import CheckResult
from chargehand.core.state import MissionState

pytestmark = pytest.mark.needs_bwrap

# Like a compiler: it looks each source up in the cache by its content. Then it runs the source.
COMPILES = """
import hashlib, importlib, os, pathlib, unittest

class Compiles(unittest.TestCase):
    def test_all(self):
        cache = pathlib.Path(os.environ["GOCACHE"])
        cache.mkdir(parents=True, exist_ok=True)
        print("planted", (cache / "planted").exists())
        for source in sorted(pathlib.Path("src").glob("*.py")):
            object = cache / hashlib.sha256(source.read_bytes()).hexdigest()
            print("cached" if object.exists() else "built", source)
            object.touch()
            importlib.import_module(f"src.{source.stem}")
"""
CHECK = "python3 -m unittest tests.test_all"
FILES = {
    "tests/__init__.py": "",
    "tests/test_all.py": COMPILES,
    "src/__init__.py": "",
    "src/a.py": "A = 1\n",
    "src/gone.py": "B = 2\n",
}
PLANTS = shell(write("src/c.py", 'import os\n\nopen(os.environ["GOCACHE"] + "/planted", "w").close()\n'))
GO = {
    "go.mod": "module calc\n\ngo 1.20\n",
    "kept/kept.go": "package kept\n\nfunc Twice(a int) int { return 2 * a }\n",
    "one/one.go": 'package one\n\nimport "calc/kept"\n\nfunc One() int { return kept.Twice(1) }\n',
    "two/two.go": 'package two\n\nimport "calc/kept"\n\nfunc Two() int { return kept.Twice(2) }\n',
}


def make_crew(tmp_path: Path, files: dict[str, str]) -> Crew:
    (tmp_path / "place").mkdir()
    return Crew(tmp_path / "place", repository(tmp_path / "repo", files))


def outputs(crew: Crew, state: MissionState, scope: str) -> list[str]:
    """Return the output of the check of each verdict of a scope, in order."""
    checks: list[CheckResult] = [each.checks[0] for each in state.verdicts if each.scope == scope]
    with crew.opened() as app:
        return [app.store.artifacts.get(check.artifact or "").decode() for check in checks]


def planted(place: Path) -> list[Path]:
    return [found for found in place.rglob("planted") if "layers" in found.parts]


def test_merged_trees_use_caches_of_the_base_but_not_of_agents(tmp_path: Path) -> None:
    crew = make_crew(tmp_path, FILES)
    tasks = [
        task("a", PLANTS),
        task("b", shell("echo D = 3 > src/d.py"), after=["a"]),
        task("c", shell("echo E = 3 > src/e.py"), after=["a"]),
        task("d", shell("rm src/gone.py; echo F = 3 > src/f.py"), after=["a"]),
    ]
    mission = crew.record(tasks, CHECK, at_once=3)
    state = crew.work(mission)
    assert (state.status, state.tasks and state.tasks.merged) == ("promoted", 4)
    with crew.opened() as app:
        children = [app.mission_reader.state(crew.mission_of(mission, each["id"])) for each in tasks]
    printed = [text for each in (*children, state) for text in outputs(crew, each, "attempt")]
    printed += outputs(crew, state, "merged")
    assert len(printed) >= 6
    for text in printed:
        assert "cached src/a.py" in text
        assert "planted False" in text, "a file that an agent's code left in the cache"
    # Merged sources are rebuilt: agents' code ran when they were built before.
    assert any("built src/c.py" in text for text in outputs(crew, state, "merged"))
    checks = [check for each in (*children, state) for verdict in each.verdicts for check in verdict.checks]
    assert {check.warm for check in checks if not check.base_tests} == {True, False}
    assert [check.warm for verdict in state.verdicts if verdict.scope == "merged" for check in verdict.checks]
    assert planted(crew.place) == []


def test_checks_that_run_on_a_plans_branch_itself_keep_no_caches(tmp_path: Path) -> None:
    """The second task adds a check, so the checks run on the merged tree that it starts from."""
    crew = make_crew(tmp_path, FILES)
    tasks = [
        task("a", PLANTS),
        task("b", shell("echo D = 3 > src/d.py"), after=["a"], checks=[f"{CHECK} && test -e src/c.py"]),
        task("c", shell("echo E = 3 > src/e.py"), after=["a", "b"]),
    ]
    mission = crew.record(tasks, CHECK)
    state = crew.work(mission)
    assert state.status == "promoted"
    with crew.opened() as app:
        children = [app.mission_reader.state(crew.mission_of(mission, each["id"])) for each in tasks]
    on_base = [text for each in children[1:] for text in outputs(crew, each, "base")]
    assert on_base
    assert all("cached src/a.py" in text for text in on_base)
    assert planted(crew.place) == []


def test_a_mission_on_a_merged_result_finds_the_caches_of_the_base_before(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "person")
    repo = repository(tmp_path / "repo", FILES)

    def run(script: str) -> list[CheckResult]:
        result = cli.say("run", "m", "--agent", shell(script), "--only-check", CHECK, cwd=repo)
        assert result.document["status"] == "promoted", result
        git(repo, "merge", "--quiet", result.document["export"]["ref"])
        return list(cli.state(result).verdicts[-1].checks)

    run("echo C = 3 > src/c.py")
    for script in ("echo D = 3 > src/d.py", "rm src/gone.py"):
        assert all(check.warm for check in run(script))


@pytest.mark.skipif(not shutil.which("go"), reason="go is not on this machine")
@pytest.mark.soak  # it compiles a part of the standard library; the cases above show the same in the suite
def test_go_compiles_only_changed_packages_of_merged_trees(tmp_path: Path) -> None:
    crew = make_crew(tmp_path, GO)
    crew.environ["PATH"] = f"{Path(shutil.which('go') or '').parent}:{crew.environ['PATH']}"
    tasks = [task(name, shell(f"sed -i s/Twice.[0-9]/Twice\\(7/ {name}/{name}.go")) for name in ("one", "two")]
    tasks.append(task("new", shell("mkdir new; echo package new > new/new.go"), after=["one", "two"]))
    tasks.append(task("more", shell("mkdir more; echo package more > more/more.go"), after=["one", "two"]))
    mission = crew.record(tasks, "go build -x ./...")
    state = crew.work(mission)
    assert (state.status, state.tasks and state.tasks.merged) == ("promoted", 4)
    merged = outputs(crew, state, "merged")
    assert len(merged) >= 2
    for text in merged:
        compiled = set(re.findall(r"/compile .* -p (\S+)", text))
        assert compiled
        assert compiled <= {"calc/one", "calc/two", "calc/new", "calc/more"}, "the base's packages are cached"
