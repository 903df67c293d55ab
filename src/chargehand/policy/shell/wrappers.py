"""Programs that run other programs (`env`, `xargs`, `sudo`, ...): their inner programs are judged as well."""

from __future__ import annotations

import posixpath
import re

from msgspec import Struct

from chargehand.core.text import late_pattern
from chargehand.policy.shell.lines import Simple, find_roots

Argv = tuple[str | None, ...]
_ASSIGNMENT = late_pattern(r"[A-Za-z_]\w*\+?=")
_VERSIONED = late_pattern(r"(python|pip|node|ruby|perl|php|lua|bash)[\d.]+")
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "mksh", "rbash"})
INTERPRETERS = frozenset({"python", "node", "ruby", "perl", "php", "lua", "deno", "bun", "fish", "tclsh"})
# Most commands assumed to be run by xargs, parallel and `find -exec` with their input inserted.
_VARIANTS = 16


class _Wrapper(Struct, frozen=True):
    """A program that runs another: its options with a value, words before the command, a required sub-command."""

    valued: str = ""
    skip: int = 0
    assignments: bool = False
    after: tuple[str, ...] = ()

    def inner_of(self, program: str, command: Simple) -> Inner:
        """Return the commands that a command of this wrapper runs."""
        words = command.argv[1:]
        rest = self.words_behind(words)
        if program in ("xargs", "parallel"):
            return Inner(commands=_commands_of_xargs(rest, words, command.feed), label=program)
        if program == "ssh" or (program == "watch" and rest):
            return Inner(lines=_as_line(rest), label=program)
        split: tuple[str | None, ...] = ()
        for index, word in enumerate(words if program == "env" else ()):
            if word in ("-S", "--split-string", "-vS", "-iS"):
                split = words[index + 1 : index + 2]
                break
            if word is not None and word.startswith(("-S", "--split-string=")):
                split = (word.removeprefix("-S").removeprefix("--split-string="),)
                break
        return Inner(commands=(rest,) if rest else (), lines=split, label=program)

    def words_behind(self, words: Argv) -> Argv:
        """Return the words of the command that a wrapper runs."""
        if self.after:
            at = next((index for index, word in enumerate(words) if word in self.after), None)
            before = words[: max((at or 0) - 1, 0)]
            if at is None or any(word is not None and not word.startswith("-") for word in before):
                return ()
            words = words[at + 1 :]
        valued, skip, index = self.valued.split(), self.skip, 0
        while index < len(words):
            word = words[index]
            if word == "--":
                index += 1
                return words[index + skip :]
            if word is not None and len(word) > 1 and word.startswith("-"):
                index += 2 if word in valued else 1
            elif word is not None and self.assignments and _ASSIGNMENT.match(word):
                index += 1
            elif skip:
                skip, index = skip - 1, index + 1
            else:
                return words[index:]
        return ()


