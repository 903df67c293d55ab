"""Programs of a developer's machine, started inside a sandbox: this machine's own, and homes like real ones."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest
from command_line import Cli

from chargehand.core.ports import MountPlan, sandbox_ids
from chargehand.sandbox.contract import ExecResult, SandboxLimits, SandboxSpec
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.sandbox.toolchain import Toolchain, discover

pytestmark = pytest.mark.needs_bwrap
SECRET = "hunter2-of-the-host"
PYTHON = Path(os.path.realpath(sys.executable))
PREFIX = Path(os.path.realpath(sys.base_prefix))
VERSION = sysconfig.get_python_version()
SAYS = "import sys, json; print(json.dumps([sys.prefix, sys.base_prefix]))"


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [name for name in programs if not shutil.which(name)]
    return pytest.mark.skipif(bool(missing), reason=f"not on this machine: {', '.join(missing)}")


def inside(place: Path, toolchain: Toolchain, script: str) -> ExecResult:
    """Run a shell script in a sandbox with a toolchain; it must succeed."""

    async def run() -> ExecResult:
        plan = MountPlan(target="/workspace", plain=place)
        limits = SandboxLimits(memory_mb=4096, tmp_mb=256)
        async with ProcessTier(toolchain) as tier:
            sandbox = await tier.open(SandboxSpec(mounts=plan, limits=limits))
            try:
                return await sandbox.exec(["sh", "-ec", script], timeout=120)
            finally:
                await sandbox.close()

    place.mkdir(exist_ok=True)
    os.chown(place, *sandbox_ids())
    result = asyncio.run(run())
    assert result.exit_code == 0, (result.stdout, result.stderr)
    return result


class Host:
    """A person's home on this machine, with secrets in it that no sandbox may see."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home/ada"
        for name in (
            ".ssh/id_ed25519",
            ".netrc",
            ".npmrc",
            ".pypirc",
            ".cargo/credentials.toml",
            ".aws/credentials",
        ):
            self.file(name, SECRET)

    def file(self, name: str, text: str, *, mode: int = 0o644) -> Path:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def script(self, name: str, text: str) -> Path:
        return self.file(name, text, mode=0o755)

    def link(self, name: str, target: Path | str) -> Path:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
        return path

    def toolchain(self, *directories: str, environ: Mapping[str, str] | None = None) -> Toolchain:
        search = ":".join([*(str(self.home / name) for name in directories), "/usr/local/bin:/usr/bin:/bin"])
        # With the machine's packages: the tests are about programs that find theirs.
        return discover(search=search, environ={"HOME": str(self.home), **(environ or {})}, packages=("all",))

    def says(self, toolchain: Toolchain, script: str) -> list[str]:
        """Run a script inside, which also searches for the person's secrets; return its lines."""
        hunt = f"! grep -rsq {SECRET} {self.home} /home /opt"
        return inside(self.root / "work", toolchain, f"{hunt}\n{script}").stdout.decode().splitlines()

    def python(self, name: str) -> Path:
        """Put a whole interpreter into the home that finds its library next to it, as relocatable ones do."""
        prefix = self.home / name
        for part in (f"lib/python{VERSION}", "lib"):
            (prefix / part).mkdir(parents=True, exist_ok=True)
        skip = shutil.ignore_patterns("site-packages", "test", "idlelib", "__pycache__", "config-*", "tkinter")
        library = PREFIX / "lib" / f"python{VERSION}"
        shutil.copytree(
            library, prefix / "lib" / f"python{VERSION}", ignore=skip, dirs_exist_ok=True, copy_function=near
        )
        for shared in (PREFIX / "lib").glob("libpython*.so*"):
            near(str(shared), str(prefix / "lib" / shared.name))
        (prefix / "bin").mkdir()
        place, beside = str(PREFIX / "lib").encode(), b"$ORIGIN/../lib"
        code = PYTHON.read_bytes().replace(place + b"\0", beside.ljust(len(place), b"\0") + b"\0")
        (prefix / f"bin/python{VERSION}").write_bytes(code)
        (prefix / f"bin/python{VERSION}").chmod(0o755)
        for alias in ("python3", "python"):
            (prefix / "bin" / alias).symlink_to(f"python{VERSION}")
        (prefix / f"lib/python{VERSION}/site-packages").mkdir()
        return prefix


