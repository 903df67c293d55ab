"""`chargehand mcp` and `chargehand up`: start the MCP server and the web server; `chargehand alerts`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chargehand.cli.terminal.options import CommandGroup, json_option, repo_option

if TYPE_CHECKING:
    from chargehand.cli.terminal.interrupt import Stop
    from chargehand.cli.terminal.output import Output


@click.command()
@click.option("--http", metavar="HOST:PORT", help="Serve over HTTP at this loopback address (port 0: any free).")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file of the token for --http, created if missing (default: mcp/token of the state directory).",
)
@repo_option
@json_option
def mcp(http: str | None, token_file: Path | None, repo: Path | None, out: Output) -> None:
    """Let other agents and orchestrators run missions here, over the Model Context Protocol.

    Serves stdin and stdout until they close; with --http, until a signal. A client may do what you may, but cannot
    grant trust. Missions run in a background worker and outlive the server.

    \b
    Example:
      chargehand mcp --http 127.0.0.1:8765
    """
    import asyncio
    import contextlib
    import logging
    import os

    from chargehand.cli.terminal.failures import keep_traceback
    from chargehand.cli.terminal.interrupt import run_async
    from chargehand.cli.terminal.logs import set_up_logs
    from chargehand.configuration.extras import require_extra

    require_extra("mcp")
    from chargehand.mcp.server import mission_server, server_directory
    from chargehand.reports.reading import state_home

    # The SDK logs clients' input, even lines that are not messages: that stays out of stderr.
    set_up_logs()
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    opened = mission_server(environ=os.environ, cwd=server_directory(repo), keep_traceback=keep_traceback)
    if http is None:
        from chargehand.mcp.stdio import serve_stdio

        async def serve_lines(stop: Stop) -> None:
            async with opened as server:
                serving = asyncio.create_task(serve_stdio(server))
                # Only the inner task: the exit of `opened`, which interrupts promotions in good order, must run.
                stop.end = serving.cancel
                with contextlib.suppress(asyncio.CancelledError):
                    await serving

        run_async(serve_lines)
        return
    from chargehand.mcp.http import bound, parsed_address, serve_http, token_of, url_of

    # All errors in the request are found before anything is served.
    address = parsed_address(http)
    place = token_file or state_home(os.environ) / "mcp" / "token"
    token = token_of(place)
    with contextlib.closing(bound(address)) as listening:

        def announce() -> None:
            url = url_of(listening)
            out.document({"url": url, "token_file": str(place)})
            out.text(f"serving   {url}")
            out.text(f"token     in {place}; clients send it as Authorization: Bearer TOKEN")

        async def serve_requests(stop: Stop) -> None:
            async with opened as server:
                await serve_http(server, listening, token=token, stop=stop, announce=announce)

        run_async(serve_requests)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8642, show_default=True, help="The port; 0 for any free one."
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="Also answer to this host name, as a proxy passes it on.",
)
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Trust X-Forwarded-For from the proxy at this address.",
)
@click.option("--link", is_flag=True, help="Only print a new login link of the server that runs there already.")
@click.option("--no-worker", is_flag=True, help="Run the server without a worker.")
@click.option("--slots", type=click.IntRange(1, 64), default=5, show_default=True, help="Missions at once.")
@json_option
def up(out: Output, *, host: str, port: int, link: bool, no_worker: bool, **options: Any) -> None:
    """Start the dashboard, its API and a worker on this machine, until a signal.

    A repository that you start it in becomes one of its projects. Prints a link that logs you in once. To serve
    beyond loopback, add accounts (chargehand user add) and run a TLS proxy in front.

    \b
    Example:
      chargehand up
    """
    import contextlib
    import os

    from chargehand.app.composition import App
    from chargehand.cli.terminal.failures import keep_traceback
    from chargehand.cli.terminal.interrupt import run_async
    from chargehand.cli.terminal.logs import set_up_logs
    from chargehand.configuration.extras import require_extra
    from chargehand.core.errors import RepositoryError
    from chargehand.identity.accounts import create_login_code
    from chargehand.reports.reading import working_directory

    require_extra("server")
    from chargehand.server.serving import ServeOptions, open_server, serve, url_at

    asked = ServeOptions(host=host, port=port, worker=not no_worker, **options)

    def show_link(app: App, url: str, more: str = "") -> None:
        login = f"{url}/login#{create_login_code(app).secret}"
        out.document({"url": url, "login": login})
        out.text(f"dashboard  {login}")
        out.text(f"           The link logs you in once, within 10 minutes.{more}")

    if link:
        with App.open() as app:
            show_link(app, url_at(host, port))
        return
    with App.open() as app, contextlib.closing(open_server(app, asked)) as listening:
        set_up_logs()
        # So that the page can start a mission in it; outside a repository there is nothing to register.
        with contextlib.suppress(RepositoryError):
            app.preparation.register_project()

        def announce() -> None:
            show_link(app, url_at(*listening.getsockname()[:2]), " Ctrl-C stops the server.")

        run_async(
            lambda stop: serve(
                asked,
                listening,
                environ=os.environ,
                cwd=working_directory(),
                on_signal=lambda end: setattr(stop, "end", end),
                announce=announce,
                keep_traceback=keep_traceback,
            )
        )


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--prometheus", is_flag=True, help="Print them as rules of Prometheus, with your thresholds.")
@json_option
@click.pass_context
def alerts(context: click.Context, prometheus: bool, out: Output) -> None:
    """Show which thresholds are crossed, and test the channels for notices.

    `chargehand up` watches slow checkpoints and validations, missions that fail by engine failures, disk, memory,
    breakers, and the budget of the day. [alerts] in your configuration sets thresholds and channels.

    \b
    Example:
      chargehand alerts
      chargehand alerts test
    """
    from chargehand.reports.reading import StateReader
    from chargehand.reports.statistics import alert_rules

    if prometheus:
        with StateReader.open() as reader:
            rules = alert_rules(reader)
        out.document({"rules": rules})
        out.text(rules.removesuffix("\n"))
    elif context.invoked_subcommand is None:
        _show_alerts(out)
    elif out.as_json:  # `alerts --json test`: the group's option also applies to the command
        context.find_root().params["as_json"] = True


@alerts.command("list")
@json_option
def list_(out: Output) -> None:
    """List the raised alerts, and those that have ended."""
    _show_alerts(out)


@alerts.command("test")
@json_option
def test_(out: Output) -> int:
    """Send a trial notice through each channel that [alerts] names.

    Exits 1 if one fails.
    """
    from chargehand.reports.reading import StateReader
    from chargehand.reports.statistics import try_channels

    with StateReader.open() as reader:
        tried = try_channels(reader)
    out.document(tried)
    if not tried.channels:
        out.text("No way for notices is configured. Set one: chargehand config set alerts.webhook URL")
    for channel in tried.channels:
        out.text(f"{channel.channel:10} {channel.problem or 'sent'}")
    return int(any(channel.problem is not None for channel in tried.channels))


def _show_alerts(out: Output) -> None:
    from chargehand.cli.terminal.output import local_time
    from chargehand.reports.reading import StateReader
    from chargehand.reports.statistics import list_alerts

    with StateReader.open() as reader:
        found = list_alerts(reader)
    out.document(found)
    if not found.watched:
        since = "yet" if found.looked is None else f"since {local_time(found.looked)}"
        out.text(f"Not checked {since}: alerts are raised while `chargehand up` runs.")
    if found.raised or found.ended:
        rows = [(local_time(each.raised), "raised", each.count, each.text) for each in found.raised]
        rows += [
            (local_time(each.raised), f"until {local_time(each.ended)}", each.count, each.text)
            for each in found.ended
            if each.ended is not None
        ]
        out.table(("SINCE", "STATE", "TIMES", "WHAT"), rows)
    elif found.watched:
        out.text("No alert is raised now, or was before.")
    for channel in found.channels:
        if channel.problem is not None:
            out.text(f"Notices by {channel.channel} do not arrive: {channel.problem}")
