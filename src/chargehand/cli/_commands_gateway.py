"""`chargehand gateway …`, as it is declared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from chargehand.cli.options import json_option

_F = TypeVar("_F", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path, dir_okay=False)


def _serving_options(function: _F) -> _F:
    """Add what every gateway takes."""
    for option in (
        click.option(
            "--budget", type=click.FloatRange(min=0), metavar="USD", help="Let calls cost at most this much."
        ),
        click.option("--faults", metavar="SPEC", help="Fail on purpose, such as 429/7@2,cut@4 or 500%0.1."),
        click.option(
            "--listen",
            metavar="HOST:PORT",
            default="127.0.0.1:0",
            show_default=True,
            help="The loopback address to listen on; port 0 takes a free one.",
        ),
        click.option(
            "--model", "models", multiple=True, metavar="NAME", help="Serve this model (may be repeated)."
        ),
    ):
        function = option(function)
    return function


@click.group()
def gateway() -> None:
    """Serve models to any program, recorded or from a file.

    Programs that speak OpenAI chat completions or Anthropic messages work with it; the providers' keys stay here.
    """


@gateway.command()
@_serving_options
@click.option("--script", type=_FILE, metavar="FILE", help="Answer from a script instead of a provider.")
@click.option("--replay", type=_FILE, metavar="FILE", help="Answer from a recording instead of a provider.")
@click.option("--record", type=_FILE, metavar="FILE", help="Append every exchange to a recording.")
@json_option
def serve(as_json: bool, **options: Any) -> int:
    """Serve the configured models until Ctrl-C, and say what each call cost.

    Without --model all of them are served, and calls may cost what limits.budget_usd says.

    \b
    Example:
      chargehand gateway serve --script replies.jsonl --faults 429@1
    """
    return _run(as_json, options)


@gateway.command()
@click.argument("record", metavar="FILE", type=_FILE)
@_serving_options
@click.option("--script", type=_FILE, metavar="SCRIPT", help="Answer from a script instead of a provider.")
@json_option
def record(as_json: bool, **options: Any) -> int:
    """Serve models and append every exchange to a recording, without keys and secrets.

    \b
    Example:
      chargehand gateway record session.jsonl --model gpt
    """
    return _run(as_json, options)


@gateway.command()
@click.argument("replay", metavar="FILE", type=_FILE)
@_serving_options
@click.option("--lenient", is_flag=True, help="Answer by turn even where a call is not the recorded one.")
@json_option
def replay(as_json: bool, **options: Any) -> int:
    """Serve a recording: the same replies as long as the calls are the same.

    A call that is not the recorded one gets HTTP 409, which names the first difference.

    \b
    Example:
      chargehand gateway replay session.jsonl
    """
    return _run(as_json, options)


def _run(as_json: bool, options: dict[str, Any]) -> int:
    from chargehand.cli._gateway import GatewayOptions, serve_gateway
    from chargehand.cli.output import Output

    return serve_gateway(Output(as_json=as_json), GatewayOptions(**options))
