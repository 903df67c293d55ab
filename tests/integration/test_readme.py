"""The README and the pages about CI, changes and subscriptions: their commands work as shown, offline."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml
from tests.conftest import make_repository
from tests.page_kit import Reader, answer, is_drawn, steps

from chargehand.app.demo.project import make_project, write_configuration
from chargehand.configuration.locations import user_config_path
from chargehand.configuration.records import RepositoryFile, ResolvedConfig
from chargehand.configuration.resolve import resolve

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CI = (ROOT / "docs/how-to/in-ci.md").read_text()
REQUEST = "Fix the discount"
CART = {
    "cart.py": "def discounted(price, percent):\n    return price - price * percent // 100\n",
    "test_cart.py": (
        "import unittest\n\nfrom cart import discounted\n\n\nclass CartTest(unittest.TestCase):\n"
        "    def test_it(self):\n        self.assertEqual(discounted(1000, 20), 800)\n"
    ),
}


def read_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.S)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """A user with the demo's project and its scripted model."""
    (tmp_path / "work").mkdir()
    reader = Reader(tmp_path / "work")
    write_configuration(user_config_path(reader.environment), tmp_path)
    return reader


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
    assert len(rows) > 40


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


class Forge:
    """A repository on a forge, and the machine of its CI: only what needs the network or rights is faked."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.home = Path(reader.environment["HOME"])
        self.origin = reader.place / "origin.git"
        project = make_project(reader.place / "made")
        subprocess.run(["git", "clone", "-q", "--bare", project, self.origin], check=True)
        self.git("config", "receive.advertisePushOptions", "true")
        self.calls = reader.place / "calls"
        for name in ("sudo", "apt-get", "pip", "pipx", "gh"):
            program = reader.place / "bin" / name
            program.write_text(f'#!/bin/sh\necho "$(basename "$0") $*" >> {self.calls}\n')
            program.chmod(0o755)
        self.clone = reader.place / "clone"

    def git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.origin, check=True, capture_output=True, text=True).stdout

    def check_out(self) -> None:
        """Put a fresh clone in the place of the last one, with another inode."""
        fresh = self.clone.with_name("fresh")
        subprocess.run(["git", "clone", "-q", self.origin, fresh], check=True)
        shutil.rmtree(self.clone, ignore_errors=True)
        fresh.rename(self.clone)

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a step as a runner does, with the place of its temporary files changed."""
        return subprocess.run(
            ["bash", "-e", "-c", script.replace("/tmp/", f"{self.home}/")],
            cwd=self.clone,
            env=self.reader.environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def promoted(self) -> str:
        return self.git("log", "-1", "--format=%s", f"chargehand/{REQUEST.lower().replace(' ', '-')}").strip()


@pytest.fixture
def forge(reader: Reader) -> Forge:
    return Forge(reader)


def run_github(forge: Forge, recipe: dict[str, Any]) -> list[str]:
    """Run the steps of a workflow's job until one fails; return the names of those that passed."""
    (job,) = recipe["jobs"].values()
    values = {"inputs.request": REQUEST, "github.token": "t", "vars.CHARGEHAND": "here"}
    passed = []
    for step in job["steps"]:
        if "run" not in step:
            forge.check_out()
            continue
        fixed = {name: value for name, value in job["env"].items() if name != "CHARGEHAND_HOME"}
        environment = {
            name: re.sub(r"\$\{\{ (.*?) \}\}", lambda found: values.get(found[1], "secret"), str(value))
            for name, value in {**fixed, **step.get("env", {})}.items()
        }
        if forge.run(step["run"], **environment).returncode:
            break
        passed.append(step["name"])
    return passed


@pytest.mark.needs_bwrap
def test_the_recipe_for_github(forge: Forge) -> None:
    recipe = yaml.safe_load(read_blocks(CI, "yaml")[0])
    assert run_github(forge, recipe) == ["Install", "Run", "Open a pull request"]
    assert forge.promoted() == REQUEST
    calls = forge.calls.read_text()
    assert "pipx install here\n" in calls
    assert f"gh pr create --head chargehand/fix-the-discount --title {REQUEST}" in calls

    # The next job has a fresh clone and the same state: it needs the line of "Keep the state between jobs".
    forge.git("branch", "-D", "chargehand/fix-the-discount")
    forge.check_out()
    again = 'chargehand run --json --yes "Fix the discount"'
    refused = forge.run(again)
    assert (refused.returncode != 0, "project_uncertain" in refused.stderr) == (True, True)
    (kept,) = [block for block in read_blocks(CI, "sh") if "project move" in block]
    done = forge.run(kept + again)
    assert done.returncode == 0, done


@pytest.mark.needs_bwrap
def test_the_recipe_pushes_nothing_that_was_refused(forge: Forge) -> None:
    recipe = yaml.safe_load(read_blocks(CI, "yaml")[0].replace("--budget 2", "--budget 2 --forbid shop"))
    assert run_github(forge, recipe) == ["Install"]
    assert "chargehand" not in forge.git("branch", "--list")
    assert "gh pr" not in forge.calls.read_text()


@pytest.mark.needs_bwrap
def test_the_recipe_for_gitlab(forge: Forge) -> None:
    job = yaml.safe_load(read_blocks(CI, "yaml")[1])["chargehand"]
    forge.check_out()
    variables = {
        "CI_PROJECT_DIR": str(forge.clone),
        "CI_SERVER_HOST": "gitlab.test",
        "CI_PROJECT_PATH": "a/shop",
    }
    variables |= {"REQUEST": REQUEST, "PUSH_TOKEN": "t", "CHARGEHAND": "here", "ANTHROPIC_API_KEY": "secret"}
    for name, value in job["variables"].items():
        variables[name] = Template(str(value)).safe_substitute(variables)
    with (forge.home / ".gitconfig").open("a") as file:
        file.write(f'[url "{forge.origin}"]\ninsteadOf = https://bot:t@gitlab.test/a/shop.git\n')
    done = forge.run("\n".join(job["script"]), **variables)
    assert (done.returncode, forge.promoted()) == (0, REQUEST), done
    assert "pip install -q here\n" in forge.calls.read_text()
    assert Path(os.path.normpath(variables["CHARGEHAND_HOME"])).parent == forge.clone.parent  # not in the checkout
