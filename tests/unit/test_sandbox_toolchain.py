"""The host programs that a sandbox may use: found by asking them, visible at their own paths, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from chargehand.core.errors import ConfigError
from chargehand.sandbox.toolchain import Toolchain, discover

ELF = b"\x7fELF" + bytes(60)


def program(prefix: Path, name: str, answer: str, *, code: int = 0) -> Path:
    """Make a stand-in that answers with one line and counts how often it is called."""
    path = prefix / "bin" / name
    script(path, f"echo x >> {prefix}/asked-{name}\necho '{answer}'\nexit {code}\n")
    return path


def script(path: Path, text: str = "exit 0\n", *, first: str = "#!/bin/sh") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{first}\n{text}")
    path.chmod(0o755)
    return path


def binary(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(ELF)
    path.chmod(0o755)
    return path


def link(path: Path, target: Path | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


def asked(prefix: Path, name: str) -> int:
    path = prefix / f"asked-{name}"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home" / "ada"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id_ed25519").write_text("secret")
    (home / ".netrc").write_text("secret")
    return home


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    prefix = tmp_path / "opt" / "python-9.9"
    program(prefix, "python3", str(prefix))
    return prefix


def found_at(
    home: Path, *directories: Path, environ: Mapping[str, str] | None = None, **options: object
) -> Toolchain:
    cache = options.get("cache")
    assert cache is None or isinstance(cache, Path)
    search = ":".join(map(str, directories))
    return discover(search=search, environ={"HOME": str(home), **(environ or {})}, cache=cache)


def sources(toolchain: Toolchain) -> dict[str, str]:
    """Return the visible files that a test made, by path inside."""
    shown = {bind.target: str(bind.source) for bind in toolchain.binds if not bind.target.startswith("/etc/")}
    return {target: source for target, source in shown.items() if not source.endswith("/no_packages")}


def names(toolchain: Toolchain) -> dict[str, str]:
    """Return the links by name."""
    return {os.path.basename(path): target for path, target in toolchain.links}


class TestInterpreters:
    """Prefixes that an interpreter names are visible at their own paths."""

    def test_a_prefix_is_mounted_read_only_at_the_same_path(self, home: Path, prefix: Path) -> None:
        found = found_at(home, prefix / "bin")
        assert sources(found) == {str(prefix): str(prefix)}
        assert found.path[0] == f"{prefix}/bin"
        assert "/usr/bin" in found.path
        assert not any(bind.writable for bind in found.binds)
        assert found.find("python3") == found.find(f"{prefix}/bin/python3") == f"{prefix}/bin/python3"
        assert found.find("no-such-program") is None
        assert found.find(f"{home}/.netrc") is None

    def test_a_prefix_reached_by_a_link_is_shown_at_both_paths(self, home: Path, prefix: Path) -> None:
        current = link(prefix.parent / "current", prefix)
        program(prefix, "python3", str(current))
        found = found_at(home, current / "bin")
        assert sources(found) == {str(prefix): str(prefix), str(current): str(prefix)}
        assert found.path[0] == f"{current}/bin"

    def test_the_order_of_path_is_kept(self, home: Path, prefix: Path) -> None:
        first = found_at(home, Path("/usr/bin"), prefix / "bin").path
        assert first.index("/usr/bin") < first.index(f"{prefix}/bin")
        first = found_at(home, prefix / "bin", Path("/usr/bin")).path
        assert first.index(f"{prefix}/bin") < first.index("/usr/bin")

    def test_programs_below_usr_need_no_mount(self, home: Path, tmp_path: Path) -> None:
        program(tmp_path, "python3", "/usr")
        assert "/usr" not in sources(found_at(home, tmp_path / "bin"))
        assert sources(found_at(home, Path("/usr/bin"), Path("/bin"))) == {}

    @pytest.mark.parametrize(("answer", "code"), [("/no/such", 0), ("", 0), ("/", 3), ("Error: no", 1), ("..", 0)])
    def test_a_program_that_names_no_prefix_is_left_out(
        self, home: Path, tmp_path: Path, answer: str, code: int
    ) -> None:
        program(tmp_path, "node", answer, code=code)
        found = found_at(home, tmp_path / "bin")
        assert sources(found) == {}
        assert found.find("node") in (None, shutil.which("node", path="/usr/local/bin:/usr/bin"))

    def test_an_empty_or_missing_path_is_not_an_error(self, home: Path, tmp_path: Path) -> None:
        found = discover(search=f"{tmp_path}:relative::{tmp_path}/none", environ={"HOME": str(home)})
        assert sources(found) == {}
        assert found.path[0] == "/usr/local/bin"

    def test_pyenv_shims_are_resolved_to_the_selected_versions(self, home: Path) -> None:
        versions = home / ".pyenv/versions"
        for version in ("3.11.7", "3.12.1"):
            script(versions / version / "bin/python3")
            script(versions / version / "bin/pytest", first=f"#!{versions}/{version}/bin/python3")
        shims = home / ".pyenv/shims"
        script(shims / "python3", f"# pyenv\necho {versions}/3.11.7\n")
        script(shims / "python3.12", f"# pyenv\necho {versions}/3.12.1\n")
        script(shims / "python3.13", "# pyenv\nexit 127\n")
        script(shims / "pytest", "# pyenv\nexit 127\n")
        found = found_at(home, shims)
        assert set(sources(found)) == {f"{versions}/3.11.7", f"{versions}/3.12.1"}
        assert found.path[:2] == (f"{versions}/3.11.7/bin", f"{versions}/3.12.1/bin")
        assert found.find("pytest") == f"{versions}/3.11.7/bin/pytest"
        assert not found.not_shown

    def test_a_virtual_environment_comes_with_its_base(self, home: Path) -> None:
        base, venv = home / "pythons/cpython-3.12", home / "work/.venv"
        binary(base / "bin/python3.12")
        link(venv / "bin/python3", base / "bin/python3.12")
        (venv / "pyvenv.cfg").write_text(f"home = {base}/bin\nversion = 3.12.1\n")
        found = found_at(home, venv / "bin")
        assert set(sources(found)) == {str(venv), str(base)}
        assert found.path[0] == f"{venv}/bin"

    def test_an_interpreter_among_other_things_is_shown_in_parts(self, home: Path) -> None:
        local = home / ".local"
        program(local, "node", str(local))
        (local / "lib/node_modules/npm/bin").mkdir(parents=True)
        script(local / "lib/node_modules/npm/bin/npm-cli.js", first="#!/usr/bin/env node")
        link(local / "bin/npm", "../lib/node_modules/npm/bin/npm-cli.js")
        (local / "share/keyrings").mkdir(parents=True)
        found = found_at(home, local / "bin")
        assert set(sources(found)) == {f"{local}/bin/node", f"{local}/lib/node_modules"}
        assert set(names(found)) == {"node", "npm"}

    def test_java_home_is_read_from_java(self, home: Path) -> None:
        jdk = home / ".sdkman/candidates/java/21"
        script(jdk / "bin/java", f"echo '    java.home = {jdk}' >&2\n")
        script(jdk / "bin/javac")
        found = found_at(home, jdk / "bin")
        assert dict(found.environment) == {"JAVA_HOME": str(jdk)}
        assert set(sources(found)) == {str(jdk)}

    def test_rustup_proxies_are_replaced_by_the_selected_toolchain(self, home: Path) -> None:
        sysroot = home / ".rustup/toolchains/stable"
        for name in ("rustc", "cargo"):
            binary(sysroot / "bin" / name)
        cargo = home / ".cargo/bin"
        script(cargo / "rustup", f"echo {sysroot}\n")
        for name in ("rustc", "cargo"):
            os.link(cargo / "rustup", cargo / name)
        link(cargo / "rustfmt", "rustup")
        binary(cargo / "just")
        (home / ".cargo/credentials.toml").write_text("secret")
        found = found_at(home, cargo)
        assert set(sources(found)) == {str(sysroot), f"{cargo}/just"}
        assert set(names(found)) == {"just"}
        assert found.find("cargo") == f"{sysroot}/bin/cargo"


class TestPrograms:
    """A program in a directory with others is linked, with its dependencies only."""

    def test_packages_of_node_in_an_odd_place(self, home: Path) -> None:
        packages = home / ".npm-global/lib/node_modules"
        script(packages / "agent/cli.js", first="#!/usr/bin/env node")
        link(home / ".npm-global/bin/agent", "../lib/node_modules/agent/cli.js")
        link(home / ".local/bin/agent2", home / ".npm-global/bin/agent")
        found = found_at(home, home / ".npm-global/bin", home / ".local/bin")
        assert sources(found) == {str(packages): str(packages)}
        assert set(names(found).values()) == {f"{packages}/agent/cli.js"}
        assert found.find("agent2") == f"{packages}/agent/cli.js"

    def test_tool_environments(self, home: Path) -> None:
        tool, base = home / ".local/share/uv/tools/ruff", home / ".local/share/uv/python/cpython-3.12"
        binary(base / "bin/python3.12")
        link(tool / "bin/python", base / "bin/python3.12")
        (tool / "pyvenv.cfg").write_text(f"home = {base}/bin\n")
        script(tool / "bin/ruff", first=f"#!{tool}/bin/python")
        link(home / ".local/bin/ruff", tool / "bin/ruff")
        link(home / ".local/bin/python3.12", base / "bin/python3.12")
        found = found_at(home, home / ".local/bin")
        assert {str(tool), str(base)} <= set(sources(found))
        assert names(found)["ruff"] == f"{tool}/bin/ruff"
        assert found.find("python3.12") == f"{base}/bin/python3.12"

    def test_volta(self, home: Path) -> None:
        image = home / ".volta/tools/image"
        binary(home / ".volta/bin/volta-shim")
        script(image / "packages/@acme/agent/lib/node_modules/agent/cli.js", first="#!/usr/bin/env node")
        link(image / "packages/@acme/agent/bin/agent", "../lib/node_modules/agent/cli.js")
        for name in ("agent", "gone"):
            link(home / ".volta/bin" / name, "volta-shim")
        found = found_at(home, home / ".volta/bin")
        assert set(names(found)) == {"agent"}
        assert set(sources(found)) == {f"{image}/packages/@acme/agent/lib/node_modules"}

    def test_wrappers_of_pnpm(self, home: Path) -> None:
        pnpm = home / ".local/share/pnpm"
        script(pnpm / "global/5/node_modules/agent/cli.js", first="#!/usr/bin/env node")
        wrapper = script(pnpm / "agent", 'exec node  "$basedir/global/5/node_modules/agent/cli.js" "$@"\n')
        found = found_at(home, pnpm)
        assert set(sources(found)) == {str(wrapper), f"{pnpm}/global/5/node_modules"}

    def test_a_distribution_is_shown_whole(self, home: Path) -> None:
        maven = home / "tools/maven"
        script(maven / "bin/mvn")
        (maven / "boot").mkdir()
        (maven / "boot/plexus-classworlds-2.6.jar").touch()
        link(home / "bin/mvn", maven / "bin/mvn")
        assert set(sources(found_at(home, home / "bin"))) == {str(maven)}
        assert set(sources(found_at(home, maven / "bin"))) == {str(maven)}

    def test_personal_scripts_are_hidden_and_reported(self, home: Path) -> None:
        script(home / "bin/deploy", "curl -H 'token: secret'\n")
        script(home / "bin/black", first="#!/usr/bin/python3")
        binary(home / "bin/jq")
        found = found_at(home, home / "bin")
        assert set(sources(found)) == {f"{home}/bin/jq"}
        told = {names: problem for each in found.not_shown for names, problem in [(each.names, each.problem)]}
        assert "sandbox.toolchain" in told["deploy",]
        assert "pipx" in told["black",]

    @pytest.mark.parametrize("broad", ["home", "marked", "shared"])
    def test_a_directory_that_holds_more_is_never_shown(self, home: Path, tmp_path: Path, broad: str) -> None:
        prefix = {"home": home, "marked": tmp_path / "all", "shared": tmp_path / "home"}[broad]
        program(prefix, "go", str(prefix))
        (tmp_path / "all/.aws").mkdir(parents=True, exist_ok=True)
        found = found_at(home, prefix / "bin")
        assert sources(found) == {}
        assert [each.names for each in found.not_shown if "more than the program" in each.problem] == [("go",)]

    def test_a_place_that_the_sandbox_has_itself(self, home: Path) -> None:
        program(home, "node", "/proc/self")
        [problem] = [each.problem for each in found_at(home, home / "bin").not_shown if each.names == ("node",)][
            :1
        ]
        assert "the sandbox has its own /proc" in problem


class TestCache:
    """Answers are cached until one of their sources changes."""

    def test_answers_are_kept(self, home: Path, prefix: Path, tmp_path: Path) -> None:
        cache = tmp_path / "cache.json"
        first = found_at(home, prefix / "bin", cache=cache)
        assert found_at(home, prefix / "bin", cache=cache) == first
        assert asked(prefix, "python3") == 1
        assert not [path for path in tmp_path.iterdir() if path.name.startswith("cache.json.")]

    def test_a_changed_program_is_probed_again(self, home: Path, prefix: Path, tmp_path: Path) -> None:
        cache = tmp_path / "cache.json"
        first = found_at(home, prefix / "bin", cache=cache)
        os.utime(prefix / "bin/python3", (1, 1))
        second = found_at(home, prefix / "bin", cache=cache)
        assert asked(prefix, "python3") == 2
        assert second.id != first.id
        program(prefix, "node", str(prefix))
        assert found_at(home, prefix / "bin", cache=cache).id not in (first.id, second.id)

    def test_another_selection_of_a_version_manager_is_asked_for(self, home: Path, tmp_path: Path) -> None:
        cache, pyenv = tmp_path / "cache.json", home / ".pyenv"
        for version in ("1", "2"):
            script(pyenv / "versions" / version / "bin/python3")
        script(pyenv / "shims/python3", f"# pyenv\necho {pyenv}/versions/$(read v < {pyenv}/version; echo $v)\n")
        seen = []
        for version in ("1", "2"):
            (pyenv / "version").write_text(f"{version}\n")
            os.utime(pyenv / "version", (int(version), int(version)))
            seen.append(found_at(home, pyenv / "shims", cache=cache))
        assert [one.find("python3") for one in seen] == [f"{pyenv}/versions/{v}/bin/python3" for v in ("1", "2")]
        assert seen[0].id != seen[1].id

    @pytest.mark.parametrize("place", ["lib/python3.9/site-packages/new", "bin/new", "lib/node_modules/new"])
    def test_another_package_is_another_toolchain(self, home: Path, prefix: Path, place: str) -> None:
        (prefix / place).parent.mkdir(parents=True, exist_ok=True)
        os.utime((prefix / place).parent, (1, 1))
        before = found_at(home, prefix / "bin").id
        assert found_at(home, prefix / "bin").id == before
        (prefix / place).touch()
        assert found_at(home, prefix / "bin").id != before

    def test_a_linked_program_that_changes_is_another_toolchain(self, home: Path) -> None:
        tool = binary(home / "go/bin/lint")
        before = found_at(home, home / "go/bin").id
        tool.write_bytes(ELF * 2)
        assert found_at(home, home / "go/bin").id != before

    def test_a_program_is_probed_again_if_its_prefix_was_removed(
        self, home: Path, prefix: Path, tmp_path: Path
    ) -> None:
        cache, other = tmp_path / "cache.json", tmp_path / "other"
        other.mkdir()
        program(prefix, "node", str(other))
        assert str(other) in sources(found_at(home, prefix / "bin", cache=cache))
        other.rmdir()
        assert str(other) not in sources(found_at(home, prefix / "bin", cache=cache))
        assert asked(prefix, "node") == 2

    @pytest.mark.parametrize("content", ["", "{", "[]", "null", '"text"', '{"key": 1}', '{"answers": []}', "\xff"])
    def test_a_damaged_cache_is_no_cache(self, home: Path, prefix: Path, tmp_path: Path, content: str) -> None:
        cache = tmp_path / "cache.json"
        cache.write_bytes(content.encode("latin-1"))
        assert str(prefix) in sources(found_at(home, prefix / "bin", cache=cache))
        assert json.loads(cache.read_text())["answers"][f"{prefix}/bin/python3"] == [str(prefix)]

    def test_a_cache_that_cannot_be_written_is_done_without(
        self, home: Path, prefix: Path, tmp_path: Path
    ) -> None:
        assert str(prefix) in sources(found_at(home, prefix / "bin", cache=tmp_path / "missing/cache.json"))


def test_extra_directories_come_first(home: Path, prefix: Path, tmp_path: Path) -> None:
    with_bin, flat = tmp_path / "tool", tmp_path / "flat"
    (with_bin / "bin").mkdir(parents=True)
    flat.mkdir()
    search, environ = str(prefix / "bin"), {"HOME": str(home)}
    plain = discover(search=search, environ=environ)
    found = discover(search=search, environ=environ, extra=[str(with_bin), str(flat)])
    assert sources(found)[str(with_bin)] == str(with_bin)
    assert sources(found)[str(flat)] == str(flat)
    assert set(found.path[:2]) == {f"{with_bin}/bin", str(flat)}
    assert found.id != plain.id


@pytest.mark.parametrize("place", ["/", "/home", "/tmp", "/etc", "/run", "/opt", "HOME"])
def test_an_extra_directory_over_a_sandbox_path_is_mounted_elsewhere(home: Path, place: str) -> None:
    place = place.replace("HOME", str(home))
    found = discover(search="/usr/bin", environ={"HOME": str(home)}, extra=[place])
    assert sources(found)["/opt/toolchain/extra-0"] == os.path.realpath(place)
    assert place not in sources(found)
    assert found.path[0].startswith("/opt/toolchain/extra-0")


def test_a_missing_extra_directory_is_named(prefix: Path) -> None:
    with pytest.raises(ConfigError, match="'/no/such/tool'") as caught:
        discover(search=str(prefix / "bin"), extra=["/no/such/tool"])
    assert "sandbox.toolchain" in caught.value.hint
