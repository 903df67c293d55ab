"""`chargehand gateway`: models, scripts and recordings behind one local endpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chargehand.cli.terminal.options import CommandGroup, json_option

if TYPE_CHECKING:
    from chargehand.app.gateways import GatewayEvent
    from chargehand.cli.terminal.interrupt import Stop
    from chargehand.cli.terminal.output import Output

_F = TypeVar("_F", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path, dir_okay=False)


def _serving_options(function: _F) -> _F:
    """Add the options that every gateway takes."""
    for option in (
        click.option(
            "--budget", type=click.FloatRange(min=0), metavar="USD", help="Spend at most this much on calls."
        ),
        click.option("--faults", metavar="SPEC", help="Inject faults, such as 429/7@2,cut@4 or 500%0.1."),
        click.option(
            "--listen",
            metavar="HOST:PORT",
            default="127.0.0.1:0",
            show_default=True,
            help="The loopback address to listen on; port 0 picks a free one.",
        ),
        click.option(
            "--model", "models", multiple=True, metavar="NAME", help="Serve this model (may be repeated)."
        ),
    ):
        function = option(function)
    return function


@click.group(cls=CommandGroup)
def gateway() -> None:
    """Serve models to any program: live, recorded, or from a script.

    Works with programs that speak OpenAI chat completions or Anthropic messages; the providers' keys stay here.
    """


@gateway.command()
@_serving_options
@click.option("--script", type=_FILE, metavar="FILE", help="Answer from a script instead of a provider.")
@click.option("--replay", type=_FILE, metavar="FILE", help="Answer from a recording instead of a provider.")
@click.option("--record", type=_FILE, metavar="FILE", help="Append every exchange to a recording.")
@json_option
def serve(out: Output, **options: Any) -> None:
    """Serve the configured models until Ctrl-C, and show the cost of each call.

    Without --model all of them are served, and calls may cost up to limits.budget_usd.

    \b
    Example:
      chargehand gateway serve --script replies.jsonl --faults 429@1
    """
    run_gateway(out, options)


@gateway.command()
@click.argument("record", metavar="FILE", type=_FILE)
@_serving_options
@click.option("--script", type=_FILE, metavar="SCRIPT", help="Answer from a script instead of a provider.")
@json_option
def record(out: Output, **options: Any) -> None:
    """Serve models and append every exchange to a recording, without keys and secrets.

    \b
    Example:
      chargehand gateway record session.jsonl --model gpt
    """
    run_gateway(out, options)


@gateway.command()
@click.argument("replay", metavar="FILE", type=_FILE)
@_serving_options
@click.option("--lenient", is_flag=True, help="Answer by turn even if a call differs from the recorded one.")
@json_option
def replay(out: Output, **options: Any) -> None:
    """Serve a recording: the same calls get the same replies.

    A call that differs from the recorded one gets HTTP 409, which names the first difference.

    \b
    Example:
      chargehand gateway replay session.jsonl
    """
    run_gateway(out, options)


def run_gateway(out: Output, options: dict[str, Any]) -> None:
    """Serve until a signal arrives, which is a normal end."""
    import asyncio

    from chargehand.app.composition import App
    from chargehand.app.gateways import GatewayOptions, check_options, serve_gateway
    from chargehand.cli.terminal.interrupt import run_async
    from chargehand.cli.terminal.logs import set_up_logs

    set_up_logs()
    wanted = GatewayOptions(**options)
    check_options(wanted)

    async def work(stop: Stop) -> None:
        ended = asyncio.Event()

        def end() -> bool:
            ended.set()
            return True

        # Without this a signal would cancel the work and exit with 130, although it is a gateway's normal end.
        stop.end = end
        await serve_gateway(app, wanted, tell=lambda event: _show(out, event), ended=ended)

    with App.open() as app:
        run_async(work)


def _show(out: Output, event: GatewayEvent) -> None:
    from chargehand.app.gateways import GatewayAddress, GatewayAlert, GatewayCall, GatewayNotice
    from chargehand.reports.story import alert_text

    if isinstance(event, GatewayNotice):
        out.notice(event.notice)
        return
    out.document(event)
    if isinstance(event, GatewayAddress):
        budget = "unlimited" if event.budget_usd is None else f"{event.budget_usd:g} USD"
        out.text(f"OpenAI     {event.openai_base_url}")
        out.text(f"Anthropic  {event.anthropic_base_url}")
        out.text(f"Gemini     {event.gemini_base_url}")
        out.text(f"token      {event.token}")
        # A model served by several upstreams is listed once for each.
        out.text(f"models     {', '.join(dict.fromkeys(model.name for model in event.models))}")
        out.text(f"budget     {budget}")
        if event.recording is not None:
            out.text(f"recording  {event.recording}")
        out.text()
    elif isinstance(event, GatewayCall):
        tokens = " ".join(
            f"{'unknown' if count is None else count} {way}"
            for count, way in ((event.input_tokens, "in"), (event.output_tokens, "out"))
        )
        cost = "cost unknown" if event.cost_usd is None else f"{event.cost_usd:.6f} USD"
        status = f"{event.status} {event.http_status}"
        why = f"  {event.reason}" if event.reason else ""
        out.text(f"{event.turn:>4}  {event.model}  {status}  {tokens}  {cost}  {event.seconds:.1f} s{why}")
    elif isinstance(event, GatewayAlert):
        out.text(f"      {alert_text(event.alert)}")
    else:
        out.text(f"      {event.divergence}")