def near(source: str, target: str) -> str:
    """Copy by hard link if possible."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def package(site: Path, name: str) -> None:
    (site / f"{name}.py").write_text(f"import sys\ndef main():\n    print('{name}', sys.prefix)\n")


def console(directory: Path, name: str, interpreter: str) -> None:
    path = directory / name
    path.write_text(f"{interpreter}\nimport {name}\n{name}.main()\n")
    path.chmod(0o755)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


class TestPython:
    """Console scripts start, and find the packages of the interpreter that their first line names."""

    @pytest.mark.skipif(sys.base_prefix == "/usr", reason="a system's Python looks for packages in its own place")
    def test_pyenv(self, host: Host) -> None:
        versions = [host.python(".pyenv/versions/one"), host.python(".pyenv/versions/two")]
        for prefix in versions:
            package(prefix / f"lib/python{VERSION}/site-packages", "greet")
            console(prefix / "bin", "greet", f"#!{prefix}/bin/python3")
        manager = f"#!/bin/bash\n# pyenv\nprogram=${{0##*/}}\nread version < {host.home}/.pyenv/version\n"
        for shim in ("python", "python3", "greet"):
            host.script(
                f".pyenv/shims/{shim}", f'{manager}exec "{host.home}/.pyenv/versions/$version/bin/$program" "$@"\n'
            )
        host.file(".pyenv/version", "one\n")
        first = host.toolchain(".pyenv/shims")
        assert host.says(first, "greet; python3 -c 'import greet; greet.main()'") == [f"greet {versions[0]}"] * 2
        host.file(".pyenv/version", "two\n")
        second = host.toolchain(".pyenv/shims")
        assert host.says(second, "greet; python -m greet") == [f"greet {versions[1]}"]
        assert first.id != second.id

    def test_an_active_virtual_environment_of_a_hidden_interpreter(self, host: Host) -> None:
        base = host.python(".local/share/uv/python/cpython-3.99.1")
        spelled = host.link(".local/share/uv/python/cpython-3.99", "cpython-3.99.1")
        environment = host.home / "work/a long project name/.venv"
        host.file("work/a long project name/secrets.env", SECRET)
        subprocess.run([spelled / "bin/python3", "-m", "venv", "--without-pip", environment], check=True)
        site = environment / f"lib/python{VERSION}/site-packages"
        package(site, "greet")
        host.file(
            "work/a long project name/.venv/pip.conf", f"[global]\nindex-url = https://u:{SECRET}@example.org\n"
        )
        trick = f"#!/bin/sh\n'''exec' '{environment}/bin/python' \"$0\" \"$@\"\n' '''"
        console(environment / "bin", "greet", trick)
        found = host.toolchain("work/a long project name/.venv/bin", ".local/bin")
        assert str(base) in {str(bind.source) for bind in found.binds}
        result = host.says(found, f"greet; python3 -c '{SAYS}'; ls -A '{environment.parent}'")
        assert result[0] == f"greet {environment}"
        assert result[1].startswith(f'["{environment}", ')
        assert result[2:] == [".venv"]

    def test_tool_environments_of_two_interpreters(self, host: Host) -> None:
        for tool, python in (("greet", "cpython-a"), ("shout", "cpython-b")):
            base = host.python(f".local/share/uv/python/{python}")
            place = host.home / ".local/share/uv/tools" / tool
            subprocess.run([base / "bin/python3", "-m", "venv", "--without-pip", place], check=True)
            package(place / f"lib/python{VERSION}/site-packages", tool)
            console(place / "bin", tool, f"#!{place}/bin/python")
            (place / "uv-receipt.toml").write_text(f"index = 'https://{SECRET}@example.org'\n")
            host.link(f".local/bin/{tool}", place / "bin" / tool)
        host.script(".local/bin/mine", f"#!/bin/sh\necho {SECRET}\n")
        found = host.toolchain(".local/bin")
        tools = host.home / ".local/share/uv/tools"
        result = host.says(found, f"greet; shout; ! command -v mine; ls -A {host.home}")
        assert result == [f"greet {tools}/greet", f"shout {tools}/shout", ".local"]
        assert [each.names for each in found.not_shown] == [("mine",)]

    def test_an_environment_that_a_person_lists(self, host: Host) -> None:
        """Its scripts name the path at which it was made; it keeps its packages, even if it is also active."""
        base = host.python(".local/share/uv/python/cpython-own")
        environment, other = host.home / "tools/env", host.home / "odd"
        subprocess.run([base / "bin/python3", "-m", "venv", "--without-pip", environment], check=True)
        package(environment / f"lib/python{VERSION}/site-packages", "greet")
        console(environment / "bin", "greet", f"#!{environment}/bin/python")
        host.script("odd/bin/mine", f"#!/bin/sh\n. {other}/lib.sh\n")
        host.file("odd/lib.sh", "echo mine\n")
        for search in ("/usr/bin:/bin", f"{environment}/bin:/usr/bin:/bin"):
            listed = [str(host.link(f"link-{len(search)}", environment)), str(other)]
            found = discover(search=search, environ={"HOME": str(host.home)}, extra=listed)
            result = host.says(found, "greet; mine; ls -A /opt/toolchain 2>/dev/null || :")
            assert result[:2] == [f"greet {environment}", "mine"]
            assert not [line for line in result if line.startswith("extra")]

    def test_the_python_of_the_machine_creates_a_virtual_environment(self, tmp_path: Path) -> None:
        found = discover(search=os.environ["PATH"])
        script = "python3 -m venv --without-pip .venv && .venv/bin/python -c 'import sys; print(sys.prefix)'"
        assert inside(tmp_path / "work", found, script).stdout.decode().splitlines()[0] == "/workspace/.venv"

    def test_console_scripts_of_this_machine(self, tmp_path: Path) -> None:
        """The environment that runs these tests has pytest."""
        found = discover(search=f"{Path(sys.executable).parent}:/usr/bin:/bin", packages=("all",))
        (tmp_path / "work").mkdir()
        (tmp_path / "work/test_one.py").write_text("def test_one() -> None:\n    assert True\n")
        assert b"1 passed" in inside(tmp_path / "work", found, "pytest -p no:cacheprovider test_one.py").stdout


@needs("node", "npm")
class TestNode:
    """Node from any prefix, and what npm installed with it."""

    @pytest.fixture
    def prefix(self, host: Host) -> Path:
        """Install this machine's node in the layout of version managers."""
        prefix = host.home / ".nvm/versions/node/v99.0.0"
        (prefix / "bin").mkdir(parents=True)
        near(os.path.realpath(shutil.which("node") or ""), str(prefix / "bin/node"))
        npm = Path(os.path.realpath(shutil.which("npm") or "")).parent.parent
        shutil.copytree(npm, prefix / "lib/node_modules/npm", symlinks=True, copy_function=near)
        for name in ("npm", "npx"):
            (prefix / "bin" / name).symlink_to(f"../lib/node_modules/npm/bin/{name}-cli.js")
        return prefix

    def install(self, host: Host, prefix: Path, place: Path | None = None) -> None:
        """Install an agent globally, by npm itself."""
        source = host.root / "agent"
        (source / "lib").mkdir(parents=True)
        (source / "package.json").write_text('{"name": "agent", "version": "7.8.9", "bin": {"agent": "cli.js"}}')
        (source / "cli.js").write_text(
            "#!/usr/bin/env node\nconsole.log('agent', require('./package.json').version, process.execPath);\n"
        )
        environ = {"PATH": f"{prefix}/bin:/usr/bin:/bin", "HOME": str(host.root)}
        packed = subprocess.run(
            ["npm", "pack", source], env=environ, cwd=host.root, check=True, capture_output=True, text=True
        ).stdout.split()[-1]
        words = [
            "npm",
            "install",
            "--global",
            "--offline",
            "--no-audit",
            "--no-fund",
            *(("--prefix", place) if place else ()),
        ]
        subprocess.run([*words, host.root / packed], env=environ, check=True, capture_output=True)

    def test_nvm(self, host: Host, prefix: Path) -> None:
        (prefix / "etc").mkdir()
        (prefix / "etc/npmrc").write_text(f"//registry.example.org/:_authToken={SECRET}\n")
        self.install(host, prefix)
        found = host.toolchain(".nvm/versions/node/v99.0.0/bin")
        script = "agent; npm config get cache; npx --version >/dev/null; npm init -y >/dev/null"
        result = host.says(found, f"{script}; npm pkg set scripts.test='node -p 6*7'; npm test --silent")
        assert result == [f"agent 7.8.9 {prefix}/bin/node", "/home/agent/.npm", "42"]

    def test_the_toolchain_is_the_same_for_each_fnm_shell_path(self, host: Host, prefix: Path) -> None:
        ids = set()
        for shell in ("100_1", "200_2"):
            host.link(f"run/fnm_multishells/{shell}", prefix)
            ids.add(host.toolchain(f"run/fnm_multishells/{shell}/bin").id)
        assert len(ids) == 1
        assert host.says(host.toolchain("run/fnm_multishells/100_1/bin"), "node -p process.execPath") == [
            f"{prefix}/bin/node"
        ]

    def test_an_agent_in_an_odd_place(self, host: Host, prefix: Path) -> None:
        odd = host.home / ".npm-global"
        self.install(host, prefix, odd)
        (odd / "etc").mkdir()
        (odd / "etc/npmrc").write_text(SECRET)
        host.link(".local/bin/agent", "../../.npm-global/bin/agent")
        found = host.toolchain(".local/bin", ".nvm/versions/node/v99.0.0/bin")
        assert host.says(found, "agent") == [f"agent 7.8.9 {prefix}/bin/node"]
        (odd / "lib/node_modules/other").mkdir()
        assert host.toolchain(".local/bin", ".nvm/versions/node/v99.0.0/bin").id != found.id

    def test_volta(self, host: Host, prefix: Path) -> None:
        image = host.home / ".volta/tools/image"
        shutil.copytree(prefix, image / "node/99.0.0", symlinks=True, copy_function=near)
        self.install(host, prefix, image / "packages/agent")
        shim = host.script(".volta/bin/volta-shim", f'#!/bin/sh\nexec {image}/node/99.0.0/bin/"${{0##*/}}" "$@"\n')
        for name in ("node", "npm", "agent"):
            host.link(f".volta/bin/{name}", shim.name)
        found = host.toolchain(".volta/bin")
        assert host.says(found, "agent; npm --version >/dev/null") == [f"agent 7.8.9 {image}/node/99.0.0/bin/node"]


