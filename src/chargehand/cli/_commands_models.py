"""`chargehand model …`, as it is declared."""

from __future__ import annotations

from pathlib import Path

import click

from chargehand.cli._options import json_option, repo_option


@click.group()
def model() -> None:
    """Look at the models that agents work with, and try them."""


@model.command("list")
@repo_option
@json_option
def list_models(repo: Path | None, as_json: bool) -> int:
    """List the models that can be used, what they cost, and whether their key is there."""
    from chargehand.cli._models import list_models
    from chargehand.cli._output import Output

    return list_models(Output(as_json=as_json), repo=repo)


@model.command("probe")
@click.argument("name", required=False)
@repo_option
@json_option
def probe_models(name: str | None, repo: Path | None, as_json: bool) -> int:
    """Ask a model once for real, with a few tokens and one tool; without NAME every one that is listed.

    NAME is an entry of [models] or a short form, such as ollama:qwen3:8b. The exit code is 1 unless all is well.
    """
    from chargehand.cli._models import probe_models
    from chargehand.cli._output import Output

    return probe_models(Output(as_json=as_json), name, repo=repo)
