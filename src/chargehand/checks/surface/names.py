"""Files that decide how checks run, or that run later on a person's machine, known by their names alone.

Each entry is a reason and the names it applies to, in any directory and in any case: `name`, `start*end`,
`directory/` for everything below a directory, or `/name` for a file at the root. The sources are the files that
each tool documents as read at its start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from chargehand.core.text import late_pattern

_CHECKS: Mapping[str, str] = {
    # Python
    "pytest loads it before the tests": "conftest.py",
    "configures pytest": "pytest.ini .pytest.ini pytest.toml .pytest.toml",
    "configures tox and pytest": "tox.ini tox.toml",
    "configures a test runner": """
        noxfile.py nose.cfg .noserc nose2.cfg unittest.cfg .testr.conf .stestr.conf behave.ini .behaverc
        pants.toml hatch.toml .coveragerc .coveragerc.toml
    """,
    "Python runs it at every start": "sitecustomize.py usercustomize.py *.pth *._pth pyvenv.cfg",
    "Python may load it in place of the source": "*.pyc *.pyo *.so *.pyd",
    "Python may load test plugins that it declares": "*.dist-info/ *.egg-info/",
    "pip runs it while it installs the project": "hatch_build.py pdm_build.py",
    "configures how packages are installed": "pip.conf uv.toml poetry.toml pdm.toml .pdm-python",
    # JavaScript
    "configures jest": "jest.config.* jest.setup.* .jestrc* jest-setup.* jest-preset.* setuptests.*",
    "configures vitest": "vitest.* vite.config.*",
    "configures mocha": ".mocharc*",
    "configures a JavaScript test runner": """
        karma.conf.* playwright.config.* playwright-ct.config.* cypress.config.* cypress.json ava.config.*
        .taprc* .tap/ .nycrc* .c8rc* nyc.config.* wdio.conf.* nightwatch.conf.* .testcaferc*
        web-test-runner.config.* wtr.config.* jasmine.json stryker.conf.* stryker.config.* testem.* .qunitrc*
    """,
    "jest puts it in the place of a module": "__mocks__/",
    "npm and node take settings from it, programs among them": ".npmrc node.config.json .node_repl_history",
    "yarn takes settings and programs from it": ".yarnrc* .yarn/ .pnp.*",
    "pnpm takes settings and hooks from it": ".pnpmfile.* pnpmfile.* pnpm-workspace.yaml pnpm-workspace.yml",
    "bun takes settings and preloaded files from it": "bunfig.toml .bunfig.toml",
    "deno takes settings and import maps from it": "deno.json deno.jsonc import_map.json importmap.json",
    "decides how sources are compiled and modules are found": """
        tsconfig*.json jsconfig*.json .babelrc* babel.config.* .swcrc* swc.config.* .esbuild* esbuild.config.*
        webpack.config.* rollup.config.* .browserslistrc tsup.config.* .postcssrc* postcss.config.*
        metro.config.*
    """,
    "defines packages and tasks": """
        lerna.json nx.json project.json turbo.json rush.json package.json5 package.yaml
    """,
    # Found by programs in place of installed packages
    "the checks find installed packages there": """
        node_modules/ .venv/ venv/ site-packages/ dist-packages/ __pypackages__/ .tox/ .nox/ .chargehand/
        .node_modules/ .bundle/ .node_libraries/ web_modules/
    """,
    "the checks may load it in place of a package": "vendor/",
    # Rust, Go
    "cargo runs it before it builds": "build.rs",
    "configures cargo": """
        .cargo/ .config/nextest.toml nextest.toml tarpaulin.toml .tarpaulin.toml cross.toml makefile.toml
    """,
    "chooses the version of a tool": """
        rust-toolchain rust-toolchain.toml .python-version .python-versions .ruby-version .ruby-gemset
        .node-version .nvmrc .tool-versions mise*.toml .mise*.toml .mise/ .config/mise/ .config/mise.toml
        .rtx*.toml .java-version .sdkmanrc .go-version .php-version .terraform-version .jabbarc .nodenv-version
        .n-node-version .bazelversion .bazeliskrc .xvmrc .asdfrc .prototools .moon/ .flutter-version .fvmrc
        .swift-version .elixir-version .perl-version global.json
    """,
    "decides which modules Go builds": "go.work go.work.sum go.env",
    # JVM
    "configures maven": ".mvn/ mvnw mvnw.cmd mvnwdebug",
    "configures gradle": """
        gradlew gradlew.bat gradle/wrapper/ *.gradle *.gradle.kts *.gradle.dcl gradle.properties buildsrc/
        build-logic/ gradle-daemon-jvm.properties
    """,
    "defines how the JVM project is built": """
        build.xml ivy.xml ivysettings.xml build.sbt *.sbt project/build.properties .sbtopts .jvmopts build.sc
        build.mill deps.edn project.clj tests.edn bb.edn lombok.config
    """,
    "configures JUnit or TestNG": """
        junit-platform.properties testng.xml testng.yaml meta-inf/services/ mockito-extensions/
        allure.properties
    """,
    "the JVM loads it in place of a source": "*.jar *.class",
    # C, C++ and builders of any language
    "defines the builds and tests of cmake": """
        cmakelists.txt cmakepresets.json cmakeuserpresets.json *.cmake dartconfiguration.tcl
    """,
    "defines builds and tests": """
        meson.build meson_options.txt meson.options configure configure.ac configure.in makefile.am makefile.in
        *.am conanfile.* vcpkg.json sconstruct sconscript wscript build build.bazel workspace workspace.bazel
        module.bazel .bazelrc *.bzl buck .buckconfig premake*.lua xmake.lua build.ninja build.zig build.zig.zon
        kbuild *.cabal stack.yaml cabal.project* setup.hs dune dune-project dune-workspace rebar.config
        rebar.config.script mix.exs package.swift makefile.pl build.pl *.nimble config.nims nim.cfg *.rockspec
        shard.yml dub.json dub.sdl gleam.toml *.csproj *.fsproj *.vbproj *.props *.targets *.runsettings
        nuget.config xunit.runner.json
    """,
    "a Makefile may include it": "*.mk *.mak",
    "defines commands that checks may run": """
        justfile .justfile *.just taskfile.y*ml taskfile.dist.y*ml /tasks.py /fabfile.py /dodo.py earthfile
        dagger.json gulpfile.* gruntfile.* jakefile* cakefile magefile.go robo.xml robofile.php /pavement.py
    """,
    # Ruby, PHP and others
    "rake or bundler runs it": "gemfile.local rakefile rakefile.rb *.rake",
    "rspec or minitest loads it before the tests": """
        .rspec .rspec-local spec_helper.rb rails_helper.rb test_helper.rb .simplecov .minitest*
    """,
    "configures a Ruby test runner": "cucumber.yml guardfile .guardfile appraisals gems.rb *.gemfile",
    "configures phpunit or pest": """
        phpunit.xml* phpunit.dist.xml .phpunit* pest.php paratest* codeception*.yml behat.yml* phpspec.yml*
        infection.json*
    """,
    "PHP takes settings from it": "php.ini .user.ini",
    "a test runner loads it before the tests": """
        test_helper.exs dart_test.yaml .busted .luacov .proverc flutter_test_config.dart
    """,
    "R runs it at every start": ".rprofile .renviron",
    # Any
    "programs take their environment from it": ".env .env.* *.env .flaskenv",
    "configures a linter": """
        ruff.toml .ruff.toml .flake8 .pylintrc pylintrc .isort.cfg .bandit bandit.yaml .style.yapf .eslintrc*
        .eslintignore eslint.config.* biome.json biome.jsonc .oxlintrc.json .golangci.* .stylelintrc*
        stylelint.config.* .prettierrc* prettier.config.* .rubocop*.yml .standard.yml phpstan.* psalm.xml*
        .php-cs-fixer* phpcs.xml* .clang-tidy clippy.toml .clippy.toml .credo.exs .shellcheckrc .hadolint.yaml
        checkstyle.xml pmd.xml detekt.yml .scalafix.conf .swiftlint.yml analysis_options.yaml
        .pre-commit-config.y*ml .yamllint* .markdownlint* staticcheck.conf .semgrep*
    """,
    "configures a type checker": "mypy.ini .mypy.ini pyrightconfig.json .pyre_configuration ty.toml",
    "configures CI": """
        .github/workflows/ .github/actions/ .gitea/workflows/ .forgejo/workflows/ .ci/ .circleci/ .buildkite/
        .woodpecker/ .gitlab/ci/ .semaphore/ .azure-pipelines/ .teamcity/ .tekton/ .gitlab-ci.y*ml .travis.y*ml
        .drone.y*ml jenkinsfile* azure-pipelines*.y*ml bitbucket-pipelines.yml appveyor.yml .appveyor.yml
        .woodpecker.y*ml .cirrus.y*ml .builds/ .build.yml cloudbuild.y*ml buildspec.y*ml codecov.yml
        .codecov.yml zuul.yaml .zuul.yaml .zuul.d/
    """,
}  # fmt: skip

_LATER: Mapping[str, str] = {
    "git runs it as a hook": """
        .githooks/ githooks/ git-hooks/ .git-hooks/ .husky/ .hooks/ .cargo-husky/ applypatch-msg pre-applypatch
        post-applypatch pre-commit pre-merge-commit prepare-commit-msg commit-msg post-commit pre-rebase
        post-checkout post-merge pre-push post-rewrite pre-auto-gc sendemail-validate fsmonitor-watchman
        reference-transaction push-to-checkout pre-receive post-receive post-index-change
    """,
    "defines git hooks": """
        .huskyrc* husky.config.* lefthook*.y*ml .lefthook*.y*ml lefthook*.toml .lefthook*.toml lefthook*.json
        .lefthook*.json .pre-commit-config.y*ml .pre-commit-hooks.y*ml prek.toml .overcommit.yml .lintstagedrc*
        lint-staged.config.* .simple-git-hooks* simple-git-hooks.* commitlint.config.* .commitlintrc*
        captainhook.json grumphp.y*ml .rusty-hook.toml .pre-commit hk.pkl .yorkie* .ghooks*
    """,
    "git takes settings or URLs from it": ".gitmodules .gitconfig .lfsconfig",
    "a shell runs it on entering the directory": """
        .envrc .direnv/ .direnvrc .autoenv* .env.zsh .smartcd/ mise*.toml .mise*.toml .mise/ .config/mise/
        .config/mise.toml .tool-versions devbox.json devenv.nix devenv.yaml flake.nix shell.nix default.nix
        .bashrc .bash_profile .zshrc .zshenv .profile
    """,
    "an editor runs its commands": """
        .vscode/ *.code-workspace .idea/ .run/ .fleet/ .zed/ .nvim.lua .nvimrc .exrc .vimrc .lvimrc .vim/
        .dir-locals.el .dir-locals-2.el .projectile *.sublime-project *.sublime-build .externaltoolbuilders/
        .project .theia/ .vs/ .nova/ .helix/ .lldbinit .gdbinit .pdbrc .pdbrc.py .irbrc .pryrc .ipython/
        .jupyter/ jupyter_*config.py
    """,
    "a development container is made from it": """
        .devcontainer/ .devcontainer.json .gitpod.y*ml .gitpod.dockerfile .replit replit.nix .idx/ vagrantfile
    """,
    "coding agents take settings or instructions from it": """
        .claude/ .mcp.json mcp.json .cursor/ .cursorrules .cursorignore .gemini/ .codex/ agents.md
        agents.override.md agents.local.md agent.md claude.md claude.local.md gemini.md codex.md qwen.md
        crush.md warp.md replit.md copilot-instructions.md .github/instructions/ .github/prompts/
        .github/chatmodes/ .github/agents/ .github/skills/ .github/hooks/ .github/copilot/ .copilot/
        opencode.json* .opencode/ .windsurf/ .windsurfrules .clinerules/ .clinerules* .cline/ .roo/ .roomodes
        .roorules* .kilocode/ .kilocodemodes .kiro/ .amazonq/ .aider* .continue/ .continuerc* .goosehints
        .goose/ .junie/ .augment/ .augment-guidelines .trae/ .qwen/ .crush/ .crush.json crush.json .rules
        .agents/ .agent/ .openhands/ .factory/ .amp/ .grok/ .devin/ .sourcegraph/ .cody/ .tabnine/ .zencoder/
        .antigravity/ .pi/ skill.md .plandex* .serena/ .hermes/ .cursorindexingignore .claude-plugin/
        .aiassistant/ .rooignore .ruler/ .vibe/ .iflow/ .codebuddy/ .kimi/ .bob/ .swe-agent/
    """,
    "a forge runs or obeys it": """
        .github/workflows/ .github/actions/ .gitea/workflows/ .forgejo/workflows/ .circleci/ .buildkite/
        .woodpecker/ .ci/ .gitlab-ci.y*ml .travis.y*ml .drone.y*ml jenkinsfile* azure-pipelines*.y*ml
        bitbucket-pipelines.yml appveyor.yml .appveyor.yml .woodpecker.y*ml .cirrus.y*ml .github/dependabot.y*ml
        renovate.json* .renovaterc* codeowners .mergify.yml .github/settings.yml .gitlab/ci/ .semaphore/
        .azure-pipelines/ .teamcity/ .tekton/ .builds/ .build.yml cloudbuild.y*ml buildspec.y*ml
    """,
    "a desktop runs it when it is opened": "*.desktop autorun.inf *.lnk",
}  # fmt: skip

# Shown only to people: no program loads them.
_EXAMPLES = late_pattern(
    r".*\.env\.(?:example|sample|template|dist)|\.env\.(?:example|sample|template|dist)|example\.env"
)


class NameRules:
    """Reasons by names, for any number of paths."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self._exact: dict[str, str] = {}
        self._loose: list[tuple[str, str, str]] = []
        for reason, names in reasons.items():
            for name in names.split():
                if "*" in name or "/" in name:
                    begins, ends = r"\A/" if name.startswith("/") else "/", "/" if name.endswith("/") else r"\Z"
                    pattern = re.escape(name.strip("/")).replace(r"\*", "[^/]*")
                    literal = max(name.strip("/").split("*"), key=len)
                    self._loose.append((literal, f"{begins}{pattern}{ends}", reason))
                else:
                    self._exact.setdefault(name, reason)

    def reason(self, path: str) -> str | None:
        """Return the reason for the name of `path` or of a directory above it, or `None`."""
        # Some file systems and tools ignore case.
        shown = path.rpartition("/")[2]
        name = shown.lower()
        if _EXAMPLES.fullmatch(name):
            return None
        # Pages of documentation may be called `agents.md` as well, but not at the root.
        if name in self._exact and not (name.endswith(".md") and shown == name and "/docs/" in f"/{path}"):
            return self._exact[name]
        anchored = f"/{path.lower()}"
        # Almost every path contains no literal, and then no pattern is compiled.
        near = ((pattern, reason) for literal, pattern, reason in self._loose if literal in anchored)
        return next((reason for pattern, reason in near if re.search(pattern, anchored)), None)


CHECKS = NameRules(_CHECKS)
LATER = NameRules(_LATER)
