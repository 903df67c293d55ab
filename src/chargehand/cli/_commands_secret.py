"""`chargehand secret …`, as it is declared."""

from __future__ import annotations

import click

from chargehand.cli.options import json_option


@click.group()
def secret() -> None:
    """Keep the keys of model providers, on this machine and out of every sandbox."""


@secret.command("set")
@click.argument("name")
@json_option
def set_secret(name: str, as_json: bool) -> int:
    """Keep a secret in the system's keyring, or where there is none in a file for you alone.

    It is asked for, or read from stdin where no terminal is; it is no argument, for others see those.

    \b
    Example:
      chargehand secret set OPENAI_API_KEY < key.txt
    """
    from chargehand.cli._secret import keep_secret
    from chargehand.cli.output import Output

    return keep_secret(Output(as_json=as_json), name)


@secret.command("list")
@json_option
def list_secrets(as_json: bool) -> int:
    """List the secrets that are kept and where each comes from, never what they are."""
    from chargehand.cli._secret import show_secrets
    from chargehand.cli.output import Output

    return show_secrets(Output(as_json=as_json))


@secret.command("remove")
@click.argument("name")
@json_option
def remove_secret(name: str, as_json: bool) -> int:
    """Forget a secret."""
    from chargehand.cli._secret import forget_secret
    from chargehand.cli.output import Output

    return forget_secret(Output(as_json=as_json), name)
