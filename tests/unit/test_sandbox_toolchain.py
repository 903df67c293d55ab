"""Which host programs a sandbox may use: found by asking them, remembered until one of them changes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from chargehand.core import ConfigError
from chargehand.sandbox import Toolchain, discover


def program(prefix: Path, name: str, answer: str, *, code: int = 0) -> Path:
    """Make a stand-in that answers with one line and counts how often it was asked."""
    path = prefix / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho x >> {prefix}/asked-{name}\necho '{answer}'\nexit {code}\n")
    path.chmod(0o755)
    return path


def asked(prefix: Path, name: str) -> int:
    path = prefix / f"asked-{name}"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    prefix = tmp_path / "opt" / "python-9.9"
    program(prefix, "python3", str(prefix))
    return prefix


def targets(toolchain: Toolchain) -> dict[str, Path]:
    return {bind.target: bind.source for bind in toolchain.binds}


def test_an_interpreter_of_any_prefix_is_shown_at_a_neutral_path(prefix: Path) -> None:
    found = discover(search=str(prefix / "bin"))
    assert targets(found) == {"/opt/toolchain/python3": prefix}
    assert found.path[0] == "/opt/toolchain/python3/bin"
    assert "/usr/bin" in found.path
    assert not [place for place in found.path if str(prefix) in place]
    assert not any(bind.writable for bind in found.binds)


def test_the_prefix_is_a_real_path(prefix: Path, tmp_path: Path) -> None:
    link = tmp_path / "current"
    link.symlink_to(prefix)
    program(prefix, "python3", str(link))
    assert targets(discover(search=str(link / "bin"))) == {"/opt/toolchain/python3": prefix}


def test_a_library_that_the_interpreter_is_linked_against_comes_along(prefix: Path) -> None:
    (prefix / "lib").mkdir()
    library = prefix / "lib/libpython9.9.so.1.0"
    library.touch()
    found = targets(discover(search=str(prefix / "bin")))
    assert found["/opt/toolchain/lib/libpython9.9.so.1.0"] == library


def test_what_lies_below_usr_needs_no_mount(tmp_path: Path) -> None:
    program(tmp_path, "python3", "/usr")
    assert discover(search=str(tmp_path / "bin")).binds == ()
    program(tmp_path, "python3", "/usr/local")
    if os.path.realpath("/usr/local") == "/usr/local":
        assert discover(search=str(tmp_path / "bin")).binds == ()


@pytest.mark.parametrize(("answer", "code"), [("/no/such/place", 0), ("", 0), ("/", 3), ("Error: no", 1)])
def test_a_program_that_names_no_prefix_is_left_out(tmp_path: Path, answer: str, code: int) -> None:
    program(tmp_path, "node", answer, code=code)
    found = discover(search=str(tmp_path / "bin"))
    assert found.binds == ()


def test_nothing_on_path_is_no_error(tmp_path: Path) -> None:
    assert discover(search=str(tmp_path)).binds == ()


def test_answers_are_kept(prefix: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"
    first = discover(search=str(prefix / "bin"), cache=cache)
    assert discover(search=str(prefix / "bin"), cache=cache) == first
    assert asked(prefix, "python3") == 1
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("cache.json.")]


def test_a_changed_program_is_asked_anew(prefix: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"
    first = discover(search=str(prefix / "bin"), cache=cache)
    os.utime(prefix / "bin/python3", (1, 1))
    second = discover(search=str(prefix / "bin"), cache=cache)
    assert asked(prefix, "python3") == 2
    assert second.id != first.id
    program(prefix, "node", str(prefix))
    assert discover(search=str(prefix / "bin"), cache=cache).id not in (first.id, second.id)


def test_a_prefix_that_went_away_is_asked_anew(prefix: Path, tmp_path: Path) -> None:
    cache, other = tmp_path / "cache.json", tmp_path / "other"
    other.mkdir()
    program(prefix, "node", str(other))
    stamp = (prefix / "bin/node").stat().st_mtime_ns
    assert "/opt/toolchain/node" in targets(discover(search=str(prefix / "bin"), cache=cache))
    other.rmdir()
    os.utime(prefix / "bin/node", ns=(stamp, stamp))
    assert "/opt/toolchain/node" not in targets(discover(search=str(prefix / "bin"), cache=cache))
    assert asked(prefix, "node") == 2


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"text"', '{"key": 1}', '{"prefixes": []}', "\xff"])
def test_a_damaged_cache_is_no_cache(prefix: Path, tmp_path: Path, content: str) -> None:
    cache = tmp_path / "cache.json"
    cache.write_bytes(content.encode("latin-1"))
    found = discover(search=str(prefix / "bin"), cache=cache)
    assert "/opt/toolchain/python3" in targets(found)
    assert json.loads(cache.read_text())["prefixes"]["python3"] == str(prefix)


def test_a_cache_that_cannot_be_written_is_done_without(prefix: Path, tmp_path: Path) -> None:
    found = discover(search=str(prefix / "bin"), cache=tmp_path / "missing" / "cache.json")
    assert "/opt/toolchain/python3" in targets(found)


def test_extra_directories_come_first(prefix: Path, tmp_path: Path) -> None:
    with_bin, flat = tmp_path / "tool", tmp_path / "flat"
    (with_bin / "bin").mkdir(parents=True)
    flat.mkdir()
    plain = discover(search=str(prefix / "bin"))
    found = discover(search=str(prefix / "bin"), extra=[str(with_bin), str(flat)])
    assert targets(found)["/opt/toolchain/extra-0"] == with_bin
    assert targets(found)["/opt/toolchain/extra-1"] == flat
    assert set(found.path[:2]) == {"/opt/toolchain/extra-0/bin", "/opt/toolchain/extra-1"}
    assert found.id != plain.id


def test_a_missing_extra_directory_is_named(prefix: Path) -> None:
    with pytest.raises(ConfigError, match="'/no/such/tool'") as caught:
        discover(search=str(prefix / "bin"), extra=["/no/such/tool"])
    assert "sandbox.toolchain" in caught.value.hint
