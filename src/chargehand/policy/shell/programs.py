"""The effects of well-known programs by their arguments: files they write or remove, hosts they reach."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from msgspec import Struct

from chargehand.core.text import late_pattern
from chargehand.policy.shell.lines import Simple, find_roots
from chargehand.policy.shell.wrappers import INTERPRETERS, below, program_of

Argv = Sequence[str | None]
_REMOVES = frozenset({"rm", "rmdir", "unlink", "shred", "srm"})
_WRITES = frozenset({"touch", "mkdir", "tee", "truncate", "mknod", "mkfifo", "sponge"})
_MODES = frozenset({"chmod", "chown", "chgrp", "chattr", "setfacl"})
_COPIES = frozenset({"cp", "ln", "install", "rsync", "link"})
_IN_PLACE = {"sed": "-i --in-place", "perl": "-i", "yq": "-i --inplace", "sd": "", "clang-format": "-i"}
_OUTPUTS = {
    "curl": "-o --output", "wget": "-O --output-document -P", "sort": "-o --output", "gcc": "-o", "cc": "-o",
    "tar": "-C --directory", "unzip": "-d",
}  # fmt: skip
_VALUED = {
    "git": "-C -c --git-dir --work-tree --exec-path --namespace --config-env", "yarn": "--cwd", "go": "-C",
    "npm": "--prefix -C -w --workspace", "pnpm": "-C --dir -F --filter", "pip": "--python --proxy --log",
    "cargo": "--manifest-path -Z --config -C --color", "docker": "-H -c --context --config -l",
    "podman": "--root --url", "poetry": "-C -P --directory --project", "uv": "--directory --project --config-file",
    "kubectl": "-n --namespace --context", "make": "-C -f -j", "gh": "-R --repo", "apt": "-o -c",
    "apt-get": "-o -c", "conda": "-n -p", "systemctl": "-H -M", "hg": "-R --cwd",
}  # fmt: skip
_SIZED = {"truncate": "-s -r", "touch": "-d -t -r", "mkdir": "-m", "chmod": "", "install": "-m -o -g -t",
          "cp": "-t", "mv": "-t", "ln": "-t", "shred": "-n -s", "tee": "", "rm": ""}  # fmt: skip
_LONGEST_PATH = 4096
_URL = late_pattern(r"(?:https?|ftps?|git|ssh|wss?|svn|rsync)://\S+")
_SCP = late_pattern(r"(?:[\w.-]+@)?([\w.-]+\.[\w.-]+|localhost):(?!//)\S*")

_CALLERS = {
    "curl": "-o -X -H -d -u -A -e -b -c -F -T -m -w --output --request --header --data --user --max-time "
    "--write-out --data-raw --data-binary --retry --connect-timeout --form --cookie --json",
    "wget": "-O -o -P -t -T --output-document --header --timeout --tries", "http": "", "https": "", "xh": "",
    "ssh": "-p -i -l -o -F -J -L -R -D -W", "sftp": "-P -i -o", "telnet": "", "nc": "-p -s -w -X -x -i",
    "ncat": "-p", "netcat": "-p -s -w", "ftp": "", "socat": "", "ping": "-c -W -w -i", "dig": "", "nslookup": "",
    "aria2c": "-o -d",
    "scp": "-P -i -o", "rsync": "-e --rsh", "nmap": "-p",
}  # fmt: skip
_LISTENS = frozenset({"-l", "--listen", "-lk", "-lp", "-lv", "-lvp", "-nlvp", "-lnvp"})


class Touched(Struct, frozen=True, kw_only=True):
    """Files that a command names, `None` for unknown ones."""

    reads: tuple[str | None, ...] = ()
    writes: tuple[str | None, ...] = ()
    removes: tuple[str | None, ...] = ()


def positionals(words: Argv, valued: str = "") -> list[str | None]:
    """Return the words that are neither options nor options' values."""
    found: list[str | None] = []
    skipping = False
    options = True
    taking = valued.split()
    for word in words:
        if skipping:
            skipping = False
        elif options and word == "--":
            options = False
        elif options and word is not None and word.startswith("-") and len(word) > 1:
            skipping = word in taking
        else:
            found.append(word)
    return found


def program_given_to(command: Simple) -> str | None:
    """Return a description of the program given to an interpreter, `None` if a command gives it no program."""
    program = program_of(command.argv[0])
    words = command.argv[1:]
    fed = command.feed is not None and not any(
        word is None or not word.startswith("-") or word in ("-c", "-e", "-m") for word in words
    )
    given = "-m" not in words and (bool(positionals(words)) or bool({"-c", "-e", "--eval", "-p"} & set(words)))
    if program not in INTERPRETERS or not (fed or given):
        return None
    return f"{program} reads a program" if fed else f"a program that {program} runs"


