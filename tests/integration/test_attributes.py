"""A promoted tree is clean in a fresh checkout and keeps the written bytes, whatever attributes say."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Cli, Completed, repository, shell
from tests.conftest import git

pytestmark = pytest.mark.needs_bwrap

ATTRIBUTES = """\
*.bat text eol=crlf
*.u16 text working-tree-encoding=UTF-16LE-BOM
*.id ident
secret* filter=git-crypt diff=git-crypt
*.big filter=lfs -text
"""
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 3000\n"
FILES = {
    "d/run.bat": "echo one\n",
    "d/note.txt": "a note\n",
    "d/old.txt": "",
    "d/v.id": "$Id$\n",
    "d/a.big": POINTER,
    "d/b.big": POINTER,
    # Checks see the files as a clone has them: with other line endings this check would fail.
    "check.sh": "set -e; test $(cat d/* | tr -cd '\\r' | wc -c) -ge 3; cat d/* | grep -a 'Id: '",
}


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = repository(tmp_path / "project", {".gitattributes": ATTRIBUTES, **FILES})
    # CRLF in a commit, as in a project that never normalised its files.
    (place / "d/old.txt").write_bytes(b"kept\r\nso\r\n")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "old")
    return place


def run(cli: Cli, place: Path, script: str) -> Completed:
    return cli.say("run", "m", "--agent", shell(script), "--only-check", "sh check.sh", cwd=place)


def cloned(place: Path, result: Completed) -> Path:
    """Clone the promoted branch as another person would, and assert that git finds nothing modified in it."""
    clone = place.parent / "clone"
    git(place, "clone", "-q", "--branch", result.document["branch"], str(place), str(clone))
    # Make git read every file again: equal time stamps could hide a difference.
    for path in clone.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            path.touch()
    assert git(clone, "status", "--porcelain") == ""
    return clone


def test_an_edit_is_clean_and_whole_in_a_clone(cli: Cli, project: Path) -> None:
    result = run(
        cli,
        project,
        "printf 'echo two\\r\\n' >> d/run.bat; printf '\\377\\376h\\000\\n\\000' > d/new.u16;"
        "echo more >> d/note.txt; printf 'more\\r\\n' >> d/old.txt; echo x >> d/v.id",
    )
    assert (result.code, result.document["status"]) == (0, "promoted"), result.document["reasons"]
    clone = cloned(project, result)
    assert (clone / "d/run.bat").read_bytes() == b"echo one\r\necho two\r\n"
    assert (clone / "d/new.u16").read_bytes() == "\ufeffh\n".encode("utf-16-le")
    assert (clone / "d/old.txt").read_bytes() == b"kept\r\nso\r\nmore\r\n"
    # Only the added lines differ, not every line.
    branch = result.document["branch"]
    assert git(project, "diff", "--numstat", "main", branch).split("\n") == [
        "1\t0\td/new.u16",
        "1\t0\td/note.txt",
        "1\t0\td/old.txt",
        "1\t0\td/run.bat",
        "1\t0\td/v.id",
    ]


@pytest.mark.parametrize(
    ("script", "rule", "path"),
    [
        ("echo password > d/secret.env", "entry_filter", "d/secret.env"),
        ("head -c 3000 /dev/zero > d/a.big", "entry_filter", "d/a.big"),
        ("head -c 3000 /dev/zero > d/c.big; sed -i /big/d .gitattributes", "entry_filter", "d/c.big"),
        ("echo '*.txt text' >> .gitattributes", "attributes_stale", ".gitattributes"),
    ],
    ids=["a secret", "content for a pointer", "without its filter", "attributes that leave others modified"],
)
def test_content_that_differs_in_a_clone_needs_approval(
    cli: Cli, project: Path, script: str, rule: str, path: str
) -> None:
    result = run(cli, project, f"echo more >> d/note.txt; {script}")
    assert result.document["status"] == "waiting", result
    assert any(path in reason["message"] for reason in result.document["reasons"] if reason["code"] == rule), (
        result
    )


def test_a_file_that_git_would_refuse_is_not_taken(cli: Cli, project: Path) -> None:
    result = run(cli, project, "echo more >> d/note.txt; printf odd > d/new.u16")
    assert (result.document["status"], result.reasons) == ("refused", {"entry_encoding"}), result


def test_the_log_names_files_that_checks_see_as_lfs_pointers(cli: Cli, project: Path) -> None:
    result = run(cli, project, "echo more >> d/note.txt")
    log = cli.say("mission", "log", result.document["mission"], cwd=project).stdout
    assert "checks see 2 files as pointers of Git LFS, without their content: d/a.big, d/b.big" in log
