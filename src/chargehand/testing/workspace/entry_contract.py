"""The part of the drivers' contract about entries: every kind of change, ignored files, refused entries."""

from __future__ import annotations

from chargehand.testing.workspace.harness import DriverHarness, changed, rules, tree_paths
from chargehand.workspace.scan import WorkspaceLimits

# Changes that git and an overlay represent differently: opaque directories, whiteouts, links replacing
# directories.
_REPLACEMENTS = (
    "rm -r src; echo x > src",
    "rm README.md; mkdir README.md; echo x > README.md/f",
    "rm -r docs; ln -s src docs",
    "rm -r docs; mkdir docs; echo c > docs/c.md",
    "mv src/lib src/moved",
    "mv src other; mkdir src; echo n > src/app.py",
    "rm -rf src/lib/deep; mkdir -p src/lib/deep/deeper; echo x > src/lib/deep/deeper/x",
    "rm -rf docs src run.sh README.md .gitignore",
    "echo x > 'a b'; mkdir -p 'd\\e'; echo y > 'd\\e/f'; echo z > -- ; echo w > :x; echo 1 > 'ü'",
)
_OFFENCES = (
    ("mkfifo pipe", "pipe", "entry_special", "critical"),
    ("rm README.md; mkfifo README.md", "README.md", "entry_special", "critical"),
    (
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'",
        "sock",
        "entry_special",
        "critical",
    ),
    ("echo x > s; chmod u+s s", "s", "entry_setuid", "critical"),
    ("echo x > g; chmod g+s g", "g", "entry_setuid", "critical"),
    ("chmod u+s docs/a.md", "docs/a.md", "entry_setuid", "critical"),
    ("ln -s /etc/passwd l", "l", "entry_link_out", "critical"),
    ("ln -s ../up l2", "l2", "entry_link_out", "critical"),
    # A `..` after a name: if the name is a link itself, its target is undefined.
    ("ln -s lib/../../../x src/l", "src/l", "entry_link_out", "critical"),
    # A name that begins like the repository's: comparing prefixes would accept it.
    ("ln -s ../../repository-evil/x src/l2", "src/l2", "entry_link_out", "critical"),
    ("ln -s .git/config l3", "l3", "entry_link_out", "critical"),
    ("rm docs/b.md; ln -s /etc/passwd docs/b.md", "docs/b.md", "entry_link_out", "critical"),
    ("git init -q sub; echo x > sub/f", "sub/.git", "entry_nested_git", "critical"),
    ("mkdir src/.GIT", "src/.GIT", "entry_nested_git", "critical"),
    ("mkdir .Git", ".Git", "entry_nested_git", "critical"),
    # The short name that NTFS gives `.git`.
    ("echo x > git~1", "git~1", "entry_nested_git", "critical"),
    # NTFS drops spaces and dots at the end of a name.
    ("mkdir '.git '", ".git ", "entry_nested_git", "critical"),
    ("mkdir .git.", ".git.", "entry_nested_git", "critical"),
    # HFS+ ignores some characters in names, for example this zero-width one.
    ("mkdir \"$(printf '.g\\342\\200\\214it')\"", ".g\u200cit", "entry_nested_git", "critical"),
    ("touch \"$(printf 'a\\nb')\"", "a\nb", "entry_name", "critical"),
    ("touch \"$(printf 'a\\033[31mb')\"", "a\x1b[31mb", "entry_name", "critical"),
    ("touch \"$(printf 'a\\377b')\"", "a\udcffb", "entry_name", "critical"),
    ("touch \"$(printf 'a\\342\\200\\256b')\"", "a\u202eb", "entry_name", "critical"),
    # On Windows a backslash separates names, so this one climbs.
    ("touch 'a\\..\\b'", "a\\..\\b", "entry_name", "critical"),
    # As root a scan could read it; the project's own checks, run as its owner, could not.
    ("echo x > closed; chmod 0 closed", "closed", "entry_unreadable", "error"),
    ("mkdir shut; touch shut/f; chmod 0 shut", "shut", "entry_unreadable", "error"),
    # Sparse: it takes no room here, and all of it once it is read or copied.
    ("truncate -s 1T huge", "huge", "quota", "critical"),
    ("echo x > tool; chmod +x tool", "tool", "entry_executable", "warning"),
    ("chmod +x run.sh", "run.sh", "entry_executable", "warning"),
)