# The wrappers; `after` names the sub-command that the inner command follows.
_WRAPPERS = {
    "env": _Wrapper("-u --unset -C --chdir", assignments=True),
    "sudo": _Wrapper("-u -g -h -p -C -r -t -T -U -D -R --user --group --chdir", assignments=True),
    "doas": _Wrapper("-u -C"),
    "nice": _Wrapper("-n --adjustment"),
    "ionice": _Wrapper("-c -n -p --class --classdata"),
    "chrt": _Wrapper("-T -P -D", skip=1),
    "taskset": _Wrapper("", skip=1),
    "timeout": _Wrapper("-s --signal -k --kill-after", skip=1),
    "nohup": _Wrapper(),
    "setsid": _Wrapper(),
    "time": _Wrapper("-f -o --format --output"),
    "stdbuf": _Wrapper("-i -o -e --input --output --error"),
    "unbuffer": _Wrapper(),
    "command": _Wrapper(),
    "builtin": _Wrapper(),
    "exec": _Wrapper("-a"),
    "coproc": _Wrapper(),
    "xargs": _Wrapper("-a -d -E -I -L -n -P -s --arg-file --delimiter --max-args --max-procs --max-lines"),
    "parallel": _Wrapper("-j --jobs -I -N -a --arg-file -S --delay --timeout --workdir --colsep"),
    "busybox": _Wrapper(),
    "toybox": _Wrapper(),
    "chroot": _Wrapper("", skip=1),
    "unshare": _Wrapper("-S -G -R -w --root --wd --setuid --setgid"),
    "nsenter": _Wrapper("-t --target -S -G"),
    "setpriv": _Wrapper("--reuid --regid --groups"),
    "runuser": _Wrapper("-u"),
    "fakeroot": _Wrapper("-l -s -i"),
    "firejail": _Wrapper(),
    "strace": _Wrapper("-e -o -p -s -u -E -P -a -O -S -b -I"),
    "ltrace": _Wrapper("-e -o -p -s -u -a -n -l"),
    "flock": _Wrapper("-w --wait --timeout -E", skip=1),
    "watch": _Wrapper("-n --interval"),
    "systemd-run": _Wrapper("-p --property -u --unit -E --setenv"),
    "cross-env": _Wrapper("", assignments=True),
    "npx": _Wrapper("-p --package"),
    "bunx": _Wrapper(),
    "uvx": _Wrapper("--from --with -p --python"),
    "npm": _Wrapper("", after=("exec", "x")),
    "pnpm": _Wrapper("-C --dir -F --filter", after=("exec", "dlx")),
    "yarn": _Wrapper("--cwd", after=("exec", "dlx")),
    "bun": _Wrapper("", after=("x",)),
    "uv": _Wrapper("--with --python -p --extra --group --directory --project", after=("run",)),
    "poetry": _Wrapper("-C --directory -P --project", after=("run",)),
    "pdm": _Wrapper("-p --project", after=("run",)),
    "hatch": _Wrapper("-e --env", after=("run",)),
    "pipenv": _Wrapper("", after=("run",)),
    "pipx": _Wrapper("--spec --python", after=("run",)),
    "rye": _Wrapper("", after=("run",)),
    "conda": _Wrapper("-n --name -p --prefix", after=("run",)),
    "bundle": _Wrapper("", after=("exec",)),
    "rustup": _Wrapper("", after=("run",), skip=1),
    "direnv": _Wrapper("", after=("exec",), skip=1),
    "ssh": _Wrapper("-p -i -l -o -F -J -L -R -D -W -b -c -e -m", skip=1),
}  # fmt: skip


def program_of(word: str | None) -> str:
    """Return a program's plain name, "" if it is unknown or ambiguous."""
    if word is None or re.search(r"[*?\[]", word.removeprefix("[").removeprefix("[")):
        return ""
    name = posixpath.basename(word)
    versioned = _VERSIONED.fullmatch(name)
    return versioned[1] if versioned else name


class Inner(Struct, frozen=True, kw_only=True):
    """The inner parts of a command: programs, lines for a shell (`None`: unknown), script files."""

    commands: tuple[Argv, ...] = ()
    lines: tuple[str | None, ...] = ()
    scripts: tuple[str | None, ...] = ()
    label: str = ""


def inner_of(command: Simple) -> Inner:
    """Return the programs, lines and scripts that a command runs in addition to itself."""
    program = program_of(command.argv[0])
    words = command.argv[1:]
    if program == "python" and "-m" in words:
        module = words[words.index("-m") + 1 :]
        return Inner(commands=(module,) if module else (), label="python -m")
    if program in SHELLS:
        return _run_by_shell(program, words, command.feed)
    match program:
        case "eval":
            return Inner(lines=_as_line(words), label="eval")
        case "alias":
            bodies = [
                None if word is None else word.partition("=")[2] for word in words if word is None or "=" in word
            ]
            return Inner(lines=tuple(bodies), label="alias")
        case "trap":
            plain = [word for word in words if word is None or not word.startswith("-")]
            return Inner(lines=tuple(plain[:1]) if len(plain) > 1 else (), label="trap")
        case "source" | ".":
            return Inner(scripts=words[:1], label="source")
        case "su":
            at = next((index for index, word in enumerate(words) if word in ("-c", "--command")), None)
            return Inner() if at is None else Inner(lines=words[at + 1 : at + 2], label="su -c")
        case "find":
            return _run_by_find(words)
        case "git":
            return _run_by_git(words)
    wrapper = _WRAPPERS.get(program)
    return Inner() if wrapper is None else wrapper.inner_of(program, command)


def _as_line(words: Argv) -> tuple[str | None, ...]:
    """Return words as the single line given to a shell, `None` if one of them is unknown."""
    known = [word for word in words if word is not None]
    return (" ".join(known) if len(known) == len(words) else None,) if words else ()


