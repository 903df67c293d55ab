"""A command that a server runs: its route and arguments, from the table of commands and routes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from chargehand.cli.remote.connection import RemoteAnswer, ServerConnection
from chargehand.core.errors import UsageError
from chargehand.operations.commands import call_arguments, find_call, known_operations

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output

_PAGE = 500


class RemoteRequest:
    """One command: its `parameters`, the names of the `given` ones, and the resulting route and arguments."""

    def __init__(
        self,
        connection: ServerConnection,
        command: str,
        parameters: Mapping[str, Any],
        given: Collection[str],
        out: Output,
    ) -> None:
        self.connection, self.command, self.parameters, self.out = connection, command, parameters, out
        self.route, call = find_call(command, given)
        self.arguments, untaken = call_arguments(self.route, call, parameters, for_person=not out.as_json)
        self._own = set(untaken) & set(given)

    def ask(self, **more: Any) -> RemoteAnswer:
        """Call the command's route and return the answer; `more` are arguments computed from the parameters.

        Raises `UsageError` (`option_local`; `project_needed`), and the errors of `ServerConnection.call`.
        """
        self._check(more)
        arguments = self.arguments | {name: value for name, value in more.items() if value is not None}
        return self.connection.call(self.route, arguments)

    def ask_route(self, name: str, **arguments: Any) -> RemoteAnswer:
        """Call another route and return its answer."""
        return self.connection.call(known_operations()[name], arguments)

    def stream(self) -> Iterator[bytes]:
        """Return the answer piece by piece."""
        self._check(())
        return self.connection.stream(self.route, self.arguments)

    def pages(self) -> Iterator[dict[str, Any]]:
        """Yield all pages; the last one has no `next`."""
        place: int | None = 0
        while place is not None:
            page = self.ask(after=place, limit=_PAGE).document
            yield page
            place = page["next"]

    def _check(self, worked_out: Collection[str]) -> None:
        own = sorted(self._own - set(worked_out))
        if own:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in own)
            raise UsageError(
                f"`chargehand {self.command}` on a server does not accept {options}",
                code="option_local",
                hint="leave it out, or run the command on the server's machine",
            )
        if "project" in self.route.path_names and "project" not in self.arguments:
            raise UsageError(
                "a server is not in a repository: which project do you mean?",
                code="project_needed",
                hint="name it: --repo PROJECT, as `chargehand project list` shows it",
            )
