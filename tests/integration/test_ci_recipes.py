"""The recipes of the page about CI: their steps run offline with the real program and a scripted model."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml
from tests.page_kit import Reader, read_blocks, reader_with_model

from chargehand.app.demo.project import make_project

CI = (Path(__file__).parents[2] / "docs/how-to/in-ci.md").read_text()
REQUEST = "Fix the discount"


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
def forge(tmp_path: Path) -> Forge:
    return Forge(reader_with_model(tmp_path))


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