@needs("rustc", "cargo")
def test_rustup(host: Host) -> None:
    sysroot = subprocess.run(
        ["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True
    ).stdout.strip()
    toolchain = host.link(".rustup/toolchains/stable-host", sysroot)
    proxy = f'#!/bin/sh\nexec {toolchain}/bin/"${{0##*/}}" "$@"\n'
    rustup = host.script(".cargo/bin/rustup", proxy)
    for name in ("cargo", "rustc", "rustfmt"):
        os.link(rustup, host.home / ".cargo/bin" / name)
    found = host.toolchain(".cargo/bin")
    script = (
        "cargo init -q --vcs none --name hello && cargo run -q --offline; echo $CARGO_HOME; ! command -v rustup"
    )
    assert host.says(found, script) == ["Hello, world!", "/home/agent/.cargo"]


def test_go_and_its_installed_tools(host: Host) -> None:
    """Use this machine's compiler if it has one, else a small fake; both are queried and mounted alike."""
    go = shutil.which("go")
    if go is None:
        root = host.home / "sdk/go1.99"
        host.script(
            "sdk/go1.99/bin/go",
            f'#!/bin/sh\ncase "$1" in env) echo {root};; version) echo go version go1.99;; esac\n',
        )
        found = host.toolchain("sdk/go1.99/bin")
    else:
        found = discover(search=os.environ["PATH"])
    result = host.says(found, "go version; echo $GOPATH $GOTOOLCHAIN")
    assert result[0].startswith("go version go1.")
    assert result[1] == "/home/agent/go local"
    (host.home / "go/bin").mkdir(parents=True)
    shutil.copy2("/usr/bin/true", host.home / "go/bin/lint")
    assert host.says(host.toolchain("go/bin"), "lint; command -v lint")[0].startswith("/opt/toolchain/bin-")


@needs("javac", "java")
def test_java_from_a_prefix(host: Host) -> None:
    system = Path(os.path.realpath(shutil.which("javac") or "")).parent.parent
    jdk = host.home / ".sdkman/candidates/java/99"
    shutil.copytree(
        system, jdk, symlinks=True, ignore=shutil.ignore_patterns("src.zip", "*.debuginfo", "docs", "jmods")
    )
    host.link(".sdkman/candidates/java/current", "99")
    found = host.toolchain(".sdkman/candidates/java/current/bin")
    (host.root / "work").mkdir()
    (host.root / "work/A.java").write_text(
        "public class A { public static void main(String[] a) throws Exception {"
        ' System.out.println(System.getProperty("java.home") + " " + System.getProperty("user.home")); '
        ' java.security.MessageDigest.getInstance("SHA-256"); } }\n'
    )
    result = host.says(found, "javac A.java && java A; echo $JAVA_HOME")
    assert result == [f"{jdk} /home/agent", str(jdk)]


@needs("mvn", "java")
def test_maven_from_an_odd_place(host: Host) -> None:
    system = Path(os.path.realpath(shutil.which("mvn") or "")).parent.parent
    (host.home / "tools").mkdir()
    subprocess.run(["cp", "-rL", system, host.home / "tools/maven"], check=True)
    host.file("tools/maven/conf/settings.xml", f"<settings><!-- {SECRET} --></settings>")
    host.link("bin/mvn", host.home / "tools/maven/bin/mvn")
    result = host.says(host.toolchain("bin"), "mvn --version")
    assert f"Maven home: {host.home}/tools/maven" in result[1:3]


@needs("gcc", "make", "cmake")
def test_compilers_of_the_system(host: Host) -> None:
    work = host.root / "work"
    work.mkdir()
    (work / "hello.c").write_text('#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n')
    (work / "Makefile").write_text("hello: hello.c\n\t$(CC) -o $@ $<\n")
    (work / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.10)\nproject(h C)\nadd_executable(other hello.c)\n"
    )
    script = (
        "make -s hello && ./hello; cmake -S . -B build >/dev/null && cmake --build build >/dev/null && build/other"
    )
    assert host.says(host.toolchain(), script) == ["hello", "hello"]


def test_the_doctor_reports_each_tool(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.script("bin/deploy", f"#!/bin/sh\necho {SECRET}\n")
    prefix = host.python("broken")
    (prefix / "bin/pip").write_text("#!/no/such/python\n")
    (prefix / "bin/pip").chmod(0o755)
    path = f"{host.home}/broken/bin:{host.home}/bin:/usr/local/bin:/usr/bin:/bin"
    cli = Cli(tmp_path / "person", PATH=path)
    result = subprocess.run(cli.argv("doctor"), env=cli.environ, capture_output=True, text=True, check=True).stdout
    assert f"pip ({prefix}/bin/pip) does not start inside" in result
    assert f"not in sandboxes: deploy in {host.home}/bin: a script of your own" in result
    rows = {words[0]: words[1:] for line in result.splitlines() if (words := line.split())}
    version = ".".join(map(str, sys.version_info[:3]))
    assert rows["python3"] == [version, f"{prefix}/bin/python3", *["shown", "at", "its", "own", "path"]]
    assert rows["git"][-3:] == ["of", "the", "system"]
