"""Options that several commands share."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    from chargehand.cli.terminal.failures import Detail
    from chargehand.cli.terminal.output import Output

PROGRAM = "chargehand"
# The length of a command's description in a list: none is cut.
_WHOLE = 200
# Keys of click's `Context.meta`, which all contexts of a command line share.
_NO_COLOUR = "chargehand.no_colour"
_DETAIL = "chargehand.detail"
_NO_PAGER = "chargehand.no_pager"
_ELSEWHERE = "chargehand.elsewhere"
# The attribute of a function that names its options of a run.
_REQUEST_OPTIONS = "__request_options__"
RunElsewhere = Callable[[click.Context, dict[str, Any]], int]
"""Runs the command of a context with its parameters, and returns the exit code."""
# An id, or part of one that begins with its prefix.
_MISSION = re.compile(r"m-[0-9a-z]+|last")
_F = TypeVar("_F", bound=Callable[..., Any])


def no_colour_option(function: _F) -> _F:
    """Add `--no-color`, taken before the command's name and after it."""

    def note(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        context.meta[_NO_COLOUR] = value or context.meta.get(_NO_COLOUR, False)

    return click.option(
        "--no-color", is_flag=True, is_eager=True, expose_value=False, callback=note, help="Use no colours."
    )(function)


def pager_option(function: _F) -> _F:
    """Add `--no-pager`."""

    def note(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        context.meta[_NO_PAGER] = value

    return click.option(
        "--no-pager", is_flag=True, is_eager=True, expose_value=False, callback=note,
        help="Do not show it in your pager, which is git's.",
    )(function)  # fmt: skip


def detail_options(function: _F) -> _F:
    """Add `--quiet` and `--verbose`: how much of a running mission is shown."""

    def note(detail: Detail) -> Callable[[click.Context, click.Parameter, bool], None]:
        def set_detail(context: click.Context, parameter: click.Parameter, value: bool) -> None:
            if value and context.meta.setdefault(_DETAIL, detail) != detail:
                raise click.UsageError("--quiet and --verbose were both given", context)

        return set_detail

    quiet = click.option(
        "-q", "--quiet", is_flag=True, is_eager=True, expose_value=False, callback=note("result"),
        help="Show only the result.",
    )  # fmt: skip
    verbose = click.option(
        "-v", "--verbose", is_flag=True, is_eager=True, expose_value=False, callback=note("events"),
        help="Show every event of the log as it arrives.",
    )  # fmt: skip
    return quiet(verbose(function))


def json_option(function: _F) -> _F:
    """Add `--json`, also taken before the command's name; the command gets an `Output` as its argument `out`.

    It also adds `--no-color`. The command returns its exit code, `None` for 0.
    """

    def open_output(context: click.Context, parameter: click.Parameter, value: bool) -> Output | None:
        if context.resilient_parsing:  # a shell waits for the completion of a word, and the command writes nothing
            return None
        from chargehand.cli.terminal.output import Output

        return Output(
            as_json=value or bool(context.find_root().params.get("as_json")),
            colour=not context.meta.get(_NO_COLOUR, False),
            detail=context.meta.get(_DETAIL, "story"),
            pages=not context.meta.get(_NO_PAGER, False),
        )

    @functools.wraps(function)
    def run_where_wanted(*words: Any, **options: Any) -> Any:
        context = click.get_current_context()
        elsewhere: RunElsewhere | None = context.meta.get(_ELSEWHERE)
        # A group that has a subcommand is not run itself.
        if elsewhere is None or context.invoked_subcommand is not None:
            return function(*words, **options)
        return elsewhere(context, options)

    return click.option(
        "--json", "out", is_flag=True, callback=open_output, help="Print JSON on stdout and nothing else."
    )(no_colour_option(cast("_F", run_where_wanted)))


def run_elsewhere(context: click.Context, run: RunElsewhere) -> None:
    """Run the command of this context on another machine through `run`."""
    context.meta[_ELSEWHERE] = run


def server_options(function: _F) -> _F:
    """Add `--server` and `--insecure-http`: the server that runs the command."""

    def forget_variable(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        if value == "":
            # So that child processes work on this machine as well.
            os.environ.pop("CHARGEHAND_SERVER", None)
        return value or None

    server = click.option(
        "--server", metavar="URL", envvar="CHARGEHAND_SERVER", callback=forget_variable,
        help="Run the command on the server at this address; '' runs it here, despite $CHARGEHAND_SERVER.",
    )  # fmt: skip
    return server(insecure_option(function))


def insecure_option(function: _F) -> _F:
    """Add `--insecure-http`."""
    return click.option(
        "--insecure-http", is_flag=True, help="Let the token travel to a server without encryption."
    )(function)


def repo_option(function: _F) -> _F:
    """Add `--repo`."""
    return click.option(
        "--repo",
        type=click.Path(path_type=Path),
        help="The repository to work on (default: the one you are in).",
    )(function)


def base_option(function: _F) -> _F:
    """Add `--base`."""
    return click.option("--base", metavar="REV", help="The commit, branch or tag to start from (default: HEAD).")(
        function
    )


def time_option(function: _F) -> _F:
    """Add `--time`."""
    return click.option("--time", metavar="DURATION", help="At most this long, such as 90s, 30m or 1h30m.")(
        function
    )


def mission_argument(function: _F) -> _F:
    """Add a mission argument that defaults to the newest mission."""
    return click.argument("mission", metavar="[MISSION]", default="last", shell_complete=complete_missions)(
        function
    )


def named_mission_argument(function: _F) -> _F:
    """Add a required mission argument: a command that changes a mission does not guess which."""
    return click.argument("mission", metavar="MISSION", shell_complete=complete_missions)(function)


def task_option(function: _F) -> _F:
    """Add `--task`."""
    return click.option("--task", metavar="ID", help="A task of the coordinator.")(function)


def complete_roles(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of shipped and user roles that begin with `incomplete`."""
    from chargehand.app.agents import role_names

    return [name for name in role_names(os.environ) if name.startswith(incomplete)]


def complete_keys(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the keys of the configuration that begin with `incomplete`."""
    from chargehand.cli.terminal.completion import key_names

    return [name for name in key_names(os.environ) if name.startswith(incomplete)]


def complete_missions(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Return `last` and the newest missions whose ids begin with `incomplete`, each with status and request."""
    from click.shell_completion import CompletionItem

    from chargehand.cli.terminal.completion import mission_names

    found = mission_names(os.environ)
    return [CompletionItem(name, help=text) for name, text in found.items() if name.startswith(incomplete)]


def complete_secrets(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of stored secrets that begin with `incomplete`."""
    from chargehand.cli.terminal.completion import secret_names

    return [name for name in secret_names(os.environ) if name.startswith(incomplete)]


def complete_artifacts(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Return the newest artifacts whose ids begin with `incomplete`, each with its kind and mission."""
    from click.shell_completion import CompletionItem

    from chargehand.cli.terminal.completion import artifact_names

    found = artifact_names(os.environ)
    return [CompletionItem(name, help=text) for name, text in found.items() if name.startswith(incomplete)]


def complete_names(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a completion of the names of `agents`, `models`, `teams` or `tiers`."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        from chargehand.cli.terminal.completion import entry_names

        return [name for name in entry_names(kind, os.environ) if name.startswith(incomplete)]

    return complete


_COMPLETIONS = {
    "role": complete_roles,
    "agent": complete_names("agents"),
    "model": complete_names("models"),
    "team": complete_names("teams"),
    "sandbox": complete_names("tiers"),
}


def request_options(*names: str, **helps: str) -> Callable[[_F], _F]:
    """Return a decorator that adds these options of `RunRequest`, by default all, to a `RequestCommand`.

    `helps` are texts that replace those of the record.
    """

    def note(function: _F) -> _F:
        vars(function)[_REQUEST_OPTIONS] = (names, helps)
        return function

    return note


def follow_up_options(function: _F) -> _F:
    """Add the options of a further request to a mission, to a `RequestCommand`."""
    return request_options(
        "attempts",
        "time",
        "budget",
        "detach",
        attempts="At most this many further attempts.",
        budget="New limit for the cost of the whole mission.",
    )(function)


class CommandGroup(click.Group):
    """A group whose help lists its commands with whole sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write all commands of the group."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(_WHOLE)) for name, each in commands if each])

    def known_words(self, ctx: click.Context) -> tuple[str, ...]:
        """Return the words that name a command of this group."""
        return tuple(self.list_commands(ctx))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of a command line; an unknown word is explained."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            if ctx.resilient_parsing:
                return None, None, args[1:]
            from chargehand.cli.terminal.failures import CommandUsageError
            from chargehand.cli.terminal.phrases import unknown_command

            group = ctx.command_path.removeprefix(PROGRAM).strip()
            raise CommandUsageError(*unknown_command(args[0], args[1:], self.known_words(ctx), group), ctx)
        return super().resolve_command(ctx, args)


class TextCommand(click.Command):
    """A command with an argument `text`: several words without quotes are explained."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line. Raises `CommandUsageError` for words after the text."""
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            from chargehand.cli.terminal.commands import quoted
            from chargehand.cli.terminal.failures import CommandUsageError

            arguments = [each.name for each in self.params if isinstance(each, click.Argument) and each.name]
            others = [str(ctx.params[name]) for name in arguments if name != "text"]
            text = quoted(" ".join((str(ctx.params["text"]), *rest)))
            hint = f"put the text in quotes: {' '.join((ctx.command_path, *others, text))}"
            raise CommandUsageError(
                f"more than one text: {', '.join(map(repr, rest))} came after the first", hint, ctx
            )
        return rest


class RequestCommand(TextCommand):
    """A command with `request_options`, made when they are needed: the help of a group only names the command."""

    _shown: list[click.Parameter]
    _are_made = False

    @property
    def params(self) -> list[click.Parameter]:
        """The parameters, arguments first."""
        if not self._are_made:
            self._are_made = True
            place = sum(isinstance(each, click.Argument) for each in self._shown)
            self._shown[place:place] = _make_options(*vars(self.callback)[_REQUEST_OPTIONS])
        return self._shown

    @params.setter
    def params(self, given: list[click.Parameter]) -> None:
        self._shown = given


class ContinueCommand(RequestCommand):
    """A command with the arguments `mission` and `text`; on a terminal it asks for one that is not given.

    A single argument that cannot be a mission is the text.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Complete the arguments, then run. Raises `click.MissingParameter` if no person can answer."""
        given, out = ctx.params, ctx.params["out"]
        if given["text"] is None:
            if given["mission"] is not None and _MISSION.fullmatch(given["mission"]) is None:
                given["mission"], given["text"] = None, given["mission"]
            missing = "mission" if given["mission"] is None else "text"
            if not out.can_ask or (missing == "mission" and _ELSEWHERE in ctx.meta):
                raise click.MissingParameter(ctx=ctx, param_hint=f"'{missing.upper()}'", param_type="argument")
            if given["mission"] is None:
                from chargehand.cli.terminal.picking import pick_mission

                given["mission"] = pick_mission()
            if given["text"] is None:
                given["text"] = click.prompt("What else should it do?", err=True)
        return super().invoke(ctx)


def _make_options(names: tuple[str, ...], helps: Mapping[str, str]) -> Iterator[click.Option]:
    from chargehand.configuration.run_options import run_options

    options = run_options()
    for name in names or options:
        option = options[name]
        shape: dict[str, Any] = {"metavar": option.metavar or None, "shell_complete": _COMPLETIONS.get(name)}
        if option.shape == "choice":
            shape["type"] = click.Choice(option.choices)
        elif option.shape == "path":
            shape["type"] = click.Path(path_type=Path)
        elif option.shape == "flag":
            shape["is_flag"] = True
        elif option.shape == "list":
            shape["multiple"] = True
        yield click.Option([option.flag, name], help=helps.get(name, option.help), **shape)
