"""Roll-back by the command line: the preview equals the effect, for all files, one file, a hunk, and an undo."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_line import Cli, Completed, repository, shell
from tests.conftest import git

from chargehand.app.checkpoints import parse_hunk, preview_roll_back
from chargehand.cli.main import chargehand
from chargehand.core.errors import RefusedError, UsageError
from chargehand.reports.reading import StateReader
from chargehand.workspace.hunks import LineRange

pytestmark = pytest.mark.needs_bwrap
TWENTY = "".join(f"{n}\n" for n in range(1, 21))
KEY = "AKIA" + "ABCDEFGHIJKLMNOP"
EDITS = shell(
    "printf a >> bin; git mv g.txt moved.txt; echo new > sub/new; "
    f"sed -i -e s/^3$/three/ -e s/^15$/key={KEY}/ -e s/^18$/eighteen/ f.txt"
)


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {"f.txt": TWENTY, "g.txt": TWENTY, "bin": "\0b", "sub/h.txt": "h\n", "latin": "x\n"}
    return repository(tmp_path_factory.mktemp("r") / "repo", files)


@pytest.fixture(scope="module")
def refused(cli: Cli, repo: Path) -> Completed:
    """Return a mission whose f.txt was set back as a whole, since it held a secret."""
    result = cli.run(repo, agent=EDITS)
    assert (result.code, result.reasons) == (1, {"secret"}), result
    return result


def content(cli: Cli, result: Completed, path: str) -> str:
    """Return a file of a mission's last checkpoint."""
    depots = list(cli.home.rglob("depot.git"))
    tree = cli.state(result).checkpoints[-1].tree
    show = ["git", "--git-dir", str(depots[0]), "show", f"{tree}:{path}"]
    return subprocess.run(show, capture_output=True, check=True).stdout.decode(errors="replace")


