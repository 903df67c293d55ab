"""A changed requirements file needs another environment only if the setup command reads it."""

from __future__ import annotations

import pytest

from chargehand.checks.detection import leave_out_unread_requirements
from chargehand.checks.trees import MemoryTrees

DOCS = "docs/requirements.txt"
FILES = {
    "pyproject.toml": "[project]\nname = 'a'\n",
    DOCS: "sphinx==1\n",
    "requirements.txt": "-r requirements/base.txt\n-c constraints.txt\n",
    "requirements/base.txt": "six\n-rmore.txt\n",
    "requirements/more.txt": "attrs\n",
    "constraints.txt": "six<2\n",
}
PIP = "pip install -r requirements.txt -e .[tests] 'pytest<9'"


@pytest.mark.parametrize(
    ("command", "path", "files", "counts"),
    [
        (PIP, DOCS, {}, False),
        ("pip install -e . pytest && go mod download", DOCS, {}, False),
        ('pip install --quiet --upgrade "pip>=25.1" && pip install -e . --group dev', DOCS, {}, False),
        (PIP, "requirements.txt", {}, True),
        (PIP, "requirements/base.txt", {}, True),
        (PIP, "requirements/more.txt", {}, True),
        (PIP, "constraints.txt", {}, True),
        (f"pip install --requirement={DOCS}", DOCS, {}, True),
        (f"pip install -r {DOCS}", DOCS, {}, True),
        # The command, the build, or a requirement may read files that are not named.
        ("pip install -r docs/*.txt", DOCS, {}, True),
        ("make setup", DOCS, {}, True),
        ("sh setup.sh && pip install -e .", DOCS, {}, True),
        ("pip install $(cat x)", DOCS, {}, True),
        ("pip install ./docs", DOCS, {}, True),
        ("poetry install", DOCS, {}, True),
        (PIP, DOCS, {"setup.py": "setup(install_requires=open('docs/requirements.txt').read())"}, True),
        (PIP, DOCS, {"setup.py": "from setuptools import setup\nsetup()\n"}, False),
        (PIP, DOCS, {"pyproject.toml": "[tool.setuptools.dynamic]\ndependencies = {file = ['d/x.txt']}\n"}, True),
        (PIP, DOCS, {"pyproject.toml": "[build-system]\nbackend-path = ['.']\n"}, True),
        (PIP, DOCS, {"requirements.txt": "-e ./docs\n"}, True),
        (PIP, DOCS, {"requirements.txt": "-r ${WHERE}\n"}, True),
        (PIP, DOCS, {"requirements.txt": f"-r {DOCS}\n"}, True),
        (PIP, "package.json", {}, True),
    ],
)
def test_only_requirements_files_provably_unread_by_setup_are_left_out(
    command: str, path: str, files: dict[str, str], counts: bool
) -> None:
    trees = MemoryTrees()
    base = trees.add({**FILES, **files})
    found = leave_out_unread_requirements([path], trees, (base,), "", command)
    assert found == ((path,) if counts else ())


def test_a_file_that_the_candidate_alone_reads_counts() -> None:
    trees = MemoryTrees()
    base, tree = trees.add(FILES), trees.add({**FILES, "requirements.txt": f"-r {DOCS}\n"})
    assert leave_out_unread_requirements([DOCS], trees, (base, tree), "", PIP) == (DOCS,)


def test_the_command_runs_in_the_directory_of_the_project() -> None:
    trees = MemoryTrees()
    base = trees.add({f"sub/{path}": text for path, text in FILES.items()})
    own, other = "sub/requirements/base.txt", f"sub/{DOCS}"
    assert leave_out_unread_requirements([own, other], trees, (base,), "sub", PIP) == (own,)
