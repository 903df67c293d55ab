"""`chargehand model …`, as it is declared."""

from __future__ import annotations

from pathlib import Path

import click

from chargehand.cli.options import json_option, repo_option


@click.group()
def model() -> None:
    """Look at the models that agents work with, and try them."""


@model.command("list")
@click.option("--all", "everything", is_flag=True, help="All models of the catalogue, configured or not.")
@click.option("--provider", metavar="NAME", help="The models of one provider of the catalogue, such as openai.")
@repo_option
@json_option
def list_models(repo: Path | None, everything: bool, provider: str | None, as_json: bool) -> int:
    """List the models that can be used, what they cost, and whether their key is there.

    With --all or --provider those of the catalogue, as models.dev has them; nothing is fetched.

    \b
    Example:
      chargehand model list --provider anthropic
    """
    from chargehand.cli._models import list_models
    from chargehand.cli.output import Output

    return list_models(Output(as_json=as_json), repo=repo, everything=everything, provider=provider)


@model.command("show")
@click.argument("name")
@repo_option
@json_option
def show_model(name: str, repo: Path | None, as_json: bool) -> int:
    """Show what is known of a model: sizes, abilities, price, and who says so.

    NAME is an entry of [models] or a short form, such as openai:gpt-5. What nobody knows is unknown, in JSON null.

    \b
    Example:
      chargehand model show anthropic:claude-sonnet-4-5
    """
    from chargehand.cli._models import show_model
    from chargehand.cli.output import Output

    return show_model(Output(as_json=as_json), name, repo=repo)


@model.command("stats")
@repo_option
@click.option("--all", "everywhere", is_flag=True, help="Of all projects, not of this repository alone.")
@click.option("--since", metavar="WHEN", help="Only calls made since then: 7d, 12h, 30m, 2w or a date (UTC).")
@json_option
def model_stats(repo: Path | None, everywhere: bool, since: str | None, as_json: bool) -> int:
    """Show how models did: calls, tokens, cost, errors, times, and what their attempts came to.

    Of the repository one is in, outside of any of all projects. What is not known is said so, never counted as 0.

    \b
    Example:
      chargehand model stats --all --since 7d
    """
    from chargehand.cli.output import Output
    from chargehand.cli.stats import show_model_stats

    return show_model_stats(Output(as_json=as_json), repo=repo, everywhere=everywhere, since=since)


@model.command("probe")
@click.argument("name", required=False)
@click.option("--quick", is_flag=True, help="Only whether it answers and calls tools; nothing is kept.")
@repo_option
@json_option
def probe_models(name: str | None, quick: bool, repo: Path | None, as_json: bool) -> int:
    """Ask a model for real, with a few tokens and one tool; without NAME every one that is listed.

    One that answers is asked four times more, for a stream, a picture, an embedding and a short reply. What it can
    do is kept with the day, and `model show` and every later call go by it.

    NAME is an entry of [models] or a short form, such as ollama:qwen3:8b. The exit code is 1 unless all is well.
    """
    from chargehand.cli._models import probe_models
    from chargehand.cli.output import Output

    return probe_models(Output(as_json=as_json), name, repo=repo, quick=quick)
