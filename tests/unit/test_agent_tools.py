"""The tools of the native agent: each works, and each mistake is answered with the correct usage."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.unit._local_sandbox import LocalSandbox

from chargehand.agents.tool_specs import LIBRARY_TOOL, MAP_TOOLS, MUTATING, SPECS, ToolResult
from chargehand.agents.toolbox import Toolbox, action_of, checked_call
from chargehand.core.errors import SandboxDiedError
from chargehand.core.ports import MountPlan, sandbox_ids
from chargehand.policy.actions import FileWrite, Several
from chargehand.sandbox.contract import WORKSPACE, SandboxLimits, SandboxSpec
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.sandbox.toolchain import discover

Call = Callable[..., Awaitable[ToolResult]]


class Bench:
    """A workspace with a toolbox on it."""

    def __init__(self, place: Path, **options: object) -> None:
        self.root = place / "work"
        self.root.mkdir()
        self.spill = place / "spill"
        self.kept: list[bytes] = []
        self.sandbox = LocalSandbox(self.root, **options)
        self.tools = Toolbox(self.sandbox, keep=self.keep, seconds=10.0, spill=str(self.spill))

    def keep(self, data: bytes) -> str:
        self.kept.append(data)
        return f"artifact-{len(self.kept)}"

    def put(self, name: str, content: str | bytes, mode: int = 0o644) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        return path

    async def good(self, name: str, **arguments: object) -> str:
        result = await self.tools.call(name, arguments)
        assert not result.failed, result.text
        return result.text

    async def bad(self, name: str, **arguments: object) -> str:
        before = self.tree()
        result = await self.tools.call(name, arguments)
        assert result.failed, result.text
        assert self.tree() == before
        return result.text

    def tree(self) -> dict[str, bytes | None]:
        found = sorted(path for path in self.root.rglob("*") if path.is_file() or path.is_symlink())
        return {str(path.relative_to(self.root)): path.read_bytes() if path.is_file() else None for path in found}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class TestCalling:
    async def test_unknown_tools_are_named_with_the_nearest(self, bench: Bench) -> None:
        assert "'bash'" in await bench.bad("bas")
        assert "known: apply_patch, ask" in await bench.bad("xyzzy")

    @pytest.mark.parametrize(
        ("name", "arguments", "words"),
        [
            ("bash", {}, ["'command' is missing (a string)"]),
            ("bash", None, ["'command' is missing"]),
            ("bash", "", ["'command' is missing"]),
            ("bash", {"command": 3}, ["'command' must be a string, not 3"]),
            ("bash", {"comand": "ls"}, ["no argument 'comand'", "did you mean 'command'?"]),
            (
                "bash",
                {"command": "ls", "timeout": 900},
                ["'timeout' must be a whole number from 1 to 600, not 900"],
            ),
            ("bash", {"command": "ls", "timeout": True}, ["'timeout' must be a whole number"]),
            ("bash", {"command": None}, ["'command' must be a string, not null"]),
            ("bash", {"command": "\ud800"}, ["surrogate"]),
            ("bash", {"command": "a\0b"}, ["NUL"]),
            ("bash", {"command": "  "}, ["at least one word"]),
            ("bash", {"command": "x" * 200_000}, ["write long texts"]),
            ("bash", '{"command": "ls"', ["not valid JSON", "bash takes"]),
            ("bash", "[" * 100_000, ["not valid JSON"]),
            ("bash", ["ls"], ["must be a JSON object"]),
            ("read", {"path": "a", "limit": 1.5}, ["'limit' must be a whole number"]),
            ("read", {"path": "a", "offset": 0}, ["'offset'"]),
            ("read", {"path": ""}, ["not a path"]),
            ("read", {"path": "a\0"}, ["not a path"]),
            ("edit", {"path": "a"}, ["'old' is missing", "'new' is missing"]),
            ("edit", {"path": "a", "old": "", "new": "", "all": "yes"}, ["true or false"]),
            ("finish", {"summary": "x", "evidence": ["a", 1]}, ["a list of strings"]),
            ("finish", {"summary": "x", "evidence": []}, ["cannot be called here"]),
            ("ask", {"question": "x"}, ["cannot be called here"]),
        ],
    )
    async def test_wrong_arguments_are_named(
        self, bench: Bench, name: str, arguments: object, words: list[str]
    ) -> None:
        result = await bench.tools.call(name, arguments)
        assert result.failed
        for word in words:
            assert word in result.text
        assert len(result.text) < 800

    async def test_json_text_null_and_whole_floats_are_taken(self, bench: Bench) -> None:
        result = await bench.tools.call("bash", '{"command": "echo hi", "timeout": null}')
        assert result.text == "hi\n[exit code 0]"
        assert not (await bench.tools.call("bash", {"command": "true", "timeout": 5.0})).failed

    def test_calls_of_the_loop_tools_are_checked(self) -> None:
        assert checked_call("ask", {"question": "why?"}) == {"question": "why?"}
        wrong = checked_call("finish", {})
        assert isinstance(wrong, ToolResult)
        assert wrong.failed

    def test_notes_are_offered_in_a_plan_and_are_texts_by_reader(self, bench: Bench) -> None:
        boxes = (bench.tools, Toolbox(bench.sandbox, keep=bench.keep, in_plan=True))
        offered = [next(each for each in box.specs if each.name == "finish").parameters for box in boxes]
        assert ["notes" in json.dumps(parameters) for parameters in offered] == [False, True]
        done = {"summary": "s", "evidence": ["e"], "notes": {"everyone": "n"}}
        assert checked_call("finish", done) == done
        for notes in (["n"], {"everyone": 1}, {"everyone": ["n"]}, "n", {"everyone": "\ud800"}):
            wrong = checked_call("finish", done | {"notes": notes})
            assert isinstance(wrong, ToolResult)
            assert "'notes'" in wrong.text

    def test_parts_for_others_are_offered_in_a_plan_and_are_a_list_of_objects(self, bench: Bench) -> None:
        boxes = (bench.tools, Toolbox(bench.sandbox, keep=bench.keep, in_plan=True))
        offered = [next(each for each in box.specs if each.name == "finish").parameters for box in boxes]
        assert ["delegate" in json.dumps(parameters) for parameters in offered] == [False, True]
        done = {"summary": "s", "evidence": ["e"], "delegate": [{"id": "docs", "text": "t", "role": "writer"}]}
        assert checked_call("finish", done) == done
        for parts in (["n"], {"id": "x"}, "n", [[]], [{"id": "\ud800"}]):
            wrong = checked_call("finish", done | {"delegate": parts})
            assert isinstance(wrong, ToolResult)
            assert "'delegate'" in wrong.text

    def test_the_schemas_are_closed_and_small(self) -> None:
        assert {spec.name for spec in SPECS} > MUTATING
        for spec in SPECS:
            assert spec.parameters["additionalProperties"] is False
            assert set(spec.parameters["required"]) <= set(spec.parameters["properties"])
        sizes = {s.name: len(json.dumps([s.name, s.description, s.parameters])) for s in SPECS}
        assert sum(size for name, size in sizes.items() if name not in MAP_TOOLS) < 5200
        assert sum(size for name, size in sizes.items() if name != LIBRARY_TOOL) < 6500

    async def test_a_dead_sandbox_is_no_result(self, tmp_path: Path) -> None:
        bench = Bench(tmp_path, dies_at=1)
        for name, arguments in (
            ("bash", {"command": "ls"}),
            ("read", {"path": "a"}),
            ("search", {"pattern": "a"}),
        ):
            with pytest.raises(SandboxDiedError):
                await bench.tools.call(name, arguments)

    @settings(
        max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(
        name=st.sampled_from(["read", "edit", "search", "apply_patch"]),
        path=st.text(max_size=8)
        | st.sampled_from(["..", "/", "/etc/passwd", "-n", "a/../..", "~", "d", "*", "."]),
        text=st.text(max_size=6) | st.sampled_from(["(", "[", "-e", "*", "\\", "a{1"]),
    )
    async def test_no_argument_raises(self, bench: Bench, name: str, path: str, text: str) -> None:
        bench.put("d/file", "a\n")
        arguments: dict[str, dict[str, object]] = {
            "read": {"path": path},
            "edit": {"path": path, "old": "x" + text, "new": text},
            "search": {"pattern": text, "path": "d/" + path.replace("..", ""), "glob": text},
            "apply_patch": {"patch": f"*** Begin Patch\n*** Delete File: {path}\n{text}\n*** End Patch"},
        }
        result = await bench.tools.call(name, arguments[name])
        assert result.text


class TestBash:
    async def test_both_streams_and_the_exit_code(self, bench: Bench) -> None:
        text = await bench.good("bash", command="echo out; echo err >&2; exit 3")
        assert text == "out\n[stderr]\nerr\n[exit code 3]"
        assert await bench.good("bash", command="true") == "[exit code 0]"

    async def test_commands_run_with_bash_in_the_workspace(self, bench: Bench) -> None:
        assert "yes\n" in await bench.good("bash", command="[[ a == a ]] && echo yes; echo x > made")
        assert (bench.root / "made").exists()

    async def test_a_timeout_is_reported(self, bench: Bench) -> None:
        bench.sandbox.expires_on = b"begun\n"
        text = await bench.bad("bash", command="echo begun; sleep 300")
        assert text.startswith("begun\n[timed out after 10 s")

    async def test_terminal_control_sequences_are_removed(self, bench: Bench) -> None:
        text = await bench.good(
            "bash", command=r"printf '\033[31mred\033[0m \377\0\a 1%%\r 50%%\r 100%%\r\nend\r\n'"
        )
        assert text == " 100%\nend\n[exit code 0]"
        assert "red \ufffd" in await bench.good("bash", command=r"printf '\033[31mred\033[0m \377\n'")

    async def test_long_output_is_shortened_and_kept_in_a_file(self, bench: Bench) -> None:
        result = await bench.tools.call("bash", {"command": "seq 100000; echo last >&2"})
        assert len(result.text) < 10_300
        assert result.text.startswith("1\n2\n")
        assert result.text.endswith("100000\n[stderr]\nlast\n[exit code 0]")
        assert result.artifact == "artifact-1"
        assert f"all of it: {bench.spill}/output-1.txt" in result.text
        assert (bench.spill / "output-1.txt").read_bytes() == bench.kept[0]
        assert bench.kept[0].startswith(b"1\n2\n3\n")
        shown = await bench.good("read", path=str(bench.spill / "output-1.txt"), offset=50_000, limit=2)
        assert shown.splitlines()[:2] == [" 50000\t50000", " 50001\t50001"]
        await bench.good("bash", command="seq 100000")
        assert (bench.spill / "output-2.txt").exists()

    async def test_output_that_cannot_be_saved_in_the_sandbox_is_still_kept(self, bench: Bench) -> None:
        bench.spill.write_text("in the way")
        result = await bench.tools.call("bash", {"command": "seq 100000"})
        assert "could not be saved" in result.text
        assert result.artifact

    async def test_output_is_passed_to_the_callback(self, bench: Bench) -> None:
        seen: list[tuple[str, bytes]] = []
        tools = Toolbox(bench.sandbox, keep=bench.keep, on_output=lambda *piece: seen.append(piece))
        await tools.call("bash", {"command": "echo a; echo b >&2"})
        assert sorted(seen) == [("stderr", b"b\n"), ("stdout", b"a\n")]


class TestRead:
    async def test_numbered_lines_and_the_end(self, bench: Bench) -> None:
        bench.put("a.txt", "one\n\ttwo\n\n")
        text = await bench.good("read", path="a.txt")
        assert text == "     1\tone\n     2\t\ttwo\n     3\t\n[end of the file, 3 lines.]"
        assert text == await bench.good("read", path="/workspace/a.txt")

    async def test_parts(self, bench: Bench) -> None:
        bench.put("long", "".join(f"{n}\n" for n in range(1, 1001)))
        text = await bench.good("read", path="long")
        assert text.endswith("   400\t400\n[lines 1 to 400 of 1000; go on with offset=401.]")
        text = await bench.good("read", path="long", offset=999, limit=5)
        assert text == "   999\t999\n  1000\t1000\n[end of the file, 1000 lines.]"
        assert "only 1000 lines" in await bench.bad("read", path="long", offset=1001)

    async def test_a_very_large_file_is_read_in_parts(self, bench: Bench) -> None:
        bench.put("huge", "".join(f"line {n}\n" for n in range(1, 500_001)))
        text = await bench.good("read", path="huge", offset=400_000, limit=2)
        assert text.splitlines()[:2] == ["400000\tline 400000", "400001\tline 400001"]
        assert "of 500000; go on with offset=400002" in text
        assert "too many for this tool" in await bench.bad("edit", path="huge", old="line 1\n", new="")

    async def test_odd_lines(self, bench: Bench) -> None:
        bench.put("odd", b"a\x1b[31m\r\n\xff\xe9\n" + b"x" * 2500 + b"\nlast")
        lines = (await bench.good("read", path="odd")).split("\n")
        assert lines[:2] == ["     1\ta\\x1b[31m", "     2\t\\xff\\xe9"]
        assert lines[2].endswith("x[... 500 more characters of this line]")
        assert lines[-1] == "[end of the file, 4 lines without a line feed. Lines end in CRLF.]"

    async def test_a_reply_is_bounded(self, bench: Bench) -> None:
        bench.put("wide", ("y" * 1900 + "\n") * 400)
        text = await bench.good("read", path="wide")
        assert len(text) < 30_200
        assert "go on with offset=16" in text

    async def test_directories_binaries_and_empty_files(self, bench: Bench) -> None:
        bench.put("d/b", "")
        bench.put("d/sub/c", "")
        bench.put("d/.hidden", "")
        bench.put("d/z\u2028\x0b", "")
        bench.put("pic", b"\x89PNG\r\n\x1a\n\0\0")
        assert await bench.good("read", path="d") == (
            "d is a directory with 4 entries:\n.hidden\nb\nsub/\nz\\u2028\\x0b"
        )
        assert "entries:\nd/\npic" in await bench.good("read", path=".")
        bench.put("data", b"SQLite\0\0")
        assert "is SQLite of 8 bytes; it begins with the bytes 53 51 4c" in await bench.good("read", path="data")
        assert await bench.good("read", path="d/b") == "[d/b is empty]"

    async def test_missing_files_come_with_the_nearest_names(self, bench: Bench) -> None:
        bench.put("src/parser.py", "")
        bench.put("src/other.py", "")
        assert "nearest in src: parser.py" in await bench.bad("read", path="src/parsr.py")
        assert "in src there is: other.py, parser.py" in await bench.bad("read", path="src/zzz")
        assert "nearest in /workspace: src/" in await bench.bad("read", path="srcs/parser.py")
        assert "not a directory" in await bench.bad("read", path="src/other.py/x")

    async def test_links_and_pipes(self, bench: Bench) -> None:
        bench.put("real", "text\n")
        (bench.root / "link").symlink_to("real")
        (bench.root / "loose").symlink_to("nowhere")
        os.mkfifo(bench.root / "pipe")
        assert "\ttext" in await bench.good("read", path="link")
        assert "dangling link" in await bench.bad("read", path="loose")
        assert "not a regular file" in await bench.bad("read", path="pipe")


class TestEdit:
    async def test_an_edit_returns_its_diff_and_keeps_the_mode(self, bench: Bench) -> None:
        path = bench.put("a.py", "a = 1\nb = 2\nc = 3\n", 0o755)
        text = await bench.good("edit", path="a.py", old="b = 2", new="b = 20")
        assert path.read_text() == "a = 1\nb = 20\nc = 3\n"
        assert text.endswith("@@ -1,3 +1,3 @@\n a = 1\n-b = 2\n+b = 20\n c = 3\nsyntax: ok")
        assert path.stat().st_mode & 0o7777 == 0o755
        assert os.listdir(bench.root) == ["a.py"]

    async def test_unusual_modes_are_kept(self, bench: Bench) -> None:
        path = bench.put("a", "x\n", 0o4510)
        await bench.good("edit", path="a", old="x", new="y")
        assert (path.read_text(), path.stat().st_mode & 0o7777) == ("y\n", 0o4510)

    async def test_several_matches_are_refused_unless_all_is_set(self, bench: Bench) -> None:
        path = bench.put("a", "x\ny\nx\n")
        assert "2 times (from lines 1, 3)" in await bench.bad("edit", path="a", old="x", new="z")
        await bench.good("edit", path="a", old="x", new="z", all=True)
        assert path.read_text() == "z\ny\nz\n"
        bench.put("o", "aaa")
        assert "2 times" in await bench.bad("edit", path="o", old="aa", new="b")

    async def test_no_match_shows_the_nearest_place(self, bench: Bench) -> None:
        bench.put("a", "def f():\n    return 1\n\n\ndef g():\n    return 2\n")
        text = await bench.bad("edit", path="a", old="def g():\n  return 2", new="")
        assert "Only white space differs" in text
        assert text.endswith("     5\tdef g():\n     6\t    return 2")
        assert "file uses spaces" in await bench.bad("edit", path="a", old="def g():\n\treturn 2", new="")
        assert "     6\t    return 2" in await bench.bad("edit", path="a", old="    return 22", new="")
        assert "nor anything like it" in await bench.bad("edit", path="a", old="@@@@", new="")

    async def test_new_files(self, bench: Bench) -> None:
        assert await bench.good("edit", path="d/e/n.txt", old="", new="one\ntwo") == "d/e/n.txt: new file, 2 lines"
        assert (bench.root / "d/e/n.txt").read_text() == "one\ntwo"
        assert "exists and is not empty" in await bench.bad("edit", path="d/e/n.txt", old="", new="x")
        bench.put("empty", "")
        await bench.good("edit", path="empty", old="", new="x")
        assert (bench.root / "empty").read_text() == "x"
        assert "does not exist" in await bench.bad("edit", path="gone", old="x", new="y")
        assert "not a directory" in await bench.bad("edit", path="empty/x", old="", new="y")

    async def test_an_edit_without_effect_is_refused(self, bench: Bench) -> None:
        bench.put("a", "x")
        assert "the same" in await bench.bad("edit", path="a", old="x", new="x")

    async def test_windows_line_ends_are_kept(self, bench: Bench) -> None:
        path = bench.put("w", "a\r\nb\r\nc\r\n")
        await bench.good("edit", path="w", old="a\nb\n", new="a\nbb\nbc\n")
        assert path.read_bytes() == b"a\r\nbb\r\nbc\r\nc\r\n"
        await bench.good("edit", path="w", old="bb", new="1\n2")
        assert path.read_bytes() == b"a\r\n1\r\n2\r\nbc\r\nc\r\n"

    async def test_bytes_that_are_no_text_are_kept(self, bench: Bench) -> None:
        path = bench.put("latin", b"caf\xe9 \xff\nx\n")
        text = await bench.good("edit", path="latin", old="x", new="é")
        assert path.read_bytes() == b"caf\xe9 \xff\n" + "é\n".encode()
        text.encode()

    async def test_links_are_followed_inside_only(self, bench: Bench, tmp_path: Path) -> None:
        real = bench.put("real/file", "x\n")
        outside = tmp_path / "outside"
        outside.write_text("x\n")
        (bench.root / "link").symlink_to("real/file")
        (bench.root / "out").symlink_to(outside)
        (bench.root / "outdir").symlink_to(tmp_path)
        await bench.good("edit", path="link", old="x", new="y")
        assert real.read_text() == "y\n"
        assert (bench.root / "link").is_symlink()
        for path in ("out", "outdir/outside", str(outside), "../outside"):
            assert "inside" in await bench.bad("edit", path=path, old="x", new="y")
        assert "inside" in await bench.bad("edit", path="outdir/fresh", old="", new="y")
        assert outside.read_text() == "x\n"

    async def test_git_and_odd_places_are_left_alone(self, bench: Bench) -> None:
        bench.put(".git/config", "x")
        (bench.root / "g").symlink_to(".git")
        for path in (".git/config", "g/config", ".GIT/config", "sub/.git/hooks"):
            assert ".git" in await bench.bad("edit", path=path, old="", new="y")
        (bench.root / "d").mkdir()
        assert "a directory" in await bench.bad("edit", path="d", old="", new="y")

    @pytest.mark.parametrize(
        ("name", "content", "line"),
        [
            ("a.py", "x = (\n", "syntax: '(' was never closed at line 1 (as Python "),
            ("a.py", "import re\nre.compile('\\d')\n", "syntax: ok"),
            ("a.py", "x" + ".b" * 50_000, "syntax: "),
            ("a.json", '{"a": 1 "b"}', "syntax: Expecting ',' delimiter at line 1"),
            ("a.json", "[" * 50_000, "syntax: "),
            ("tsconfig.json", "// fine\n{}", None),
            ("a.toml", "a = \n", "syntax: Invalid value (at line 1, column 5)"),
            ("a.txt", "(", None),
        ],
    )
    async def test_the_syntax_of_a_written_file_is_checked(
        self, bench: Bench, name: str, content: str, line: str | None
    ) -> None:
        last = (await bench.good("edit", path=name, old="", new=content)).splitlines()[-1]
        assert last.startswith(line) if line else "syntax" not in last

    async def test_an_edit_on_a_full_disk_is_reported(self, bench: Bench) -> None:
        bench.put("a", "x\n")
        bench.put("bin/chmod", "#!/bin/sh\necho 'no space left' >&2\nexit 1\n", 0o755)
        environment = {"PATH": f"{bench.root}/bin:{os.environ['PATH']}"}
        bench.tools = Toolbox(LocalSandbox(bench.root, environment=environment), keep=bench.keep)
        assert "so nothing was: no space left" in await bench.bad("edit", path="a", old="x", new="y")


class TestSearch:
    @pytest.fixture(autouse=True)
    def _project(self, bench: Bench) -> None:
        bench.put("src/a.py", "import os\n\ndef find(x):\n    return x\n")
        bench.put("src/deep/b.ts", "find(1)\n")
        bench.put("README.md", "find it: (x)\n")
        for left_out in (".git/x", ".venv/y", "node_modules/z", "src/node_modules/q"):
            bench.put(left_out, "find\n")
        bench.put("binary", b"find\0\n")

    async def test_matches_with_place_and_number(self, bench: Bench) -> None:
        text = await bench.good("search", pattern="find")
        assert text == "README.md:1:find it: (x)\nsrc/a.py:3:def find(x):\nsrc/deep/b.ts:1:find(1)"
        assert await bench.good("search", pattern="find", path="src/a.py") == "src/a.py:3:def find(x):"

    async def test_globs_and_context(self, bench: Bench) -> None:
        assert await bench.good("search", pattern="find", glob="*.py") == "src/a.py:3:def find(x):"
        assert await bench.good("search", pattern="find", glob="src/**/*.ts") == "src/deep/b.ts:1:find(1)"
        assert await bench.good("search", pattern="find", glob="src/*.ts") == "no line matches 'find'"
        text = await bench.good("search", pattern="find", glob="*.py", context=1)
        assert text == "src/a.py-2-\nsrc/a.py:3:def find(x):\nsrc/a.py-4-    return x"

    async def test_searches_without_matches_and_with_mistakes(self, bench: Bench) -> None:
        assert await bench.good("search", pattern="zzz") == "no line matches 'zzz'"
        assert "nmatched" in await bench.bad("search", pattern="find(")
        assert "nearest in /workspace: src/" in await bench.bad("search", pattern="x", path="srcs")
        assert "at least one character" in await bench.bad("search", pattern="")
        assert await bench.good("search", pattern="-x") == "no line matches '-x'"

    async def test_many_matches_end_with_a_word(self, bench: Bench) -> None:
        bench.put("many", "hit\n" * 1000)
        lines = (await bench.good("search", pattern="hit")).splitlines()
        assert len(lines) == 201
        assert lines[-1].startswith("[the first 200 of 1000 matches")
        bench.put("endless", ("hit" + "x" * 1000 + "\n") * 3000)
        text = await bench.good("search", pattern="hit", path="endless")
        assert "[the first 200 of more than " in text
        assert len(text) < 80_000


@pytest.mark.needs_bwrap
class TestInsideARealSandbox:
    @pytest.fixture
    async def tools(self, tmp_path: Path) -> AsyncIterator[Toolbox]:
        root = tmp_path / "place"
        for name in ("base", "upper", "work"):
            (root / name).mkdir(parents=True)
        script = root / "base/run.sh"
        script.write_text("#!/bin/sh\necho one\n")
        script.chmod(0o755)
        (root / "base/gone.txt").write_text("old\n")
        for path in (root, *root.rglob("*")):
            os.chown(path, *sandbox_ids())
        plan = MountPlan(target="/workspace", lowers=(root / "base",), upper=root / "upper", work=root / "work")
        spec = SandboxSpec(mounts=plan, limits=SandboxLimits(memory_mb=512, tmp_mb=16))
        async with AsyncExitStack() as stack:
            tier = await stack.enter_async_context(ProcessTier(discover(search=os.environ["PATH"])))
            sandbox = await tier.open(spec)
            stack.push_async_callback(sandbox.close)
            yield Toolbox(sandbox, keep=lambda data: "kept")
        for locked in root.glob("work/work"):
            locked.chmod(0o700)

    async def test_files_of_a_lower_layer_are_edited_moved_and_removed(
        self, tools: Toolbox, tmp_path: Path
    ) -> None:
        result = await tools.call("edit", {"path": "/workspace/run.sh", "old": "one", "new": "two"})
        assert not result.failed, result.text
        assert (await tools.call("bash", {"command": "./run.sh"})).text == "two\n[exit code 0]"
        patch = (
            "*** Begin Patch\n*** Update File: run.sh\n*** Move to: bin/go\n@@\n-echo two\n+echo three\n"
            "*** Delete File: gone.txt\n*** Add File: src/new.json\n+{}\n*** End Patch\n"
        )
        result = await tools.call("apply_patch", {"patch": patch})
        assert not result.failed, result.text
        listed = await tools.call("bash", {"command": "bin/go; find . -type f | sort; cat src/new.json"})
        assert listed.text == "three\n./bin/go\n./src/new.json\n{}\n[exit code 0]"
        assert (tmp_path / "place/base/run.sh").read_text() == "#!/bin/sh\necho one\n"

    async def test_long_output_can_be_read_in_parts(self, tools: Toolbox) -> None:
        result = await tools.call("bash", {"command": "seq 100000"})
        assert "/tmp/chargehand/output-1.txt" in result.text
        part = await tools.call("read", {"path": "/tmp/chargehand/output-1.txt", "offset": 70_000, "limit": 1})
        assert part.text.startswith(" 70000\t70000\n")
        found = await tools.call("search", {"pattern": "^99999$", "path": "/tmp/chargehand"})
        assert found.text == "/tmp/chargehand/output-1.txt:99999:99999"

    async def test_edits_outside_the_workspace_are_refused(self, tools: Toolbox) -> None:
        for path in ("/etc/passwd", "/tmp/x", "../x"):
            result = await tools.call("edit", {"path": path, "old": "", "new": "x"})
            assert result.failed
            assert "inside /workspace" in result.text
        assert (await tools.call("read", {"path": "/proc/self/status"})).text.startswith("     1\tName:")


class TestFromADirectory:
    """Relative paths start at the commands' working directory; shown paths can be used in the next call."""

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        made = Bench(tmp_path, cwd=f"{WORKSPACE}/services/api")
        made.put("services/api/calc/core.py", "def add(a, b):\n    return a - b\n")
        made.put("lib/shared.py", "add = 1\n")
        return made

    async def test_reading(self, bench: Bench) -> None:
        assert "return a - b" in await bench.good("read", path="calc/core.py")
        assert "add = 1" in await bench.good("read", path="../../lib/shared.py")
        assert "add = 1" in await bench.good("read", path="/workspace/lib/shared.py")
        assert "core.py" in await bench.good("read", path="calc")
        assert "nearest in calc: core.py" in await bench.bad("read", path="calc/cores.py")
        assert "in /workspace/services/api there is: calc/" in await bench.bad("read", path="zzz")
        assert await bench.good("search", pattern="add") == "calc/core.py:1:def add(a, b):"
        assert await bench.good("search", pattern="add", path="/workspace/lib") == "../../lib/shared.py:1:add = 1"
        assert await bench.good("search", pattern="add", glob="calc/*.py") == "calc/core.py:1:def add(a, b):"

    async def test_writing(self, bench: Bench) -> None:
        await bench.good("edit", path="calc/core.py", old="a - b", new="a + b")
        await bench.good("edit", path="../../lib/new.py", old="", new="x = 1\n")
        assert (bench.root / "lib/new.py").read_text() == "x = 1\n"
        assert "inside /workspace" in await bench.bad("edit", path="../../../out.py", old="", new="x")
        assert (bench.root / "services/api/calc/core.py").read_text().endswith("a + b\n")

    @pytest.mark.parametrize("above", ["", "services/api/", "/workspace/services/api/"])
    async def test_a_patch_names_paths_from_here_or_as_git_writes_them(self, bench: Bench, above: str) -> None:
        patch = (
            f"*** Begin Patch\n*** Update File: {above}calc/core.py\n@@\n-    return a - b\n+    return a + b\n"
            f"*** Add File: {above}new.py\n+x = 1\n*** End Patch"
        )
        action = action_of("apply_patch", {"patch": patch}, cwd=bench.sandbox.cwd)
        assert isinstance(action, Several)
        written = [f"{WORKSPACE}/services/api/{name}" for name in ("calc/core.py", "new.py")]
        assert [each.path for each in action.actions if isinstance(each, FileWrite)] == written
        await bench.good("apply_patch", patch=patch)
        assert (bench.root / "services/api/calc/core.py").read_text().endswith("a + b\n")
        assert (bench.root / "services/api/new.py").read_text() == "x = 1\n"

    async def test_commands_and_their_description(self, bench: Bench) -> None:
        assert (await bench.good("bash", command="ls")).startswith("calc\n")
        told = json.dumps([[spec.description, spec.parameters] for spec in bench.tools.specs])
        assert (
            told.count("/workspace")
            == told.count("/workspace/services/api")
            == json.dumps([[spec.description, spec.parameters] for spec in SPECS]).count("/workspace")
        )
