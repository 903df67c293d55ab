"""A recorded run of SWE-agent, repeated by a client that has a shell, produces the same files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from chargehand.core.errors import UsageError
from chargehand.models.conversation import OfferedTool
from chargehand.models.replay import load_script
from chargehand.models.script_upstream import fit_tools

SHELL = (OfferedTool(name="shell", schema={"properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}),)
STATE = "{'open_file': 'n/a', 'working_dir': '/testbed'}"
STEPS: list[tuple[str, str]] = [
    ("create new.py", "[File: new.py (1 lines total)]"),
    ("edit 1:1\nprint('one')\nprint(\"two\")\nend_of_edit", "File updated."),
    ("insert 'three = 3'", "[File: new.py (3 lines total)]"),
    ("insert '# between' 1", "[File: new.py (4 lines total)]"),
    ('open "src/calc.py" 2', "[File: src/calc.py (3 lines total)]"),
    ("edit 2:2\nreturn a + b\nend_of_edit", "Your changes have NOT been applied. Please fix your edit."),
    ("edit 2:2\n    return a + b  # it's \\n\nend_of_edit", "File updated."),
    ("edit 'def add' 'def plus'", "Text replaced."),
    ("scroll_down", "..."),
    ("find_file calc.py /testbed/src", "Found 1 matches"),
    ("search_dir plus", "Found"),
    ("str_replace_editor create /testbed/src/two.py --file_text 'a\nb\n'", "File created"),
    ("str_replace_editor insert /testbed/src/two.py --insert_line 1 --new_str 'between'", "edited"),
    (
        "str_replace_editor str_replace /testbed/src/two.py --old_str 'b\n' --new_str 'c\n'",
        "No replacement was performed",
    ),
    ("cp src/two.py three.txt && rm -f gone.txt", ""),
    ("submit", "diff --git"),
]


def trajectory(path: Path, steps: list[tuple[str, str]], **more: Any) -> Path:
    told = [{"action": act, "observation": seen, "thought": "So.\n", "state": STATE} for act, seen in steps]
    path.write_text(json.dumps({"trajectory": told, "environment": "swe_main", **more}))
    return path


def test_the_same_files_come_out(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "src").mkdir(parents=True)
    (work / "src/calc.py").write_text("def add(a, b):\n    return a - b\n# end\n")
    (work / "gone.txt").write_text("x")
    script = load_script(trajectory(tmp_path / "run.traj", STEPS))
    assert script.neutral
    assert len(script.lines) == len(STEPS)
    for line in script.lines:
        for made in fit_tools(line.reply, SHELL).tools:
            assert isinstance(made.arguments, dict)
            subprocess.run(["sh", "-ec", made.arguments["cmd"]], cwd=work, check=True, capture_output=True)
    files = {str(path.relative_to(work)): path.read_text() for path in work.rglob("*") if path.is_file()}
    assert files == {
        "new.py": "print('one')\n# between\nprint(\"two\")\nthree = 3\n",
        "src/calc.py": "def plus(a, b):\n    return a + b  # it's \\n\n# end\n",
        "src/two.py": "a\nbetween\nb\n",
        "three.txt": "a\nbetween\nb\n",
    }


def test_a_run_that_did_not_submit_ends_all_the_same(tmp_path: Path) -> None:
    script = load_script(trajectory(tmp_path / "run.traj", [("cat /testbed/a /testbedding", "")]))
    assert [line.reply.tools[0].name for line in script.lines] == ["bash", "finish"]
    assert script.lines[0].reply.tools[0].arguments == {"command": "cat /workspace/a /testbedding"}


@pytest.mark.parametrize("content", ["", "[]", '{"trajectory": 3}', '{"trajectory": [{"observation": "x"}]}'])
def test_loading_an_invalid_trajectory_raises(content: str, tmp_path: Path) -> None:
    path = tmp_path / "run.traj"
    path.write_text(content)
    with pytest.raises(UsageError, match="is not a trajectory") as error:
        load_script(path)
    assert error.value.code == "script_invalid"


def test_a_step_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = trajectory(tmp_path / "run.traj", [("ls", ""), ("str_replace_editor undo_edit /testbed/a", "undone")])
    with pytest.raises(UsageError, match="step 2 cannot be read: 'str_replace_editor undo_edit"):
        load_script(path)