def fed_by_file(argv: Argv) -> str | None:
    """Return the file from which xargs and parallel read words, `None` if missing or unknown."""
    if program_of(argv[0]) not in ("xargs", "parallel"):
        return None
    words = argv[1:]
    for index, word in enumerate(words):
        if word in ("-a", "--arg-file"):
            return words[index + 1] if index + 1 < len(words) else None
        if word is not None and word.startswith(("--arg-file=", "-a")):
            return word.removeprefix("--arg-file=").removeprefix("-a")
        if word is not None and not word.startswith("-"):
            break
    return None


def _commands_of_xargs(rest: Argv, words: Argv, feed: tuple[str | None, ...] | None) -> tuple[Argv, ...]:
    """Return the commands that `xargs` and `parallel` run: their words, with the input inserted or appended."""
    if ":::" in rest:
        at = rest.index(":::")
        feed, rest = rest[at + 1 :], rest[:at]
    if not rest:
        rest = ("echo",)
    feed = feed if feed is not None else (None,)
    place = "{}" if any(word and word.startswith("-I") for word in words) or "{}" in rest else None
    for index, word in enumerate(words):
        if word == "-I" and index + 1 < len(words):
            place = words[index + 1]
    values: list[str | None] = [part for value in feed for part in (value.split() if value else [value])]
    if place is not None:
        return tuple(tuple(_put(word, place, value) for word in rest) for value in (values or [None])[:_VARIANTS])
    # Whether xargs runs all at once or one by one depends on lengths: both are judged.
    whole = rest + tuple(values)
    one_each = [(*rest, value) for value in values[:_VARIANTS]] if len(values) > 1 else []
    return (whole, *one_each)


def _put(word: str | None, place: str, value: str | None) -> str | None:
    if word is None or place not in word:
        return word
    return None if value is None else word.replace(place, value)


def _run_by_shell(program: str, words: Argv, feed: tuple[str | None, ...] | None) -> Inner:
    """Return what a shell runs: the text after `-c`, a script file, or its input."""
    index = 0
    while index < len(words):
        word = words[index]
        if word is None:
            return Inner(scripts=(None,), label=program)
        if word in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file"):
            index += 2
        elif word.startswith("-") and not word.startswith("--") and "c" in word:
            index += 1
            while index < len(words) and (words[index] or "").startswith("-"):
                index += 1
            return Inner(lines=words[index : index + 1] or (None,), label=f"{program} -c")
        elif word == "-s" or word == "-":
            break
        elif word.startswith(("-", "+")):
            index += 1
        else:
            return Inner(scripts=(word,), label=f"{program} file")
    if feed is None:
        return Inner()  # a shell that reads its terminal: a sandbox has no terminal
    whole = None if any(part is None for part in feed) else "\n".join(part or "" for part in feed)
    return Inner(lines=(whole,), label=f"{program} <")


def _run_by_find(words: Argv) -> Inner:
    """Return the commands that `find -exec` runs, with `{}` as any path below its directories."""
    found: list[Argv] = []
    index = 0
    while index < len(words):
        if words[index] in ("-exec", "-execdir", "-ok", "-okdir"):
            end = next((at for at in range(index, len(words)) if words[at] in (";", "+")), len(words))
            command = words[index + 1 : end]
            found += [tuple(_put(word, "{}", below(root)) for word in command) for root in find_roots(words)[:8]]
            index = end
        index += 1
    return Inner(commands=tuple(each for each in found if each), label="find -exec")


def below(root: str) -> str | None:
    """Return the pattern of all paths below a directory in the form of `find_roots`."""
    return None if root == "$" else f"{root}/*"


def _run_by_git(words: Argv) -> Inner:
    """Return the commands that git runs: aliases on its command line, and those of bisect, rebase, submodules."""
    lines: list[str | None] = []
    commands: list[Argv] = []
    aliases: dict[str, str] = {}
    for index, word in enumerate(words):
        after = words[index + 1] if index + 1 < len(words) else None
        if word == "-c" and after is not None and after.startswith("alias."):
            name, _, body = after.removeprefix("alias.").partition("=")
            aliases[name] = body
        elif word is not None and word in aliases:
            body = aliases[word]
            lines.append(body.removeprefix("!") if body.startswith("!") else f"git {body}")
        elif word in ("-x", "--exec") and "rebase" in words:
            lines.append(after)
    if words[:2] == ("bisect", "run"):
        commands.append(words[2:])
    if words[:2] == ("submodule", "foreach"):
        known = [word for word in words[2:] if word != "--recursive"]
        lines.append(" ".join(word or "" for word in known) if all(known) else None)
    return Inner(commands=tuple(each for each in commands if each), lines=tuple(lines), label="git")
