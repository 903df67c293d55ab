"""The options of a run: one record that command line, REST and MCP take their arguments from.

A further option is a field here, and its use in `app.runs.build_request` or a key of the configuration. The record
is a dataclass, since the help of the command line must not import msgspec.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from chargehand.configuration.records import OptionValue
    from chargehand.core.records import RedBase

Client = Literal["rest", "mcp"]
_ALL: tuple[Client, ...] = ("rest", "mcp")
_NAMES_FILES = "it names files of the machine"
_WEAKENS = "it may weaken what the project requires"
_METADATA = "option"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOption:
    """An option for every interface.

    On the command line it is a `flag` with a text, a list of texts, one of the `choices`, a path or nothing, by
    its `shape`. `key` is the configuration key that it sets. `clients` may give it in the form `takes`
    (`read_client`); `withheld` is the reason if no client may.
    """

    flag: str
    help: str
    shape: Literal["text", "list", "flag", "choice", "path"]
    metavar: str = ""
    choices: tuple[str, ...] = ()
    key: str = ""
    clients: tuple[Client, ...] = ()
    takes: Literal["words", "short", "money", "count", "auto", "list"] = "words"
    withheld: str = ""


def _option(default: Any, flag: str, help: str, **others: Any) -> Any:
    shape = (
        "flag" if default is False else "list" if default == () else "choice" if "choices" in others else "text"
    )
    return field(
        default=default, metadata={_METADATA: RunOption(flag=flag, help=help, **{"shape": shape} | others)}
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """The request of a run.

    Durations, amounts of money and counts are texts as a person writes them (`30m`, `2.50`): the configuration
    parses them, with the same errors everywhere. `file` is read instead of `text`; `yes` suppresses questions and
    grants nothing. Without `red_base` the project's policy applies; if that is to ask, the question comes before
    the work if a person is there to answer (`interactive`), otherwise at its end. `directory` is relative to the
    current directory, with `repo` to the top of the repository. `plan` is a file with the tasks of the request, or
    `auto` for a planner. `team` assigns agents to roles; `break_at` has the breakpoints, separated by commas.
    """

    text: str | None = None
    file: str | None = _option(
        None, "--file", "Read the request from a file, or from stdin with '-'.", metavar="F"
    )
    issue: str | None = _option(
        None,
        "--issue",
        "Resolve an issue of a forge of [forges]: the address of its page, or ACCOUNT:OWNER/NAME#NUMBER.",
        metavar="URL",
        withheld="it acts with the forge accounts of the machine's owner",
    )
    repo: Path | None = _option(
        None, "--repo", "The repository to work on (default: the one you are in).", shape="path"
    )
    directory: str | None = _option(
        None,
        "--dir",
        "Work in the project of this directory; '/' is the top of the repository.",
        metavar="DIR",
        clients=_ALL,
    )
    base: str | None = _option(
        None, "--base", "The commit, branch or tag to start from (default: HEAD).", metavar="REV", clients=_ALL
    )
    agent: str | None = _option(
        None, "--agent", "A configured agent, 'native', or 'command:PROGRAM ARG…'.", metavar="NAME", clients=_ALL
    )
    model: str | None = _option(
        None, "--model", "The first model to use: of [models], or PROVIDER:MODEL.", metavar="NAME", clients=_ALL
    )
    no_explore: bool = _option(
        False,
        "--no-explore",
        "Learned choices try nothing only to learn from it.",
        withheld="`decisions.explore` of the server decides for all",
    )
    role: str | None = _option(
        None,
        "--role",
        "The role to work in; `chargehand role list` names them (default: developer).",
        metavar="NAME",
        clients=_ALL,
        takes="short",
    )
    team: str | None = _option(
        None,
        "--team",
        "Team for the request: its roles in order, and its reviewers.",
        metavar="NAME",
        clients=("rest",),
        takes="short",
    )
    plan: str | None = _option(
        None,
        "--plan",
        "The tasks of the work, as YAML or JSON; 'auto': a planner makes them.",
        metavar="FILE",
        clients=("rest",),
        takes="auto",
    )
    checks: tuple[str, ...] = _option(
        (), "--check", "An additional check that must pass.", metavar="CMD", key="project.checks", clients=_ALL
    )
    only_checks: tuple[str, ...] = _option(
        (),
        "--only-check",
        "A check that replaces the project's own.",
        metavar="CMD",
        key="only_checks",
        withheld=_WEAKENS,
    )
    check_files: tuple[str, ...] = _option(
        (), "--check-file", "A file only the checks see, at PATH.", metavar="HOST:PATH", withheld=_NAMES_FILES
    )
    outside_checks: tuple[str, ...] = _option(
        (),
        "--outside-check",
        "A check outside the tree, in its own sandbox; `under-test CMD` runs CMD in the tree's.",
        metavar="CMD",
        key="project.outside_checks",
        withheld="it is a program of the person's",
    )
    outside_files: tuple[str, ...] = _option(
        (),
        "--outside-file",
        "A file only the outside checks see, at PATH.",
        metavar="HOST:PATH",
        withheld=_NAMES_FILES,
    )
    allow: tuple[str, ...] = _option(
        (),
        "--allow",
        "Allow changes only in this area (as in .gitignore).",
        metavar="AREA",
        key="project.allow",
        clients=_ALL,
    )
    forbid: tuple[str, ...] = _option(
        (), "--forbid", "Forbid changes in this area.", metavar="AREA", key="project.forbid", clients=_ALL
    )
    budget: str | None = _option(
        None,
        "--budget",
        "Spend at most this much on models.",
        metavar="USD",
        key="limits.budget_usd",
        clients=_ALL,
        takes="money",
    )
    time: str | None = _option(
        None,
        "--time",
        "At most this long, such as 90s, 30m or 1h30m.",
        metavar="DURATION",
        key="limits.time",
        clients=_ALL,
        takes="short",
    )
    attempts: str | None = _option(
        None,
        "--attempts",
        "At most this many attempts.",
        metavar="N",
        key="limits.attempts",
        clients=_ALL,
        takes="count",
    )
    sandbox: str | None = _option(
        None,
        "--sandbox",
        "The sandbox tier: process, container or vm.",
        metavar="TIER",
        key="sandbox.tier",
        withheld="the machine's owner chooses its sandboxes",
    )
    strategy: str | None = _option(
        None,
        "--strategy",
        "How workspaces are made: shadow or direct.",
        metavar="NAME",
        key="project.strategy",
        withheld="the machine's owner chooses how its disk is used",
    )
    partial: bool = _option(
        False, "--partial", "Promote the rest after reverting violating files.", withheld=_WEAKENS
    )
    apply: bool = _option(
        False,
        "--apply",
        "Also fast-forward the branch that is checked out.",
        withheld="it changes a checkout of the person's",
    )
    red_base: RedBase | None = _option(
        None,
        "--red-base",
        "If checks already fail on the base: fixing them is the request (go), ask before or after the work, "
        "accept these failures, or stop (default: project.red_base, which asks: at a terminal before, else "
        "after).",
        withheld=_WEAKENS,
        choices=("go", "ask", "later", "accept_known", "stop"),
    )
    break_at: str | None = _option(
        None,
        "--break-at",
        "Pause before these: plan, promote, step, task:ID (with commas between).",
        metavar="WHERE",
        clients=("rest",),
        takes="list",
    )
    detach: bool = _option(False, "--detach", "Return at once; a background worker runs it.")
    yes: bool = _option(False, "--yes", "Ask nothing; this never grants trust.")
    interactive: bool = False

    def configuration(self) -> Mapping[str, OptionValue]:
        """Return the options that are configuration keys, by dotted key."""
        from chargehand.configuration.records import OptionValue

        return {
            option.key: OptionValue(value=getattr(self, name), name=option.flag)
            for name, option in run_options().items()
            if option.key
        }


def run_options(request: type[RunRequest] = RunRequest) -> Mapping[str, RunOption]:
    """Return the option of each field that has one, by its name, in the order of the record."""
    fields = dataclasses.fields(request)
    return {each.name: each.metadata[_METADATA] for each in fields if _METADATA in each.metadata}
