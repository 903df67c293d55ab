"""The part of the drivers' contract about attributes: files are shown and kept as git converts them."""

from __future__ import annotations

from chargehand.testing.workspace.harness import DriverHarness, changed, rules

_ATTRIBUTES = """\
*.bat text eol=crlf
*.utf16 text working-tree-encoding=UTF-16LE-BOM
*.auto text=auto eol=crlf
*.id ident
*.lfs filter=lfs -text
docs/*.md eol=crlf
"""
# Text as in blobs; in the harness's repository git itself converts the files written there.
_FILES = {
    ".gitattributes": _ATTRIBUTES,
    "a.bat": "one\ntwo\n",
    "b.auto": "one\ntwo\n",
    "c.id": "$Id$\n",
    "d/.gitattributes": "*.bat -text\n",
    "d/e.bat": "plain\n",
    "kept.lfs": "version https://git-lfs.github.com/spec/v1\n",
}
_SHOW = "for f in a.bat b.auto c.id d/e.bat docs/a.md; do od -An -c $f | tr -d ' \\n'; echo; done"
_CLEAN = "git status --porcelain"


class AttributeContract:
    """Conversions both ways; `harness` is the driver's."""

    def test_files_are_shown_as_a_clone_shows_them(self, harness: DriverHarness) -> None:
        """Line ends and keywords are converted, by the attributes of each directory; git sees no change."""
        harness = harness.beside("attributes")
        harness.commit(_FILES)
        workspace = harness.workspace()
        shown = harness.run(workspace, _SHOW).split()
        blob = harness.git("rev-parse", "HEAD:c.id").strip()
        assert shown == ["one\\r\\ntwo\\r\\n", "one\\r\\ntwo\\r\\n", f"$Id:{blob}$\\n", "plain\\n", "a\\r\\n"]
        assert harness.run(workspace, _CLEAN) == ""
        # Rewritten with the same content, and copied up if there are layers: still the same blobs.
        harness.run(workspace, "for f in a.bat b.auto c.id d/e.bat docs/a.md; do cat $f > t; cp t $f; done; rm t")
        assert changed(workspace) == {}

    def test_a_written_file_becomes_the_blob_that_git_would_add(self, harness: DriverHarness) -> None:
        """Also over a base that was never normalised, whose untouched files stay unchanged."""
        harness = harness.beside("attributes-written")
        harness.commit({"old.auto": "a\r\nb\r\n", "old.bat": "a\r\nb\r\n"})
        harness.commit(_FILES)
        workspace = harness.workspace()
        harness.run(workspace, "cat old.bat > t; cp t old.bat; rm t")
        assert changed(workspace) == {}
        harness.run(
            workspace,
            "printf 'three\\r\\n' >> a.bat; printf 'new\\r\\n' > new.bat; printf 'c\\r\\n' >> old.auto;"
            "printf '$Id: x $\\n$Id$\\n' > c.id; printf '\\377\\376a\\000\\n\\000' > t.utf16;"
            "printf 'n\\n' > n.auto",
        )
        found = workspace.scan()
        assert found.findings == ()
        blobs = {change.path: harness.depot.read_blob(change.new_id or "") for change in found.changes}
        assert blobs == {
            "a.bat": b"one\ntwo\nthree\n",
            "new.bat": b"new\n",
            "old.auto": b"a\r\nb\r\nc\r\n",
            "c.id": b"$Id$\n$Id$\n",
            "t.utf16": b"a\n",
            "n.auto": b"n\n",
        }
        # In another workspace and after a roll-back, each file is as written or as git converts it.
        other = harness.workspace(tree=found.tree)
        assert harness.run(other, "od -An -c t.utf16; cat new.bat") == harness.run(
            workspace, "od -An -c t.utf16; cat new.bat"
        )
        assert other.scan().tree == found.tree
        workspace.reset(found.tree, "again")
        assert workspace.scan().tree == found.tree
        assert harness.run(workspace, "cat c.id").count("$Id: ") == 2

    def test_changed_attributes_hold_at_once(self, harness: DriverHarness) -> None:
        """As for `git add`: by those in the workspace, whether written before or after the files they concern."""
        harness = harness.beside("attributes-changed")
        harness.commit({"a.bat": "one\n", "s/b.bat": "two\n", "t/c.txt": "three\n"})
        workspace = harness.workspace()
        harness.run(workspace, "printf 'x\\r\\n' > x.bat; printf 'y\\r\\n' > s/y.bat; printf 'z\\r\\n' > t/z.bat")
        assert harness.depot.read_blob(workspace.scan().changes[0].new_id or "") == b"y\r\n"
        harness.run(
            workspace, "echo '*.bat text eol=crlf' > .gitattributes; echo '*.bat -text' > s/.gitattributes"
        )
        found = workspace.scan()
        blobs = {change.path: harness.depot.read_blob(change.new_id or "") for change in found.changes}
        assert {path: blobs[path] for path in ("x.bat", "s/y.bat", "t/z.bat")} == {
            "x.bat": b"x\n",
            "s/y.bat": b"y\r\n",
            "t/z.bat": b"z\n",
        }
        assert found.tree == harness.seen_by_git(workspace)
        # A workspace of that tree shows all files by its attributes, including untouched ones.
        other = harness.workspace(tree=found.tree)
        shown = harness.run(other, "for f in a.bat s/b.bat; do od -An -c $f | tr -d ' '; done")
        assert shown == "one\\r\\n\ntwo\\n\n"
        assert other.scan().tree == found.tree
        harness.run(workspace, "rm .gitattributes s/.gitattributes")
        assert harness.depot.read_blob(workspace.scan().changes[-1].new_id or "") == b"x\r\n"

    def test_files_that_git_would_refuse_are_refused_and_filters_are_reported(
        self, harness: DriverHarness
    ) -> None:
        """A file that is not in its encoding stays the base's; a file under a filter needs a person."""
        harness = harness.beside("attributes-refused")
        harness.commit(_FILES)
        workspace = harness.workspace()
        harness.run(workspace, "printf 'a' > odd.utf16; echo content > kept.lfs; echo more > new.lfs; echo n > n")
        assert rules(workspace) == {
            "odd.utf16": "entry_encoding",
            "kept.lfs": "entry_filter",
            "new.lfs": "entry_filter",
        }
        assert changed(workspace) == {"kept.lfs": "modified", "new.lfs": "added", "n": "added"}
        waiting = {found.path for found in workspace.scan().findings if found.needs_person}
        assert waiting == {"kept.lfs", "new.lfs"}
        # Nor by removing the filter together with the file.
        harness.run(workspace, "rm .gitattributes")
        assert rules(workspace)["kept.lfs"] == "entry_filter"
