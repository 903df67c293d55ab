"""Patches as models write them: tolerated errors, refused ones, and the text of the refusal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit._local_sandbox import LocalSandbox

from chargehand.agents.patches import PatchProblem, parse_patch, paths_of, plan_changes
from chargehand.agents.toolbox import Toolbox

CODE = """class One:
    def run(self):
        return 1


class Two:
    def run(self):
        return 1


def end():
    pass
"""


def applied(patch: str, **files: str) -> dict[str, str | None]:
    changes = parse_patch(patch)
    known = {name.replace("__", "."): text for name, text in files.items()}
    before: dict[str, str | None] = {**dict.fromkeys(paths_of(changes)), **known}
    return {each.path: each.new for each in plan_changes(changes, before)}


def enveloped(body: str) -> str:
    return f"*** Begin Patch\n{body}\n*** End Patch\n"


def updated(body: str, text: str) -> str | None:
    return applied(enveloped("*** Update File: f\n" + body), f=text).get("f", text)


def refused(patch: str, **files: str) -> str:
    with pytest.raises(PatchProblem) as caught:
        applied(patch, **files)
    return str(caught.value)


class TestEnvelope:
    def test_an_anchor_picks_the_place(self) -> None:
        made = updated("@@ class Two:\n     def run(self):\n-        return 1\n+        return 2", CODE)
        assert made == CODE[:60] + CODE[60:].replace("return 1", "return 2")
        assert updated("@@ class Two\n@@     def run(self):\n-        return 1\n+        return 2", CODE) == made

    def test_an_ambiguous_hunk_is_refused(self) -> None:
        body = "*** Update File: f\n@@\n     def run(self):\n-        return 1\n+        return 2"
        text = refused(enveloped(body), f=CODE)
        assert "f, hunk 1 of 1: its lines occur in several places (lines 2, 7)" in text
        assert "'@@' line" in text
        assert "several places" in refused(enveloped(body.replace("@@", "@@ def run(self):")), f=CODE)
        assert "has no line 'class Six' to start from\n     6\tclass Two:" in refused(
            enveloped(body.replace("@@", "@@ class Six")), f=CODE
        )

    def test_hunks_follow_each_other(self) -> None:
        body = "@@\n-class One:\n+class A:\n@@\n-def end():\n+def stop():"
        assert updated(body, CODE) == CODE.replace("class One", "class A").replace("def end", "def stop")
        wrong = "*** Update File: f\n@@\n-def end():\n+def stop():\n@@\n-class One:\n+class A:"
        assert "hunk 2 of 2: its lines are above the previous hunk" in refused(enveloped(wrong), f=CODE)

    def test_additions_need_a_place(self) -> None:
        assert updated("@@ def end():\n+    x = 1", CODE) == CODE.replace("    pass", "    x = 1\n    pass")
        assert updated("@@\n+last\n*** End of File", "a\n") == "a\nlast\n"
        assert "only adds lines" in refused(enveloped("*** Update File: f\n@@\n+x"), f=CODE)
        assert updated("@@\n+x", "") == "x\n"

    def test_the_end_of_the_file_picks_the_last_place(self) -> None:
        assert updated("@@\n-x\n+y\n*** End of File", "x\nx\nx\n") == "x\nx\ny\n"

    def test_white_space_is_ignored_only_at_line_ends(self) -> None:
        assert updated("@@\n a\n-b\n+c", "a  \nb\t\n") == "a  \nc\n"
        text = refused(enveloped("*** Update File: f\n@@\n a\n-b\n+c"), f="  a\n  b\n")
        assert "Only white space differs" in text
        assert text.endswith("     1\t  a\n     2\t  b")

    def test_windows_line_ends_are_kept(self) -> None:
        assert updated("@@\n a\n-b\n+c\n+d", "a\r\nb\r\n") == "a\r\nc\r\nd\r\n"
        assert applied(enveloped("*** Update File: f\n@@\n-a\n+b").replace("\n", "\r\n"), f="a\n") == {"f": "b\n"}

    def test_line_ends_of_an_addition_without_context(self) -> None:
        assert updated("@@ a\n+x", "a\r\nb\r\n") == "a\r\nx\r\nb\r\n"
        assert applied("--- a/f\n+++ b/f\n@@ -1,0 +2 @@\n+x\r\n", f="a\nb\n") == {"f": "a\nx\r\nb\n"}

    def test_layout_and_words_around_are_forgiven(self) -> None:
        patch = (
            "Here it is:\n```\n" + enveloped("\n*** Update File: f\n@@\n a\n\n-b\n+c\n\n@@\n-d\n+e\n\n") + "```"
        )
        assert applied(patch, f="a\n\nb\nd\n") == {"f": "a\n\nc\ne\n"}
        assert updated("-a\n+b", "a\n") == "b\n"
        assert updated("@@ -1,1 +1,1 @@ def f():\n-a\n+b", "a\n") == "b\n"

    def test_moving_and_several_sections_on_one_file(self) -> None:
        patch = enveloped("*** Update File: a\n*** Move to: d/b\n@@\n-x\n+y\n*** Update File: d/b\n@@\n-y\n+z")
        assert applied(patch, a="x\n") == {"a": None, "d/b": "z\n"}
        assert applied(enveloped("*** Update File: a\n*** Move to: b"), a="x\n") == {"a": None, "b": "x\n"}

    @pytest.mark.parametrize(
        ("patch", "words"),
        [
            ("*** Update File: f\n@@\n-a\n+b\n*** End Patch", "must begin"),
            ("*** Begin Patch\n*** Update File: f\n@@\n-a\n+b", "cut off"),
            (enveloped(""), "no change found"),
            (enveloped("*** Change File: f"), "line 2 of the patch: expected '*** Add File:'"),
            (enveloped("*** Update File: f"), "no lines that begin"),
            (enveloped("*** Update File: f\n@@\n a"), "only has context"),
            (enveloped("*** Update File: f\n@@ a"), "nothing follows the anchor 'a'"),
            (enveloped("*** Update File: f\n@@\n-a\nb"), "line 5 of the patch: a line of a hunk begins with"),
            (enveloped("*** Update File: none\n@@\n-a\n+b"), "none: there is no such file"),
            (enveloped("*** Delete File: none"), "none: there is no such file"),
            (enveloped("*** Add File: f\n+x"), "f exists already"),
            (enveloped("*** Add File: g\nx"), "begins with '+', found 'x'"),
            (enveloped("*** Update File: f\n*** Move to: h\n@@\n-a\n+b"), "h exists already"),
            (enveloped("*** Add File: ../x\n+x"), "not a file inside /workspace"),
            (enveloped("*** Add File: /etc/x\n+x"), "not a file inside /workspace"),
            (enveloped("*** Add File: .git/hooks/x\n+x"), "inside .git"),
            (enveloped("*** Add File: sub/.GIT/x\n+x"), "inside .git"),
            (enveloped("*** Add File:\n+x"), "not the path of a file"),
            (enveloped("*** Update File: f\n@@\n-zebra\n+b"), "no similar lines"),
        ],
    )
    def test_an_invalid_patch_is_refused(self, patch: str, words: str) -> None:
        assert words in refused(patch, f="a\n", h="h\n")


class TestUnified:
    def test_counts_and_line_numbers_may_be_wrong(self) -> None:
        for head in ("@@ -90,7 +90,9 @@ def x", "@@ -1 +1 @@", "@@ ... @@", "@@", "@@ class One: @@"):
            patch = f"--- a/f\n+++ b/f\n{head}\n def end():\n-    pass\n+    return\n"
            assert applied(patch, f=CODE) == {"f": CODE.replace("pass", "return")}, head

    def test_line_numbers_choose_among_equals_and_only_to_the_letter(self) -> None:
        patch = "--- a/f\n+++ b/f\n@@ -7,2 +7,2 @@\n     def run(self):\n-        return 1\n+        return 2\n"
        assert applied(patch, f=CODE) == {"f": CODE[:60] + CODE[60:].replace("return 1", "return 2")}
        assert "several places (lines 2, 7)" in refused(patch.replace("-7,2", "-6,2"), f=CODE)

    def test_names(self) -> None:
        for old, new in (("a/f", "b/f"), ("f", "f"), ("f\t2020-01-01", "f\t2020-01-02"), ("/workspace/f", "./f")):
            assert applied(f"--- {old}\n+++ {new}\n@@ -1 +1 @@\n-a\n+b\n", f="a\n") == {"f": "b\n"}
        assert applied('--- "a/\\303\\251"\n+++ "b/\\303\\251"\n@@ -1 +1 @@\n-a\n+b\n', é="a\n") == {"é": "b\n"}
        assert applied("--- a/f\n+++ a/f\n@@ -1 +1 @@\n-a\n+b\n", **{"a/f": "a\n"}) == {"a/f": "b\n"}

    def test_git_headers(self) -> None:
        rename = "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n"
        assert applied(rename, x="1\n") == {"x": None, "y": "1\n"}
        mode = "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n"
        (planned,) = plan_changes(parse_patch(mode), {"x": "1\n"})
        assert (planned.new, planned.executable) == ("1\n", True)
        empty = "diff --git a/n b/n\nnew file mode 100644\nindex 0000000..e69de29\n"
        assert applied(empty) == {"n": ""}
        mail = "From: a\nSubject: b\n---\n f | 2 +-\n\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n-- \n2.39.0\n"
        assert applied(mail, f="a\n") == {"f": "b\n"}

    @pytest.mark.parametrize(
        ("patch", "words"),
        [
            ("@@ -1 +1 @@\n-a\n+b\n", "without '--- a/path'"),
            ("nothing at all", "no change found"),
            ("--- a/f\n+++ b/f\n", "has no hunks"),
            ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n a\n", "changes nothing"),
            ("--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n", "f exists already"),
            ("--- /dev/null\n+++ b/n\n@@ -1 +1,2 @@\n a\n+x\n", "every line of a new file"),
            ("--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "more lines than the patch removes"),
            ("diff --git a/f b/f\nGIT binary patch\nliteral 3\n", "binary"),
            ("diff --git a/f b/g\ncopy from f\ncopy to g\n", "copies"),
            ("diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+x\n", "120000"),
            ("diff --git a/f b/g\n", "name the path"),
            ("--- a/../f\n+++ b/../f\n@@ -1 +1 @@\n-a\n+b\n", "not a file inside"),
            ("--- a/.git/config\n+++ b/.git/config\n@@ -1 +1 @@\n-a\n+b\n", "inside .git"),
            ("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-bb\n+c\n", "f, hunk 1 of 1: its lines are not in the file"),
        ],
    )
    def test_an_invalid_patch_is_refused(self, patch: str, words: str) -> None:
        assert words in refused(patch, f="a\nb\n")


class TestTool:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        (tmp_path / "w").mkdir()
        (tmp_path / "w/a.py").write_text("a = 1\n")
        (tmp_path / "w/run").write_text("x\n")
        (tmp_path / "w/run").chmod(0o755)
        return tmp_path / "w"

    @pytest.fixture
    def tools(self, root: Path) -> Toolbox:
        return Toolbox(LocalSandbox(root), keep=lambda data: "")

    async def test_every_file_is_written(self, root: Path, tools: Toolbox) -> None:
        body = "*** Update File: a.py\n@@\n-a = 1\n+a = (\n*** Add File: d/n.toml\n+[x]\n"
        body += "*** Update File: run\n*** Move to: d/go\n@@\n-x\n+y"
        result = await tools.call("apply_patch", {"patch": enveloped(body)})
        assert not result.failed
        assert (root / "a.py").read_text() == "a = (\n"
        assert (root / "d/n.toml").read_text() == "[x]\n"
        assert (root / "d/go").read_text() == "y\n"
        assert (root / "d/go").stat().st_mode & 0o777 == 0o755
        assert not (root / "run").exists()
        assert "+a = (\nsyntax: '(' was never closed at line 1" in result.text
        assert "d/n.toml: new file, 1 line\nsyntax: ok" in result.text
        assert "run: removed" in result.text
        assert sorted(os.listdir(root / "d")) == ["go", "n.toml"]

    @pytest.mark.parametrize(
        "last",
        [
            "*** Update File: run\n@@\n-not there\n+y",
            "*** Delete File: gone",
            "*** Add File: a.py/x\n+y",
            "*** Update File: runn\n@@\n-x\n+y",
            "*** Delete File: out",
            "*** Update File: link\n@@\n-x\n+y\n*** Update File: run\n@@\n-x\n+z",
        ],
    )
    async def test_a_patch_with_a_wrong_part_changes_no_file(self, root: Path, tools: Toolbox, last: str) -> None:
        (root / "out").symlink_to("/etc")
        (root / "link").symlink_to("run")
        body = "*** Update File: a.py\n@@\n-a = 1\n+a = 2\n*** Add File: new\n+x\n" + last
        result = await tools.call("apply_patch", {"patch": enveloped(body)})
        assert result.failed
        assert (root / "a.py").read_text() == "a = 1\n"
        assert (root / "run").read_text() == "x\n"
        assert sorted(os.listdir(root)) == ["a.py", "link", "out", "run"]

    async def test_a_write_that_fails_leaves_no_trace(self, root: Path) -> None:
        (root / "bin").mkdir()
        sandbox = LocalSandbox(root, environment={"PATH": f"{root}/bin:{os.environ['PATH']}"})
        body = "*** Update File: a.py\n@@\n-a = 1\n+a = 2\n*** Add File: d/x\n+x"
        # the first file is staged in the parent directory, which already exists
        (root / "bin/mkdir").write_text('#!/bin/sh\ncase "$3" in ./d) echo no space left >&2; exit 1;; esac\n')
        (root / "bin/mkdir").chmod(0o755)
        result = await Toolbox(sandbox, keep=lambda data: "").call("apply_patch", {"patch": enveloped(body)})
        assert "d/x cannot be written, so nothing was: no space left" in result.text
        assert (root / "a.py").read_text() == "a = 1\n"
        assert not [name for name in os.listdir(root) if name.startswith(".chargehand")]

    async def test_a_missing_file_comes_with_the_nearest_names(self, tools: Toolbox) -> None:
        result = await tools.call("apply_patch", {"patch": enveloped("*** Update File: runn\n@@\n-x\n+y")})
        assert "runn does not exist; nearest in /workspace: run" in result.text

    async def test_a_file_may_be_made_and_changed_in_one_patch(self, root: Path, tools: Toolbox) -> None:
        body = "*** Add File: n\n+a\n*** Update File: n\n@@\n-a\n+b\n*** Update File: run\n*** Move to: n2\n"
        body += "*** Update File: n2\n@@\n-x\n+z"
        assert not (await tools.call("apply_patch", {"patch": enveloped(body)})).failed
        assert ((root / "n").read_text(), (root / "n2").read_text()) == ("b\n", "z\n")

    async def test_modes_of_git_are_set(self, root: Path, tools: Toolbox) -> None:
        patch = "diff --git a/a.py b/a.py\nold mode 100644\nnew mode 100755\n"
        patch += "diff --git a/s b/s\nnew file mode 100755\n--- /dev/null\n+++ b/s\n@@ -0,0 +1 @@\n+x\n"
        patch += "diff --git a/run b/run\nold mode 100755\nnew mode 100644\n"
        assert not (await tools.call("apply_patch", {"patch": patch})).failed
        assert [os.access(root / name, os.X_OK) for name in ("a.py", "s")] == [True, True]
        assert (root / "run").stat().st_mode & 0o777 == 0o644

    async def test_deleting_a_link_keeps_its_target(self, root: Path, tools: Toolbox) -> None:
        (root / "link").symlink_to("run")
        assert not (await tools.call("apply_patch", {"patch": enveloped("*** Delete File: link")})).failed
        assert not (root / "link").is_symlink()
        assert (root / "run").exists()

    async def test_a_patch_without_effect_fails(self, tools: Toolbox) -> None:
        result = await tools.call("apply_patch", {"patch": enveloped("*** Update File: run\n@@\n-x\n+x")})
        assert result.failed
        assert "as it is" in result.text