class EntryContract:
    """A driver's promises about single entries."""

    def test_every_kind_of_change(self, harness: DriverHarness) -> None:
        """Additions, edits, deletions, modes and types are reported; files rewritten identically are not."""
        workspace = harness.workspace()
        harness.run(
            workspace,
            "echo more >> README.md; rm docs/a.md; mkdir -p new/dir; echo n > new/dir/file; chmod +x src/app.py;"
            "rm src/lib/util.py; ln -s app.py src/lib/util.py; touch docs/b.md; cp docs/b.md t; mv t docs/b.md;"
            "mkdir empty",
        )
        assert changed(workspace) == {
            "README.md": "modified",
            "docs/a.md": "deleted",
            "new/dir/file": "added",
            "src/app.py": "modified",
            "src/lib/util.py": "type_changed",
        }
        assert workspace.scan().tree == harness.seen_by_git(workspace)

    def test_replacements_agree_with_git(self, harness: DriverHarness) -> None:
        """Directories that become files or links, and unusual names, are as git has them."""
        for script in _REPLACEMENTS:
            workspace = harness.workspace()
            harness.run(workspace, script)
            found = workspace.scan()
            assert found.tree == harness.seen_by_git(workspace), script
            assert found.tree != workspace.base.tree, script
            assert not [f for f in found.findings if f.severity == "critical"], script
            workspace.discard()

    def test_five_hundred_files_in_a_new_directory(self, harness: DriverHarness) -> None:
        """Each file counts, not only the directory they are in."""
        workspace = harness.workspace()
        harness.run(workspace, "mkdir many; for i in $(seq 500); do echo $i > many/$i; done")
        found = workspace.scan()
        assert len(found.changes) == found.files == 500
        assert found.tree == harness.seen_by_git(workspace)

    def test_hard_links_are_files_like_others(self, harness: DriverHarness) -> None:
        """Names of one file are reported one by one, even if one of them is the base's."""
        workspace = harness.workspace()
        harness.run(workspace, "echo x > a; ln a b; ln README.md c; echo y >> c")
        assert changed(workspace) == {"a": "added", "b": "added", "c": "added", "README.md": "modified"}
        assert workspace.scan().tree == harness.seen_by_git(workspace)

    def test_content_that_looks_like_a_patch(self, harness: DriverHarness) -> None:
        """Neither names nor content are ever parsed as a patch."""
        workspace = harness.workspace()
        lines = (
            "--- a/secret",
            "+++ b/secret",
            "@@ -1 +1 @@",
            "diff --git a/other b/other",
            "deleted file mode 100644",
        )
        text = "\\n".join(lines) + "\\n"
        harness.run(workspace, f"printf -- '{text}' > notes.txt; mkdir b; cp notes.txt 'b/diff --git a'")
        assert changed(workspace) == {"notes.txt": "added", "b/diff --git a": "added"}
        counts = harness.depot.numstat(workspace.base.tree, workspace.scan().tree)
        assert {count.path for count in counts} == {"notes.txt", "b/diff --git a"}

    # --- ignored files

    def test_ignored_files_stay_outside(self, harness: DriverHarness) -> None:
        """Files named by the base's ignore files are not part of the tree, and may be anything."""
        workspace = harness.workspace()
        harness.run(
            workspace,
            "echo x > a.log; echo x > keep.log; mkdir -p build/x vendor src/vendor; touch build/x/y vendor/z;"
            "echo x > src/vendor/in; mkfifo build/pipe; git init -q build/sub",
        )
        assert changed(workspace) == {"keep.log": "added", "src/vendor/in": "added"}
        assert rules(workspace) == {}
        assert workspace.scan().tree == harness.seen_by_git(workspace)

    def test_included_files_belong_to_the_tree(self, harness: DriverHarness) -> None:
        """`include` brings ignored files into the tree, and no others."""
        workspace = harness.workspace(include=("build/out/*.txt", "trace.log"))
        harness.run(
            workspace,
            "mkdir -p build/out build/other; touch build/out/a.txt build/out/b.bin build/other/a.txt;"
            "echo x > trace.log; echo x > other.log; mkdir d; echo x > d/trace.log",
        )
        assert set(changed(workspace)) == {"build/out/a.txt", "trace.log", "d/trace.log"}

    def test_tracked_files_in_ignored_places_stay_tracked(self, harness: DriverHarness) -> None:
        """A change to a file that the base tracks is reported wherever the file is."""
        harness = harness.beside("tracked-in-ignored")
        harness.commit({"build/kept.txt": "kept\n"})
        workspace = harness.workspace()
        harness.run(workspace, "echo more >> build/kept.txt; echo x > build/new.txt")
        assert changed(workspace) == {"build/kept.txt": "modified"}
        harness.run(workspace, "rm -r build; mkdir build; echo x > build/new.txt")
        assert changed(workspace) == {"build/kept.txt": "deleted"}

    def test_changed_ignore_rules_wait_for_promotion(self, harness: DriverHarness) -> None:
        """An agent cannot hide files by ignoring them; its attempt is reported."""
        workspace = harness.workspace()
        harness.run(
            workspace,
            "echo '*.py' > .gitignore; echo x > a.py; echo y > b.log;"
            "mkdir n; echo '*' > n/.gitignore; echo z > n/f",
        )
        found = workspace.scan()
        assert {c.path for c in found.changes} == {".gitignore", "a.py", "n/.gitignore", "n/f"}
        assert {(f.rule, f.severity, f.path) for f in found.findings} == {
            ("gitignore_changed", "info", ".gitignore"),
            ("gitignore_changed", "info", "n/.gitignore"),
        }

    # --- refused entries

    def test_entries_that_break_a_rule(self, harness: DriverHarness) -> None:
        """Each is a finding and leaves the base's version at its path; harmless files next to it are kept."""
        workspace = harness.workspace()
        harness.run(workspace, "echo fine > fine; " + "; ".join(script for script, *_ in _OFFENCES))
        found = workspace.scan()
        assert {(f.path, f.rule, f.severity) for f in found.findings} == {
            (path, rule, severity) for _, path, rule, severity in _OFFENCES
        }
        warned = {path for _, path, _, severity in _OFFENCES if severity == "warning"}
        assert {change.path for change in found.changes} == {"fine", "sub/f", *warned}
        assert {"README.md", "docs/a.md", "docs/b.md", "fine"} <= tree_paths(harness.depot, found.tree)
        workspace.discard()

    def test_links_that_stay_inside_are_kept_as_text(self, harness: DriverHarness) -> None:
        """A link is its text; its target inside the workspace does not matter."""
        workspace = harness.workspace()
        harness.run(
            workspace, "ln -s ../README.md src/l; ln -s nowhere dangling; ln -s . dot; ln -s ./src/app.py s"
        )
        assert set(changed(workspace)) == {"src/l", "dangling", "dot", "s"}
        assert rules(workspace) == {}

    def test_limits_of_count_disk_and_depth(self, harness: DriverHarness) -> None:
        """Files over a limit are reported and left out."""
        few = harness.workspace(limits=WorkspaceLimits(files=3))
        harness.run(few, "for i in 1 2 3 4 5; do echo $i > f$i; done")
        assert set(rules(few).values()) == {"quota"}
        assert few.scan().files == 3
        small = harness.workspace(limits=WorkspaceLimits(disk_bytes=30_000))
        # Synced, since blocks are counted, and some file systems allocate them late; random, so that none can be
        # packed.
        harness.run(small, "for i in 1 2 3; do head -c 12288 /dev/urandom > f$i; sync f$i; done")
        assert set(rules(small).values()) == {"quota"}
        assert small.scan().files == 2
        deep = harness.workspace()
        # More than the 128 levels that are allowed, far fewer than would make a path too long for a system call.
        harness.run(deep, "p=.; for i in $(seq 300); do p=$p/d; done; mkdir -p $p; touch $p/f")
        assert set(rules(deep).values()) == {"quota"}
        deep.discard()
