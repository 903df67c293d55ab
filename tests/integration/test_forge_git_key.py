"""Clones use exactly the configured key: a stand-in of ssh records its arguments and serves a local repository."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chargehand.app.forge.clones import update_clone
from chargehand.forges.contract import Forge, ForgeRepository, ForgeSetup, GitKey
from chargehand.forges.gitea import GiteaForge
from chargehand.forges.github import GithubForge
from chargehand.forges.gitlab import GitlabForge
from chargehand.testing.forges.case import run_git
from chargehand.testing.forges.suite import fails

# The last argument of ssh is the command of git for the other side.
_SSH = '#!/bin/sh\nprintf "%s\\n" "$@" > "$HOME/arguments"\nfor last; do :; done\nexec sh -c "$last"\n'


@pytest.mark.parametrize("kind", [GithubForge, GitlabForge, GiteaForge])
def test_the_key_is_used_whatever_else_is_configured_for_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[GithubForge | GitlabForge | GiteaForge]
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text(_SSH)
    (tmp_path / "bin/ssh").chmod(0o755)
    run_git(tmp_path, "init", "-q", "-b", "main", "work")
    run_git(tmp_path / "work", "commit", "-q", "--allow-empty", "-m", "x")
    run_git(tmp_path / "work", "config", "--file", str(tmp_path / ".gitconfig"), "core.sshCommand", "false")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_SSH_COMMAND", "false")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere")
    key, known = tmp_path / "my key", tmp_path / "known hosts"
    setup = ForgeSetup(url="http://127.0.0.1:9", token="t", git_key=GitKey(key, known), sleep=time.sleep)
    forge: Forge = kind(setup)
    repository = ForgeRepository(
        name="ada/calc", url="", clone_url="", ssh_url=f"git@forge.test:{tmp_path}/work", default_branch="main"
    )
    clone = update_clone(tmp_path / "clones", "home", forge, repository, "main")
    assert run_git(clone, "rev-parse", "main") == run_git(tmp_path / "work", "rev-parse", "main")
    given = (tmp_path / "arguments").read_text().splitlines()
    assert given[given.index("-i") + 1] == str(key)
    assert given[given.index("-F") + 1] == "none"
    wanted = {"IdentitiesOnly=yes", "IdentityAgent=none", "BatchMode=yes", "StrictHostKeyChecking=yes"}
    wanted |= {f'UserKnownHostsFile="{known}"', "GlobalKnownHostsFile=none"}
    assert wanted <= {each.removeprefix("-o") for each in given}
    no_ssh = ForgeRepository(name="ada/calc", url="", clone_url="https://x.test/a", default_branch="main")
    assert "git_key" in fails("invalid", lambda: update_clone(tmp_path, "home", forge, no_ssh, "main")).hint
    forge.close()


@pytest.mark.parametrize("address", ["http://forge.test/a", "http://[", "http://[::zz]/a", "forge.test", ""])
def test_a_clone_address_that_is_not_encrypted_or_malformed_is_refused(tmp_path: Path, address: str) -> None:
    forge: Forge = GithubForge(ForgeSetup(url="http://127.0.0.1:9", token="t", sleep=time.sleep))
    repository = ForgeRepository(name="ada/calc", url="", clone_url=address, default_branch="main")
    fails("invalid", lambda: update_clone(tmp_path, "home", forge, repository, "main"))
    forge.close()


def test_a_refused_key_is_named_instead_of_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh").write_text(
        "#!/bin/sh\necho 'git@forge.test: Permission denied (publickey).' >&2\nexit 255\n"
    )
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    setup = ForgeSetup(url="http://127.0.0.1:9", token="t", git_key=GitKey(tmp_path / "key"), sleep=time.sleep)
    forge: Forge = GiteaForge(setup)
    repository = ForgeRepository(
        name="ada/calc", url="", clone_url="", ssh_url="git@forge.test:x", default_branch="main"
    )
    error = fails("denied", lambda: update_clone(tmp_path / "clones", "home", forge, repository, "main"))
    assert "git_key" in error.hint
    forge.close()


_READ_KEY = """
import os, sys
from pathlib import Path
from chargehand.app.forge.sign_in import read_private_key
if os.geteuid() == 0:  # root may read every file
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    read_private_key(Path(sys.argv[1]), "forges.home.app_key")
except Exception as error:
    print(error)
"""


def test_a_key_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    key = tmp_path / "app.pem"
    key.write_text("secret")
    key.chmod(0)
    done = subprocess.run([sys.executable, "-c", _READ_KEY, str(key)], capture_output=True, text=True, check=True)
    assert done.stdout == f"forges.home.app_key: '{key}' cannot be read: Permission denied\n"
