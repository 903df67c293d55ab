"""The release script refuses a checkout that cannot be released, and changes only version and changelog."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import git

SCRIPT = Path(__file__).parents[2] / "scripts/release"
CHANGELOG = "# Changelog\n\n## Unreleased\n\n- It is faster.\n\n## 0.1.0, 2026-01-01\n\n- It exists.\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    place = tmp_path / "checkout"
    (place / "scripts").mkdir(parents=True)
    (place / "src/chargehand").mkdir(parents=True)
    shutil.copy(SCRIPT, place / "scripts")
    (place / "src/chargehand/__init__.py").write_text('"""One sentence."""\n\n__version__ = "0.1.0"\n')
    (place / "CHANGELOG.md").write_text(CHANGELOG)
    git(place, "init", "--quiet", "--initial-branch=main")
    git(place, "add", ".")
    git(place, "commit", "--quiet", "--message=first")
    git(place, "tag", "v0.1.0")
    return place


def refused(checkout: Path, *words: str) -> str:
    """Return why the script refuses; the checkout is as before."""
    before = git(checkout, "status", "--porcelain"), git(checkout, "rev-parse", "HEAD")
    argv = [sys.executable, str(checkout / "scripts/release"), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done
    assert (git(checkout, "status", "--porcelain"), git(checkout, "rev-parse", "HEAD")) == before
    return done.stderr


def test_a_checkout_that_cannot_be_released_is_refused(checkout: Path) -> None:
    assert "scripts/release VERSION" in refused(checkout)
    assert "'2' is not a version" in refused(checkout, "2")
    assert "v0.1.0 exists already" in refused(checkout, "0.1.0")
    git(checkout, "switch", "--quiet", "--create", "work")
    assert "git switch main" in refused(checkout, "0.2.0")
    git(checkout, "switch", "--quiet", "main")
    (checkout / "new").touch()
    assert "?? new" in refused(checkout, "0.2.0")
    (checkout / "CHANGELOG.md").write_text(CHANGELOG.replace("- It is faster.\n\n", ""))
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message=second")
    assert "has no entries below '## Unreleased'" in refused(checkout, "0.2.0")


def test_a_release_dates_the_changelog_and_sets_the_version(checkout: Path) -> None:
    loader = importlib.machinery.SourceFileLoader("release", str(checkout / "scripts/release"))
    spec = importlib.util.spec_from_loader("release", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.write_version("0.2.0")
    assert '__version__ = "0.2.0"\n' in (checkout / "src/chargehand/__init__.py").read_text()
    text = (checkout / "CHANGELOG.md").read_text()
    assert text.startswith("# Changelog\n\n## Unreleased\n\n## 0.2.0, 20")
    assert text.endswith("\n- It is faster.\n\n## 0.1.0, 2026-01-01\n\n- It exists.\n")