@pytest.fixture
def here(cli: Cli, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as the person at that command line, in that repository, so that commands need no separate process."""
    for name, value in cli.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(repo)


def say(*words: str, code: int = 0) -> Completed:
    """Run a `checkpoint` command with --json."""
    done = CliRunner().invoke(chargehand, ["--json", "checkpoint", *words])
    assert done.exit_code == code, done.output
    return Completed(code=done.exit_code, stdout=done.stdout, stderr=done.stderr)


def text(*words: str) -> bytes:
    """Run a `checkpoint` command as a person does."""
    done = CliRunner().invoke(chargehand, ["checkpoint", *words])
    assert done.exit_code == 0, done.output
    return done.stdout_bytes


@pytest.mark.usefixtures("here")
def test_restore_by_hunk_and_undo(cli: Cli, repo: Path, refused: Completed) -> None:
    mission = refused.document["mission"]
    first, reverted = cli.state(refused).checkpoints
    assert content(cli, refused, "f.txt") == TWENTY
    undone = say("undo", mission)
    assert undone.document["checkpoint"]["tree"] == first.tree
    assert undone.document["checkpoint"]["changed"] == 1
    shown = say("restore", mission, "base", "--smart", "--dry-run").document
    assert cli.state(refused).checkpoints[-1].tree == first.tree
    actions = {path["path"]: path["action"] for path in shown["plan"]["paths"]}
    assert actions == {"bin": "kept", "f.txt": "partly", "g.txt": "kept", "moved.txt": "kept", "sub/new": "kept"}
    done = say("restore", mission, "base", "--smart").document
    assert done["plan"] == shown["plan"]
    assert done["checkpoint"]["tree"] == shown["plan"]["result"]
    assert content(cli, refused, "f.txt") == TWENTY.replace("3\n", "three\n", 1).replace("18", "eighteen")
    again = say("restore", mission, "base", "--smart", code=2)
    assert "breaks a rule" in again.error["message"]
    by_hand = say(
        "restore", mission, "base", "--hunk", "f.txt:1-5", "--file", "sub", "--file", "moved.txt"
    ).document
    assert content(cli, refused, "f.txt") == TWENTY.replace("18", "eighteen")
    moved = next(path for path in by_hand["plan"]["paths"] if path["path"] == "moved.txt")
    assert (moved["action"], moved["renamed_from"]) == ("deleted", "g.txt")
    assert say("restore", mission, "last").document["plan"]["changes"] is False
    count = len(cli.state(refused).checkpoints)
    assert say("undo", mission).document["checkpoint"]["tree"] == done["checkpoint"]["tree"]
    assert say("undo", mission).document["checkpoint"]["tree"] == by_hand["checkpoint"]["tree"]
    points = cli.state(refused).checkpoints
    assert len(points) == count + 2
    assert {first.tree, reverted.tree} <= {point.tree for point in points}
    for words, code in (
        (("restore", mission, "base", "--hunk", "f.txt:1"), "usage"),
        (("restore", mission, "base", "--hunk", "f.txt"), "usage"),
        (("restore", mission, "base", "--file", "nosuch"), "not_found"),
    ):
        assert say(*words, code=2).error["code"] == code
    promoted = cli.say("mission", "promote", mission, cwd=repo)
    assert promoted.code == 0, promoted
    tip = promoted.document["branch"]
    assert git(repo, "diff", "--name-only", "main", tip) == "bin\nf.txt\ng.txt"


@pytest.mark.usefixtures("here")
def test_text_output_shows_the_restore_plan(cli: Cli, refused: Completed) -> None:
    first = cli.state(refused).checkpoints[0].commit
    told = text("restore", refused.document["mission"], first, "--dry-run").decode()
    assert "Nothing was done" in told
    assert any(line.split() == ["restored", "f.txt"] for line in told.splitlines())


@pytest.mark.usefixtures("here")
def test_any_two_checkpoints_of_a_project_compare_and_apply_both_ways(
    cli: Cli, repo: Path, refused: Completed, tmp_path: Path
) -> None:
    other = cli.run(repo, agent=shell("printf '\\377\\n' > latin; ln -s f.txt link; chmod +x f.txt; rm -r sub"))
    assert other.code == 0, other
    one_end = f"{refused.document['mission']}:{cli.state(refused).checkpoints[0].commit}"
    there = other.document["mission"]
    depot = next(iter(cli.home.rglob("depot.git")))

    def tree() -> str:
        git(place, "add", "-A")
        return git(place, "write-tree")

    place = tmp_path / "there"
    git(tmp_path, "init", "-q", str(place))
    one, two = cli.state(refused).checkpoints[0].tree, cli.state(other).checkpoints[-1].tree
    archive = subprocess.run(
        ["git", "--git-dir", str(depot), "archive", one], capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(place)], input=archive, check=True)
    assert tree() == one
    subprocess.run(["git", "apply", "-"], cwd=place, input=text("diff", one_end, f"{there}:last"), check=True)
    assert tree() == two
    inverse = text("diff", one_end, f"{there}:last", "--inverse")
    subprocess.run(["git", "apply", "-"], cwd=place, input=inverse, check=True)
    assert tree() == one
    document = say("diff", one_end, f"{there}:last", "--inverse").document
    assert (document["old"], document["new"], document["patch_encoding"]) == (two, one, "base64")
    plain = say("diff", "base", "last", "--mission", one_end.split(":")[0]).document
    assert plain["patch_encoding"] == "utf-8"
    foreign = cli.run(repository(tmp_path / "foreign"))
    named = f"{foreign.document['mission']}:last"
    wrong = say("diff", one_end, named, code=2)
    assert wrong.error["code"] == "usage"
    assert "different projects" in wrong.error["message"]


@pytest.mark.usefixtures("here")
def test_the_rollback_preview_equals_its_effect(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    promoted = cli.run(repo)
    mission = promoted.document["mission"]
    document = cli.say("mission", "rollback", mission, "--dry-run", cwd=repo).document
    assert (document["dry_run"], document["commit"]) == (True, promoted.document["commit"])
    assert [(path["path"], path["action"]) for path in document["plan"]["paths"]] == [("f.txt", "restored")]
    assert cli.state(promoted).commit == promoted.document["commit"]
    assert cli.say("mission", "rollback", mission, cwd=repo).code == 0
    assert cli.state(promoted).tree == document["plan"]["result"]
    with StateReader.open() as reader, pytest.raises(RefusedError) as caught:
        preview_roll_back(reader, mission)
    assert caught.value.code == "rolled_back"


def test_words_for_hunks() -> None:
    assert parse_hunk("a:b:3").path == "a:b"
    assert parse_hunk("a:3-7").lines == (LineRange(first=3, last=7),)
    for wrong in ("a", "a:", ":3", "a:0", "a:7-3", "a:x", "a:-3", "a:3-", "a:\u0663"):
        with pytest.raises(UsageError):
            parse_hunk(wrong)
