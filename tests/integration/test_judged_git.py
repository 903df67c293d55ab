"""Checks that ask git see the promoted tree, not the base: no false green, no false red."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import git

from mission_kit import FILES, MissionKit

pytestmark = pytest.mark.needs_bwrap

# Each misses a broken file that is not in the index.
PASSED_OVER = (
    "git ls-files '*.py' | xargs python3 -m py_compile",
    "! git grep -n FIX''ME",
    "git diff-tree --check HEAD",
    'git archive HEAD calc | tar -xO | python3 -c \'import sys; compile(sys.stdin.read(), "x", "exec")\'',
)
# Each refuses a correct change if the index or HEAD is the base's.
REFUSED = (
    "git ls-files -z | xargs -0 cat > /dev/null",
    'test -z "$(git status --porcelain)"',
    "python3 generate.py && git diff --exit-code",
    "git log -1 --format=%B",
    'test "$(git branch --show-current)" = chargehand/mend-add',
    'test "$(git rev-parse HEAD^)" = "$(git rev-parse main)"',
    "! git diff --quiet main...HEAD",
    'test "$(git describe --long --tags | cut -d- -f1,2)" = v1-1',
)


@pytest.fixture
def kit(tmp_path: Path) -> MissionKit:
    made = MissionKit(tmp_path, {**FILES, "generate.py": "print(3, file=open('generated.txt', 'w'))\n"})
    git(made.repository, "tag", "v1")
    return made


def test_a_broken_new_file_is_seen_by_checks_that_ask_git(kit: MissionKit) -> None:
    broken = "printf 'def broken(:  \\n# FIX''ME\\n' > calc/broken.py"
    state = kit.run(broken, checks=PASSED_OVER)
    (verdict,) = state.verdicts[1:]
    assert {check.name: check.status for check in verdict.checks} == dict.fromkeys(PASSED_OVER, "failed")
    assert state.status == "refused"


def test_a_correct_change_passes_checks_that_ask_git(kit: MissionKit) -> None:
    change = "mkdir lib && mv README.md lib/ && python3 generate.py && sed -i 's/a - b/a + b/' calc/core.py"
    app = kit.app()
    own = app.store.artifacts.put(b"assert True\n", kind="check-file")
    app.close()
    # Files that only the checks see do not count as changes either.
    state = kit.run(change, checks=REFUSED, check_files=((own, "tests/test_own.py"), (own, ".gitignore")))
    verdict = state.verdicts[-1]
    assert {check.name for check in verdict.checks if check.status == "passed"} >= {*REFUSED}
    assert not [check for check in verdict.checks if check.status != "passed"]
    assert state.status == "promoted", verdict.findings
    # The check sees the message of the promoted commit.
    assert state.commit is not None
    (told,) = [check.artifact for check in verdict.checks if check.name == "git log -1 --format=%B"]
    app = kit.app()
    printed = app.store.artifacts.get(told or "").decode()
    app.close()
    assert git(kit.repository, "log", "-1", "--format=%B", state.commit) in printed