def subcommands(program: str, words: Argv) -> list[str]:
    """Return the first two words that are not options, "?" for an unknown word."""
    if program == "cargo" and words and words[0] is not None and words[0].startswith("+"):
        words = words[1:]
    return ["?" if word is None else word for word in positionals(words, _VALUED.get(program, ""))[:2]]


def flags(words: Argv) -> list[str]:
    """Return the options: `--x=y` as `--x`, `-ab` as itself and as `-a` and `-b`."""
    found: dict[str, None] = {}
    for word in words:
        if word == "--":
            break
        if word is None or not word.startswith("-") or len(word) < 2:
            continue
        found[word.partition("=")[0]] = None
        if not word.startswith("--"):
            found |= {f"-{letter}": None for letter in word[1:] if letter.isalpha()}
    return list(found)


def touched(program: str, words: Argv) -> Touched:
    """Return the files that a command names."""
    plain = positionals(words, _SIZED.get(program, ""))
    if program in _REMOVES:
        return Touched(removes=tuple(plain))
    if program in _WRITES:
        return Touched(writes=tuple(plain))
    if program in _MODES:
        return Touched(writes=tuple(plain[1:]))
    if program == "mv":
        return Touched(removes=tuple(plain[:-1] or plain), writes=(*plain[-1:], *_given(words, "-t")))
    if program in _COPIES:
        return Touched(reads=tuple(plain[:-1]), writes=(*plain[-1:], *_given(words, "-t")))
    if program == "dd":
        return Touched(writes=_values_after(words, "of="), reads=_values_after(words, "if="))
    if program == "find":
        roots = tuple(map(below, find_roots(words)))
        return Touched(reads=roots, removes=roots if "-delete" in words else ())
    in_place = _IN_PLACE.get(program, "").split()
    plain = positionals(words, "-e -f --expression --file" if program in ("sed", "perl") else "")
    if any(word is not None and word.startswith(flag) for word in words for flag in in_place):
        # Without -e or -f the first word is the program of sed or perl, not a file.
        own_script = not any(word in ("-e", "-f") or (word or "").startswith("--expression") for word in words)
        return Touched(writes=tuple(plain[1:] if own_script else plain))
    writes = tuple(word for flag in _OUTPUTS.get(program, "").split() for word in _given(words, flag))
    # Any other word may be a file that is read: leave out words that plainly are not files.
    known = [word for word in plain if word is not None and len(word) < _LONGEST_PATH]
    reads = [word for word in known if not _URL.fullmatch(word) and "\n" not in word and " " not in word.strip()]
    return Touched(writes=writes, reads=tuple(reads))


def _given(words: Argv, flag: str) -> list[str | None]:
    found: list[str | None] = []
    for index, word in enumerate(words):
        if word == flag and index + 1 < len(words):
            found.append(words[index + 1])
        elif word is not None and flag.startswith("--") and word.startswith(flag + "="):
            found.append(word.partition("=")[2])
        elif word is not None and not flag.startswith("--") and word.startswith(flag) and word != flag:
            found.append(word.removeprefix(flag))
    return found


def _values_after(words: Argv, prefix: str) -> tuple[str | None, ...]:
    unknown: list[str | None] = [None for word in words if word is None]
    return (*(word.removeprefix(prefix) for word in words if word and word.startswith(prefix)), *unknown)


def hosts(program: str, words: Argv) -> list[tuple[str, int]] | None:
    """Return the hosts and ports that a command calls, "" for an unknown one; `None` if it calls no host."""
    named: list[tuple[str, int]] = []
    for word in (word for word in words if word is not None):
        found = _URL.search(word)
        # These programs read user@host:path as a location; to others it is any text.
        remote = _SCP.fullmatch(word) if program in ("scp", "rsync", "git", "sftp", "ssh") else None
        if found is not None and (word.startswith(found[0]) or program == "git"):
            named.append(_host_and_port(found[0]))
        elif remote is not None:
            named.append((remote[1], 22))
    if program not in _CALLERS:
        return named if program in ("git", "pip") and named else None
    # A server inside the sandbox reaches no host, and asking for a version or for help calls no host.
    if any(word in _LISTENS for word in words) or set(words) & {"--version", "--help", "-V"}:
        return None
    if named:
        return named
    if program in ("rsync", "scp"):
        return [("", 0)] if any(word is None for word in words) else None
    plain = positionals(words, _CALLERS[program])
    if not plain or plain[0] is None:
        return [("", 0)]
    host, number = _host_and_port(f"tcp://{plain[0]}")  # a word without a scheme, such as user@host:80/path
    port = plain[1] if len(plain) > 1 else None
    return [(host, int(port) if port is not None and port.isdigit() and not number else number)]


def _host_and_port(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.port or {"http": 80, "https": 443, "ssh": 22}.get(parts.scheme, 0)
    except ValueError:
        return "", 0
