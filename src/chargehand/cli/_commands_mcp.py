"""`chargehand mcp`, as it is declared."""

from __future__ import annotations

from pathlib import Path

import click

from chargehand.cli.options import json_option, repo_option


@click.command()
@click.option("--http", metavar="HOST:PORT", help="Serve over HTTP at this loopback address (port 0: any).")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where the token of --http is kept, made there where it is not (default: mcp/token of the state).",
)
@repo_option
@json_option
def mcp(http: str | None, token_file: Path | None, repo: Path | None, as_json: bool) -> int:
    """Let other agents and orchestrators run missions here, by the Model Context Protocol.

    On stdin and stdout until they close; with --http until a signal. A client may do what you may, but can grant
    no trust. Missions run in a worker in the background and outlive the server.

    \b
    Example:
      chargehand mcp --http 127.0.0.1:8765
    """
    from chargehand.cli._mcp import serve
    from chargehand.cli.output import Output

    return serve(Output(as_json=as_json), http=http, token_file=token_file, repo=repo)
