"""Ways to make checks pass without good code, by ecosystem: each needs a person; similar honest changes do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from tests.unit._inspecting import findings

PYTEST, NPM, MAKE = "python -m pytest -q", "npm test", "make test"
PYPROJECT = (
    "[project]\nname = 'calc'\nversion = '1'\ndependencies = ['attrs>=1']\n"
    "[project.entry-points.calc]\nx = 'calc:y'\n"
    "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'backend'\nbackend-path = ['_build']\n"
    "[tool.pytest.ini_options]\naddopts = '-p plugins.slow'\npythonpath = ['backend']\n"
)
PYTHON = {
    "pyproject.toml": PYPROJECT,
    "src/calc/__init__.py": "def add(a, b):\n    return a - b\n",
    "tests/test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n",
    "README.md": "calc\n",
    "tox.ini": "[testenv]\ncommands = sh ci/tests.sh\n",
    "ci/tests.sh": "python -m pytest\n",
    "conftest.py": "pytest_plugins = ['plugins.extra']\n",
}
NODE = {
    "package.json": (
        '{"name": "calc", "version": "1.0.0", "type": "module", "dependencies": {"x": "^1.0.0"},'
        ' "scripts": {"pretest": "node tools/prepare.mjs", "test": "npm run test:unit",'
        ' "test:unit": "sh bin/unit",'
        ' "docs": "node tools/docs.mjs"}, "jest": {"setupFiles": ["<rootDir>/support/begin.js"]}}'
    ),
    "bin/unit": '#!/bin/sh\nset -e\n. "$(dirname "$0")/../tools/env"\nnode --test\n',
    "tools/prepare.mjs": "import { load } from './loading.mjs';\nload();\n",
    "tools/loading.mjs": "export const load = () => {};\n",
    "tools/docs.mjs": "",
    "tools/env": "FLAG=1\n",
    "index.js": "export const add = (a, b) => a - b;\n",
    "index.test.js": "import test from 'node:test';\n",
}
MAKEFILE = (
    "PY ?= python\nUNUSED = 1\nVERSION := 1.0\n\nall: build\n"
    "\ntest: lint\n\t$(PY) -m pytest\n\tsh tools/check.sh\n"
    "\nlint:\n\truff check\n\nbuild:\n\techo $(VERSION)\n\n.PHONY: lint build all\n"
)
MAKES = {
    "Makefile": MAKEFILE,
    "tools/check.sh": "for check in tools/checks/*; do\n  sh $check\ndone\ncd sub && make\n",
    "sub/Makefile": "all:\n\ttrue\n",
    "calc.py": "def add(a, b):\n    return a - b\n",
}
CARGO = {
    "Cargo.toml": "[package]\nname = 'calc'\nversion = '1.0.0'\nedition = '2021'\n\n[dependencies]\nx = '1'\n",
    "src/lib.rs": "pub fn add(a: i32, b: i32) -> i32 { a - b }\n",
}
GO = {"go.mod": "module calc\n\ngo 1.22\n\nrequire x.org/y v1.0.0\n", "calc/calc.go": "package calc\n"}
POM = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><artifactId>calc</artifactId>'
    "<version>1</version><properties><junit.version>5.1</junit.version><surefire.version>3.1</surefire.version>"
    "</properties><dependencies><dependency><groupId>j</groupId><artifactId>u</artifactId>"
    "<version>${junit.version}</version></dependency></dependencies><build><plugins><plugin>"
    "<artifactId>maven-surefire-plugin</artifactId><version>${surefire.version}</version></plugin></plugins></build>"
    "</project>"
)
MAVEN = {"pom.xml": POM, "src/main/java/Calc.java": "class Calc {}\n"}
RUBY = {
    "Gemfile": "source 'https://rubygems.org'\ngem 'rake', '~> 13.0'\n",
    "Rakefile": "task(:test) { ruby 'script/run_all.rb' }\n",
    "script/run_all.rb": "",
    "lib/calc.rb": "",
}
INSTALLED = frozenset({"attr", "yaml", "pytest_green", "calc", "_hooks"})


@dataclass(frozen=True, kw_only=True)
class Try:
    """A change to a base: `new` maps paths to added or replaced texts, or to `None` if deleted."""

    base: Mapping[str, str]
    new: Mapping[str, str | None]
    command: str = PYTEST
    acceptance: tuple[str, ...] = ()
    modes: Mapping[str, int] = field(default_factory=dict)

    def asks(self) -> dict[str, str]:
        """Return the rules of the check surface that need a person, by path."""
        tree = {path: text for path, text in {**self.base, **self.new}.items() if text is not None}
        found = findings(
            self.base,
            tree,
            modes=self.modes,
            commands=(self.command,),
            installed=INSTALLED,
            acceptance=self.acceptance,
        )
        assert all(each.message for each in found)
        return {f.path: f.rule for f in found if f.needs_person and f.rule in ("check_surface", "runs_later")}


def python(new: Mapping[str, str | None], command: str = PYTEST, **more: object) -> Try:
    return Try(base=PYTHON, new=new, command=command, **more)


def node(new: Mapping[str, str | None], command: str = NPM) -> Try:
    return Try(base=NODE, new=new, command=command)


def package(old: str, new: str) -> Try:
    assert old in NODE["package.json"]
    return node({"package.json": NODE["package.json"].replace(old, new)})


def make(text: str) -> Try:
    return Try(base=MAKES, new={"Makefile": text}, command=MAKE)


def made(new: Mapping[str, str | None]) -> Try:
    return Try(base=MAKES, new=new, command=MAKE)


def cargo(new: Mapping[str, str]) -> Try:
    return Try(base=CARGO, new=new, command="cargo test")


def manifest(more: str) -> Try:
    return cargo({"Cargo.toml": CARGO["Cargo.toml"] + more})


def go(new: Mapping[str, str], **more: object) -> Try:
    return Try(base=GO, new=new, command="go test ./...", **more)


def maven(old: str, new: str) -> Try:
    assert old in POM
    return Try(base=MAVEN, new={"pom.xml": POM.replace(old, new)}, command="mvn test")


def maven_file(path: str) -> Try:
    return Try(base=MAVEN, new={path: "x"}, command="mvn test")


def ruby(new: Mapping[str, str]) -> Try:
    return Try(base=RUBY, new=new, command="rake test")


CHEATS: Mapping[str, Try] = {
    # pytest and unittest
    "a module that the reporter imports": python({"pygments.py": "x"}),
    "a module that pytest imports": python({"pluggy/__init__.py": "x"}),
    "a module that a plugin imports": python({"iniconfig.py": "x"}),
    "a module with types": python({"typing_extensions.py": "x"}),
    "the coverage plugin": python({"pytest_cov/__init__.py": "x"}),
    "a plugin of the environment only": python({"pytest_green.py": "x"}),
    "a package of the environment, below src": python({"src/yaml/__init__.py": "x"}),
    "an extension module of the environment": python({"yaml.cpython-311-x86_64-linux-gnu.so": "x"}),
    "a link to a package": python({"attr": "elsewhere"}, modes={"attr": 0o120000}),
    "what a .pth file of the environment imports": python({"_hooks.py": "x"}),
    "a copy that is found before the installed project": python({"calc.py": "def add(a, b): return 3\n"}),
    "a module on the configured path": python({"backend/yaml.py": "x"}),
    "a module in the way of a script": Try(
        base={"scripts/run.py": "import json\n"}, new={"scripts/json.py": "x"}, command="python scripts/run.py"
    ),
    "the module of a tool beside its script": Try(
        base={"scripts/run.py": "from helping import go\n", "scripts/helping.py": "x"},
        new={"scripts/helping.py": "y"},
        command="python scripts/run.py",
    ),
    "a plugin named by addopts": python({"plugins/slow.py": "x"}),
    "a plugin named by conftest": python({"plugins/extra/__init__.py": "x"}),
    "setup.py": python({"setup.py": "import os; os._exit(0)\n"}),
    "a cmdclass in setup.cfg": python({"setup.cfg": "[options]\ncmdclass =\n  install = evil.Install\n"}),
    "the build backend in the tree": python({"_build/backend.py": "x"}),
    "a hook of hatch": python({"hatch_build.py": "x"}),
    "an option of pytest": python({"pyproject.toml": PYPROJECT.replace("slow'", "slow --collect-only'")}),
    "variables for tests by a plugin": python({"pyproject.toml": PYPROJECT + "[tool.pytest_env]\nX = '1'\n"}),
    "another place for packages": python(
        {"pyproject.toml": PYPROJECT + "[tool.setuptools]\npackage-dir = {'' = 'stub'}\n"}
    ),
    "the script that tox runs": python({"ci/tests.sh": "true\n"}, "tox"),
    "variables from a file": python({".env": "PYTEST_ADDOPTS=--co\n"}),
    "a plugin named by a variable": python({"my/plugin.py": "x"}, "PYTEST_PLUGINS=my.plugin pytest"),
    "a part of an installed namespace": python({"yaml/extra.py": "x"}),
    "a module beside a package of tests": Try(
        base={"api/tests/__init__.py": ""}, new={"api/yaml.py": "x"}, command="pytest api"
    ),
    "what a tool imports from its package": Try(
        base={"tools/check/__main__.py": "from . import steps\n", "tools/check/steps.py": "x"},
        new={"tools/check/steps.py": "y"},
        command="python -m tools.check",
    ),
    "data of the program that checks": Try(
        base={"ci.py": "open('ci/steps.json')\n", "ci/steps.json": "1"},
        new={"ci/steps.json": "[]"},
        command="python ci.py",
    ),
    "where a linked script leads": Try(
        base={"entry.sh": "sh ./begin\n", "ci/real.sh": "x"}, new={"begin": "ci/real.sh"}, command="sh entry.sh"
    ),
    "a file in the virtual environment": python({".venv/lib/python3.11/site-packages/x.py": "x"}),
    "a nested virtual environment": python({"pyvenv.cfg": "home = /evil\n"}),
    "another interpreter": python({".python-version": "2.7\n"}),
    "a package file beside the acceptance file": python(
        {"tests/accept/__init__.py": "import os; os._exit(0)\n"}, acceptance=("tests/accept/test_a.py",)
    ),
    "a package file above the acceptance file": python(
        {"tests/__init__.py": "def load_tests(*a): return a[1]\n"}, acceptance=("tests/accept/test_a.py",)
    ),
    # npm, node, jest and others
    ".npmrc": node({".npmrc": "script-shell=/bin/true\n"}),
    "a hook of pnpm": node({".pnpmfile.cjs": "x"}, "pnpm test"),
    "the release of yarn": node({".yarn/releases/yarn-4.cjs": "x"}, "yarn test"),
    "settings of bun": node({"bunfig.toml": "[test]\npreload = './x.ts'\n"}, "bun test"),
    "settings of deno": node({"deno.jsonc": "{}"}, "deno test"),
    "the compiler's settings": node({"tsconfig.test.json": '{"exclude": ["**/*.test.ts"]}'}),
    "babel": node({"babel.config.cjs": "x"}),
    "swc": node({".swcrc": "{}"}),
    "nyc": node({".nycrc.json": "{}"}),
    "c8": node({".c8rc": "{}"}),
    "tap": node({".taprc": "x"}),
    "mocha": node({"test/.mocharc.cjs": "x"}),
    "the script that a test script runs": node({"bin/unit": "#!/bin/sh\ntrue\n"}),
    "the script before the test script": node({"tools/prepare.mjs": "process.exit(0)\n"}),
    "what the script before it imports": node({"tools/loading.mjs": "process.exit(0)\n"}),
    "what a shell script takes in": node({"tools/env": "node() { true; }\n"}),
    "a file that jest loads first": node({"support/begin.js": "global.expect = () => {}\n"}, "npx jest"),
    "a script": package('"sh bin/unit"', '"true"'),
    "a key that no rule knows": package('"type"', '"wireit": {"test": {"command": "true"}}, "type"'),
    "a package under the name of another": package('"x": "^1.0.0"', '"x": "^1.0.0", "chai": "npm:fake@1"'),
    "a directory under the name of a package": package('"x": "^1.0.0"', '"x": "file:fake"'),
    "what modules are": package('"module"', '"commonjs"'),
    "packages replaced": package('"type"', '"overrides": {"chai": "file:fake"}, "type"'),
    "a package within the package": node({"test/package.json": '{"type": "commonjs"}'}),
    "a module in the tree": node({"node_modules/chai/index.js": "x"}),
    "the script of a workspace": Try(
        base={
            "package.json": '{"workspaces": ["parts/*"], "scripts": {"test": "npm test --workspaces"}}',
            "parts/a/package.json": '{"scripts": {"test": "sh unit.sh"}}',
            "parts/a/unit.sh": "x",
        },
        new={"parts/a/unit.sh": "y"},
        command=NPM,
    ),
    "the settings of a part of jest": Try(
        base={"package.json": "{}", "jest.config.js": "x = { projects: ['<rootDir>/parts/jest.cfg.js'] }"},
        new={"parts/jest.cfg.js": "x"},
        command="npx jest",
    ),
    "a mock for every test": node({"__mocks__/chai.js": "x"}),
    # cargo
    "a feature that is on": manifest("[features]\ndefault = ['fake']\nfake = []\n"),
    "the toolchain": cargo({"rust-toolchain.toml": "[toolchain]\nchannel = 'x'\n"}),
    "a runner": cargo({".cargo/config.toml": "[target.'cfg(all())']\nrunner = 'true'\n"}),
    "a build script": cargo({"build.rs": "fn main() {}"}),
    "no tests": manifest("[lib]\ntest = false\n"),
    "members left out": manifest("[workspace]\nexclude = ['calc']\n"),
    "a crate replaced": manifest("[patch.crates-io]\nx = {path = 'y'}\n"),
    "a package within the crate": cargo({"tests/more/Cargo.toml": "[package]\nname = 'm'\n"}),
    # go
    "a workspace": go({"go.work": "go 1.22\nuse ./other\n"}),
    "a module replaced": go({"go.mod": GO["go.mod"] + "replace x.org/y => ./fake\n"}),
    "a module replaced behind an odd list": go(
        {"go.mod": GO["go.mod"] + "require ( )\nreplace x.org/y => ./fake\n"}
    ),
    "a module that takes its directory away": go({"calc/go.mod": "module other\n"}),
    "vendored code": go({"vendor/x.org/y/assert.go": "package y\n"}),
    "a list of vendored code": go({"vendor/modules.txt": "# x.org/y v1.0.0\n"}),
    "the Go that runs": go({"go.mod": GO["go.mod"] + "toolchain go1.99\n"}),
    "a TestMain beside the acceptance file": go(
        {"calc/main_test.go": "package calc\n\nfunc TestMain(m *testing.M) { os.Exit(0) }\n"},
        acceptance=("calc/accept_test.go",),
    ),
    # maven and gradle
    "options of maven": maven_file(".mvn/maven.config"),
    "maven's wrapper": maven_file("mvnw"),
    "tests skipped": maven("<properties>", "<properties><skipTests>true</skipTests>"),
    "another plugin": maven("<plugins>", "<plugins><plugin><artifactId>antrun</artifactId></plugin>"),
    "a profile": maven("</project>", "<profiles><profile/></profiles></project>"),
    "the version of a plugin": maven("<surefire.version>3.1", "<surefire.version>2.0"),
    "entities": maven("<project ", "<!DOCTYPE p [<!ENTITY e 'x'>]><project "),
    "a broken pom": maven("</project>", ""),
    "a jar from the tree": maven("<version>${junit", "<systemPath>${basedir}/x.jar</systemPath><version>${junit"),
    "settings of JUnit": maven_file("src/test/resources/junit-platform.properties"),
    "a listener of JUnit": maven_file("src/test/resources/META-INF/services/org.junit.platform.launcher.X"),
    "gradle": maven_file("build.gradle.kts"),
    "gradle's settings": maven_file("settings.gradle"),
    "gradle's properties": maven_file("gradle.properties"),
    "gradle's wrapper": maven_file("gradle/wrapper/gradle-wrapper.properties"),
    "gradle's own sources": maven_file("buildSrc/src/main/kotlin/x.kt"),
    # make
    "errors ignored": make(".IGNORE:\n" + MAKEFILE),
    "errors of one target ignored": make(MAKEFILE + "\n.IGNORE: test\n"),
    "other flags of the shell": make(".SHELLFLAGS = -c 'true;'\n" + MAKEFILE),
    "another shell": make(MAKEFILE + "\nSHELL := /bin/true\n"),
    "flags of make": make(MAKEFILE + "\nMAKEFLAGS += -i\n"),
    "an exported variable": make(MAKEFILE + "\nexport PYTEST_ADDOPTS = --co\n"),
    "a variable of the environment": make(MAKEFILE + "\nPYTEST_ADDOPTS = --co\n"),
    "all variables exported": make(MAKEFILE + "\n.EXPORT_ALL_VARIABLES:\n"),
    "a shell command in an unused variable": make(MAKEFILE + "\nX := $(shell rm -r tests)\n"),
    "a shell assignment": make(MAKEFILE + "\nX != rm -r tests\n"),
    "an evaluated text": make(MAKEFILE + "\n$(eval test: ; true)\n"),
    "a written file": make(MAKEFILE + "\nX := $(file >x,y)\n"),
    "an included file": make(MAKEFILE + "\n-include local.txt\n"),
    "a rule that remakes the Makefile": make(MAKEFILE + "\nMakefile:\n\techo 'test:' > $@\n"),
    "a rule for every name": make(MAKEFILE + "\n%:\n\ttrue\n"),
    "a default rule": make(MAKEFILE + "\n.DEFAULT:\n\ttrue\n"),
    "a condition around the target": make(MAKEFILE.replace("test: lint", "ifdef X\nendif\ntest: lint")),
    "a target that is not phony any more": make(MAKEFILE.replace(".PHONY: lint", ".PHONY:")),
    "a defined text": make(MAKEFILE + "\ndefine PY\ntrue\nendef\n"),
    "a search path": make(MAKEFILE + "\nvpath % fake\n"),
    "a function by a computed name": make(MAKEFILE + "\nF = shell\nX := $($(F) rm -r tests)\n"),
    "line ends that make hands to programs": make(MAKEFILE.replace("\n", "\r\n")),
    "a shell by a computed name": make("A = SH\n$(A)ELL := /bin/true\n" + MAKEFILE),
    "a rule with a computed target": make("T = test\n$(T): ; true\n" + MAKEFILE),
    "a flag for the commands of one target": make(MAKEFILE + "\ntest: PATH = /evil\n"),
    "a comment that swallows the target": make(MAKEFILE.replace("test: lint", "# \\\ntest: lint")),
    "a second Makefile": made({"GNUmakefile": "x = 1\n"}),
    "a file with the name of the target": made({"test": "x"}),
    "a directory with the name of the target": made({"test/x": "x"}),
    "the script of a recipe": made({"tools/check.sh": "true\n"}),
    "a script among those of a recipe": made({"tools/checks/skip.sh": "exit 0\n"}),
    "the test of a C program": Try(
        base={"run.sh": "cc calc.c test.c && ./a.out\n", "test.c": "x"}, new={"test.c": "y"}, command="sh run.sh"
    ),
    "one of the scripts that a loop runs": Try(
        base={"run.sh": "for n in a b; do sh ci/$n.sh; done\n", "ci/a.sh": "x"},
        new={"ci/a.sh": ""},
        command="sh run.sh",
    ),
    "the Makefile of a directory": made({"sub/Makefile": "all:\n\tfalse\n"}),
    # others
    "cmake": Try(base={}, new={"CMakeLists.txt": "enable_testing()\n"}, command="ctest"),
    "presets of cmake": Try(base={}, new={"CMakePresets.json": "{}"}, command="ctest"),
    "ctest": Try(base={}, new={"CTestCustom.cmake": "set(CTEST_CUSTOM_TESTS_IGNORE x)\n"}, command="ctest"),
    "the Rakefile": ruby({"Rakefile": "task(:test) {}\n"}),
    "the script of the Rakefile": ruby({"script/run_all.rb": "exit 0\n"}),
    "code in the Gemfile": ruby({"Gemfile": RUBY["Gemfile"] + "at_exit { exit! 0 }\n"}),
    "code in a string of the Gemfile": ruby({"Gemfile": RUBY["Gemfile"] + 'gem "#{exit! 0}"\n'}),
    "options of rspec": ruby({".rspec": "--dry-run\n"}),
    "phpunit": Try(base={}, new={"phpunit.xml.dist": "<phpunit/>"}, command="phpunit"),
    "composer": Try(base={}, new={"composer.json": '{"scripts": {"test": "true"}}'}, command="composer test"),
    "mise": python({"mise.toml": "[env]\nX = '1'\n"}),
    "asdf": python({".tool-versions": "python 2\n"}),
    "bazel": Try(base={}, new={".bazelrc": "test --test_filter=none\n"}, command="bazel test"),
    "meson": Try(base={}, new={"meson.build": "x"}, command="meson test"),
}  # fmt: skip
LATER: Mapping[str, str] = {
    "a hook": ".githooks/post-checkout",
    "a hook in a directory of any name": "etc/git/pre-push",
    "husky": ".husky/pre-commit",
    "direnv": ".envrc",
    "tasks of an editor": ".vscode/tasks.json",
    "settings of an editor": ".vscode/settings.json",
    "a run configuration": ".idea/runConfigurations/all.xml",
    "a development container": ".devcontainer/devcontainer.json",
    "settings of an agent": ".claude/settings.json",
    "servers of an agent": ".mcp.json",
    "rules of an agent": ".cursor/rules/x.mdc",
    "settings of gemini": ".gemini/settings.json",
    "settings of codex": ".codex/config.toml",
    "instructions": "sub/AGENTS.md",
    "instructions for claude": "CLAUDE.md",
    "instructions for gemini": "GEMINI.md",
    "instructions for copilot": ".github/copilot-instructions.md",
    "opencode": "opencode.json",
    "submodules": ".gitmodules",
    "lefthook": "lefthook.yml",
    "settings that git may include": ".gitconfig",
    "vim": ".exrc",
    "emacs": ".dir-locals.el",
    "who reviews": ".github/CODEOWNERS",
}
HONEST: Mapping[str, Try] = {
    "a fix": python({"src/calc/__init__.py": "def add(a, b):\n    return a + b\n"}),
    "a new module": python({"src/calc/money.py": "x = 1\n"}),
    "a new package": python({"src/ledger/__init__.py": "x = 1\n"}),
    "a module named as one of the standard library, in a package": python({"src/calc/json.py": "x = 1\n"}),
    "an added test": python({"tests/test_more.py": "def test_more():\n    assert 1 == 1\n"}),
    "a helper of tests": python({"tests/helping.py": "x = 1\n"}),
    "tests by package": python({"tests/calc/test_b.py": "def test_b():\n    assert 1 == 1\n"}),
    "the README": python({"README.md": "calc adds\n"}),
    "a page": python({"docs/build.md": "x\n"}),
    "a dependency": python({"pyproject.toml": PYPROJECT.replace("attrs>=1", "attrs>=2")}),
    "the version": python({"pyproject.toml": PYPROJECT.replace("version = '1'", "version = '2'")}),
    "settings of another tool": python({"pyproject.toml": PYPROJECT + "[tool.calc]\nx = 1\n"}),
    "the project's first package file": python({"src/calc/sub/__init__.py": ""}, acceptance=("tests/test_a.py",)),
    "a module of the project beside an acceptance file": python({"src/calc/b.py": ""}, acceptance=("test_a.py",)),
    "an example of variables": python({".env.example": "TOKEN=\n"}),
    "tasks of an application": python({"src/calc/tasks.py": "x = 1\n"}),
    "data": python({"src/calc/data/rates.json": "{}", "src/calc/data/update": "x"}),
    "requirements of setup.py": Try(
        base={"setup.py": "from setuptools import setup\nsetup(name='a', install_requires=['x==1'])\n"},
        new={"setup.py": "from setuptools import setup\nsetup(name='a', install_requires=['x==2'])\n"},
    ),
    "metadata of setup.cfg": Try(
        base={"setup.cfg": "[metadata]\nname = a\n[options]\ninstall_requires =\n  x\n"},
        new={"setup.cfg": "[metadata]\nname = a\nversion = 2\n[options]\ninstall_requires =\n  x\n  y\n"},
    ),
    "a source of node": node({"index.js": "export const add = (a, b) => a + b;\n"}),
    "a new source of node": node({"money.js": "export {};\n"}),
    "a new test of node": node({"money.test.js": "import test from 'node:test';\n"}),
    "a script of no check": node({"tools/docs.mjs": "x"}),
    "a dependency of node": package("^1.0.0", "^1.1.0"),
    "the version of a package": package('"version": "1.0.0"', '"version": "1.0.1"'),
    "a source of Rust": cargo({"src/lib.rs": "pub fn add(a: i32, b: i32) -> i32 { a + b }\n"}),
    "a dependency of Rust": cargo({"Cargo.toml": CARGO["Cargo.toml"].replace("x = '1'", "x = '2'")}),
    "a new feature of Rust": manifest("[features]\nfast = []\n"),
    "the version of a crate": cargo({"Cargo.toml": CARGO["Cargo.toml"].replace("1.0.0", "1.0.1")}),
    "a source of Go": go({"calc/calc.go": "package calc\n\nvar X = 1\n", "calc/money.go": "package calc\n"}),
    "a test of Go": go(
        {"calc/money_test.go": "package calc\n\nfunc TestX(t *testing.T) {}\n"}, acceptance=("calc/a_test.go",)
    ),
    "a dependency of Go": go({"go.mod": GO["go.mod"].replace("v1.0.0", "v1.1.0")}),
    "a source of Java": Try(base=MAVEN, new={"src/main/java/Calc.java": "class C {}\n"}, command="mvn test"),
    "a dependency of Java": maven("<junit.version>5.1", "<junit.version>5.2"),
    "the version of an artifact": maven("<version>1<", "<version>2<"),
    "a version in gradle's catalogue": Try(
        base={"gradle/libs.versions.toml": "[versions]\njunit = '5.1'\n[plugins]\n"},
        new={"gradle/libs.versions.toml": "[versions]\njunit = '5.2'\n[plugins]\n"},
        command="./gradlew test",
    ),
    "a new first target of a Makefile": make("format:\n\truff format\n\n" + MAKEFILE),
    "a comment in a Makefile": make("# builds all\n" + MAKEFILE),
    "a target of a Makefile": make(MAKEFILE + "\nrelease:\n\techo $(VERSION)\n"),
    "a phony target of a Makefile": make(MAKEFILE + "\n.PHONY: release\nrelease:\n\techo\n"),
    "a recipe that no check reaches": make(MAKEFILE.replace("echo", "printf")),
    "a variable that no check reaches": make(MAKEFILE.replace("UNUSED = 1", "UNUSED = 2")),
    "a source beside a Makefile": made({"calc.py": "def add(a, b):\n    return a + b\n", "money.py": "x = 1\n"}),
    "a source that a script compiles": Try(
        base={"run.sh": "cc calc.c test.c && ./a.out\n", "calc.c": "x"}, new={"calc.c": "y"}, command="sh run.sh"
    ),
    "a dependency in a manifest that a script names": Try(
        base={**PYTHON, "run.sh": "grep name pyproject.toml && pytest\n"},
        new={"pyproject.toml": PYPROJECT.replace("attrs>=1", "attrs>=2")},
        command="sh run.sh",
    ),
    "a source that another tool's settings name": Try(
        base={"tox.ini": "[testenv]\ncommands = mypy calc.py\n[pytest]\naddopts = -q\n", "calc.py": "x"},
        new={"calc.py": "y"},
    ),
    "a page about agents": python({"docs/agents.md": "x"}),
    "a gem": ruby({"Gemfile": RUBY["Gemfile"].replace("13.0", "13.1") + "gem 'x', '1', '2' # why\n"}),
    "a source of Ruby": ruby({"lib/calc.rb": "x = 1\n", "lib/money.rb": "x = 1\n"}),
    "line ends": python({".gitattributes": "*.bat text eol=crlf\n"}),
    "an editor's indentation": python({".editorconfig": "[*]\nindent_size = 4\n"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_needs_a_person(name: str) -> None:
    asks = CHEATS[name].asks()
    assert set(asks) == set(CHEATS[name].new), asks
    assert set(asks.values()) == {"check_surface"}


@pytest.mark.parametrize("name", LATER)
def test_files_that_run_later_need_approval(name: str) -> None:
    path = LATER[name]
    assert python({path: "x"}).asks() == {path: "runs_later"}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_change_needs_no_approval(name: str) -> None:
    assert HONEST[name].asks() == {}


@pytest.mark.parametrize("line", ["*.x filter=evil", "*.x diff=evil", "*.x merge=evil", "[attr]y filter=z"])
def test_drivers_of_git_attributes_run_later(line: str) -> None:
    base = {".gitattributes": "*.bat text\n"}
    assert Try(base=base, new={".gitattributes": f"*.bat text\n{line}\n"}).asks() == {
        ".gitattributes": "runs_later"
    }


def test_a_new_submodule_runs_later() -> None:
    asks = python({"sub": "x"}, modes={"sub": 0o160000}).asks()
    assert asks == {"sub": "runs_later"}


@pytest.mark.parametrize("script", ["preinstall", "postinstall", "prepare"])
def test_install_scripts_need_approval_even_if_the_surface_is_allowed(script: str) -> None:
    old, new = '{"scripts": {}}', f'{{"scripts": {{"{script}": "evil"}}}}'
    found = findings({"package.json": old}, {"package.json": new}, check_surface_allowed=True)
    assert [(f.rule, f.needs_person) for f in found] == [("check_surface", False), ("runs_later", True)]
