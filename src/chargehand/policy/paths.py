"""Classifies paths by their text: normalised against a directory, and named by their meaning there."""

from __future__ import annotations

import posixpath
from fnmatch import fnmatchcase

from chargehand.core.text import late_pattern
from chargehand.policy.actions import HOME, Surroundings

_GLOB = late_pattern(r"[*?\[]")
_STREAMS = late_pattern(r"/dev/(null|stdin|stdout|stderr|tty|zero|u?random|full|fd/\d+)|-")
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run/chargehand")
_CI = (
    ".github", ".gitlab-ci.yml", ".gitlab", ".circleci", ".travis.yml", "Jenkinsfile", "azure-pipelines.yml",
    ".buildkite", ".drone.yml", ".woodpecker", ".woodpecker.yml", ".forgejo", ".gitea", "bitbucket-pipelines.yml",
    "appveyor.yml", ".cirrus.yml",
)  # fmt: skip
_OWN = ("chargehand.toml", "chargehand.cedar")
_SECRET = (
    ".env", ".env.*", ".envrc", ".netrc", ".pypirc", ".git-credentials", "id_rsa", "id_ed25519", "id_ecdsa",
    "id_dsa", ".ssh", ".aws", ".gnupg", ".kube", ".docker",
)  # fmt: skip
_EXAMPLES = late_pattern(r"\.env\.(example|sample|template|dist|defaults?|test|ci)")


def absolute(path: str | None, cwd: str | None, around: Surroundings) -> str | None:
    """Return a path from the root without `.`, `..` and links as far as known; `None` if it is not known."""
    if path is None or "\0" in path:
        return None
    if path == "~" or path.startswith("~/"):
        path = HOME + path[1:]
    if not path.startswith("/"):
        if cwd is None:
            return None
        path = posixpath.join(cwd, path)
    return around.resolve(posixpath.normpath(path).replace("//", "/"))


def places(path: str | None, around: Surroundings) -> frozenset[str]:
    """Return the classes of a path, in words that rules use.

    One of `workspace`, `root` (the workspace itself, or above it), `temp`, `home`, `stream`, `device`, `system`,
    `unknown`; in addition `git`, `ci`, `own`, `secret` if they apply. A pattern has the classes of all that it may
    match.
    """
    if path is None:
        return frozenset({"unknown"})
    if _STREAMS.fullmatch(path):
        return frozenset({"stream"})
    found = {_area_of(path, around)}
    relative = posixpath.relpath(path, around.workspace) if "workspace" in found else ""
    first, *_ = relative.split("/")
    parts = path.split("/")
    if any(_may_be(part, (".git",)) for part in parts):
        found.add("git")
    if relative and _may_be(first, _CI):
        found.add("ci")
    if relative in _OWN or (_GLOB.search(relative) and _may_be(relative, _OWN)):
        found.add("own")
    if any(fnmatchcase(part, name) for part in parts for name in _SECRET if not _EXAMPLES.fullmatch(part)):
        found.add("secret")
    return frozenset(found)


def _area_of(path: str, around: Surroundings) -> str:
    glob = _GLOB.search(path)
    # A pattern matches below the last directory before it.
    if glob is not None:
        directory = path[: glob.start()].rpartition("/")[0]
        path = f"{directory}/*"
    below = around.workspace.rstrip("/") + "/"
    if path.startswith(below):
        return "workspace"
    if path == around.workspace or below.startswith(path.rstrip("/") + "/"):
        return "root"
    if any(path.startswith(place + "/") for place in _TEMPORARY) or path in _TEMPORARY:
        return "temp"
    if path.startswith(("/dev/", "/proc/sys", "/sys/")):
        return "device"
    return "home" if path.startswith(("/home", "/root", "/Users/")) else "system"


def _may_be(part: str, names: tuple[str, ...]) -> bool:
    """Return whether a name, or a shell pattern, may be one of the names."""
    if part == "*":
        return False  # it may match anything: a rule that denies .git would then deny every `rm *`
    lowered = part.lower()  # some file systems ignore case, and git follows them
    if not _GLOB.search(part):
        return any(lowered == name.lower() for name in names)
    # only a dot matches a leading dot
    return any((part[0] == "." or name[0] != ".") and fnmatchcase(name, part) for name in names)
