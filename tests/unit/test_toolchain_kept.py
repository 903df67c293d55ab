"""A toolchain is searched once, and again after any change that could matter."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chargehand.sandbox.toolchain import Toolchain, discover, load_result, store_result

ELF = b"\x7fELF" + bytes(60)
LATER = 10.0
"""A search that begins this long after the last change sees settled files only."""


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def binary(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(ELF)
    path.chmod(0o755)


def host(place: Path) -> Path:
    """Make a host: an interpreter with a prefix, a directory of programs of several kinds, links that lead out."""
    script(place / "opt/python/bin/python3", f"echo {place}/opt/python")
    (place / "opt/python/lib/python3.11/site-packages").mkdir(parents=True)
    binary(place / "home/.local/bin/tool")
    binary(place / "opt/tool/main")
    (place / "home/.local/bin/linked").symlink_to(place / "opt/current/main")
    (place / "opt/current").symlink_to(place / "opt/tool")
    script(place / "venv/bin/python3", f"echo {place}/venv")
    (place / "venv/pyvenv.cfg").write_text(f"home = {place}/opt/python/bin\n")
    (place / "home/.local/bin/mypy").symlink_to(place / "venv/bin/mypy")
    script(place / "venv/bin/mypy", "exit 0")
    return place


def search(place: Path, *, fresh: bool = False) -> Toolchain:
    path = f"{place}/home/.local/bin:{place}/opt/python/bin:{place}/missing"
    cache = None if fresh else place / "toolchain.json"
    return discover(search=path, environ={"HOME": f"{place}/home"}, cache=cache)


def retarget(link: Path, target: Path) -> None:
    link.unlink()
    link.symlink_to(target)


def in_place(path: Path) -> None:
    """Change a file but keep its size and time stamp."""
    info = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def program_appears(place: Path) -> None:
    binary(place / "home/.local/bin/another")


def program_goes(place: Path) -> None:
    (place / "home/.local/bin/tool").unlink()


def program_is_shut(place: Path) -> None:
    (place / "home/.local/bin/tool").chmod(0o644)


def directory_appears(place: Path) -> None:
    binary(place / "missing/later")


def link_on_the_way(place: Path) -> None:
    shutil.copytree(place / "opt/tool", place / "opt/tool-2")
    retarget(place / "opt/current", place / "opt/tool-2")


def link_itself(place: Path) -> None:
    binary(place / "opt/other/main")
    retarget(place / "home/.local/bin/linked", place / "opt/other/main")


def environment_changes(place: Path) -> None:
    (place / "venv/pyvenv.cfg").write_text("home = /usr/bin\n")


def package_is_installed(place: Path) -> None:
    (place / "opt/python/lib/python3.11/site-packages/new").mkdir()


def interpreter_answers_otherwise(place: Path) -> None:
    (place / "opt/python-2/bin").mkdir(parents=True)
    script(place / "opt/python/bin/python3", f"echo {place}/opt/python-2")


def version_is_selected(place: Path) -> None:
    (place / "home/.pyenv").mkdir()
    (place / "home/.pyenv/version").write_text("3.12\n3.11\n")


def target_in_place(place: Path) -> None:
    in_place(place / "opt/tool/main")


CHANGES: list[Callable[[Path], None]] = [
    program_appears,
    program_goes,
    program_is_shut,
    directory_appears,
    link_on_the_way,
    link_itself,
    environment_changes,
    package_is_installed,
    interpreter_answers_otherwise,
    version_is_selected,
    target_in_place,
]


def found_file(place: Path) -> dict[str, object]:
    told: dict[str, object] = json.loads((place / "toolchain-found.json").read_text())
    return told


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A host for each change, searched once all of them have settled."""
    made = {change.__name__: host(tmp_path_factory.mktemp(change.__name__)) for change in CHANGES}
    time.sleep(2.2)
    for place in made.values():
        search(place)
    return made


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_no_change_is_missed(hosts: dict[str, Path], change: Callable[[Path], None]) -> None:
    place = hosts[change.__name__]
    told = found_file(place)
    before = search(place)
    assert found_file(place) == told, "nothing changed: it was taken as it was kept"
    assert before == search(place, fresh=True)
    change(place)
    assert load_result(place / "toolchain-found.json", str(told["key"])) is None
    after = search(place)
    assert after == search(place, fresh=True)


def test_another_question_is_another_answer(hosts: dict[str, Path]) -> None:
    place = host(hosts["program_appears"].parent / "another")
    ours = discover(search=f"{place}/opt/python/bin", environ={"HOME": f"{place}/home"}, cache=place / "t.json")
    more = discover(
        search=f"{place}/opt/python/bin",
        environ={"HOME": f"{place}/home"},
        cache=place / "t.json",
        extra=(str(place / "opt/tool"),),
    )
    assert more.path[0].startswith(str(place / "opt/tool"))
    assert ours.path != more.path


def test_a_result_of_recently_changed_files_is_not_cached(tmp_path: Path) -> None:
    """A second change within the same clock tick would leave every time stamp unchanged."""
    file = tmp_path / "file"
    file.write_text("x")
    place = tmp_path / "kept.json"
    store_result(place, "key", [str(file)], {"a": 1}, began=time.time())
    assert load_result(place, "key") is None
    store_result(place, "key", [str(file)], {"a": 1}, began=time.time() + LATER)
    assert load_result(place, "key") == {"a": 1}
    assert load_result(place, "other") is None
    for wrong in (b"", b"[]", b"{}", b'{"key": "key", "paths": [1], "digest": "", "found": {}}', b"\xff"):
        place.write_bytes(wrong)
        assert load_result(place, "key") is None
