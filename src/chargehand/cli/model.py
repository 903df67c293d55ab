"""`chargehand model`: the models that agents use, their prices and abilities, and whether they answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import CommandGroup, complete_names, json_option, repo_option

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output
    from chargehand.models.contract import Price

_FACTS = {
    "context": "context",
    "max_output": "longest reply",
    "tools": "tools",
    "streams": "streaming",
    "reasoning": "reasoning",
    "structured": "structured output",
    "embeddings": "embeddings",
    "gives": "output types",
    "released": "released",
}
_YES_NO = {True: "yes", False: "no", None: "not known"}


@click.group(cls=CommandGroup)
def model() -> None:
    """List the models that agents can use, and test them."""


@model.command("list")
@click.option("--all", "everything", is_flag=True, help="List every model of the catalogue, configured or not.")
@click.option("--provider", metavar="NAME", help="List one catalogue provider, such as openai.")
@repo_option
@json_option
def list_(repo: Path | None, everything: bool, provider: str | None, out: Output) -> None:
    """List the models you can use, their prices, and whether their key is set.

    With --all or --provider, list models of the shipped catalogue (models.dev) instead; nothing is downloaded.

    \b
    Example:
      chargehand model list --provider anthropic
    """

    if everything or provider is not None:
        from chargehand.app.models import list_catalogue

        found = list_catalogue(provider)
        out.document(found)
        out.table(
            ("PROVIDER", "MODEL", "CONTEXT", "TOOLS", "TAKES", "PRICE", "STATUS"),
            [
                (
                    each.provider,
                    each.model,
                    "unknown" if each.context is None else f"{each.context:,}",
                    _value(each.tools),
                    "unknown" if each.takes is None else " ".join(each.takes),
                    _full_price(each.price),
                    each.status or "",
                )
                for each in found.catalogue
            ],
        )
        out.text(f"{len(found.catalogue)} models, source: {found.catalogue[0].source}")
        return
    from chargehand.app.composition import App
    from chargehand.app.models import list_models

    with App.open() as app:
        listed = list_models(app, repo)
    out.document(listed)
    if not listed.models:
        out.text("No model is configured, and none was found on this machine.")
        out.text(
            "Run `chargehand model add` to set one up, or store a key: chargehand secret set ANTHROPIC_API_KEY"
        )
        return
    rows = []
    for each in listed.models:
        if each.price is None:
            price = "unknown"
        elif each.price.input == each.price.output == 0:
            price = f"free ({each.price.source})"
        else:
            usd = f"${each.price.input:g} in, ${each.price.output:g} out"
            price = f"{usd} per million tokens ({each.price.source})"
        rows.append((each.name, each.provider, each.model, price, each.key.where, each.origin))
    out.table(("NAME", "PROVIDER", "MODEL", "PRICE", "KEY", "FROM"), rows)


@model.command()
@json_option
def add(out: Output) -> int:
    """Set up a model for yourself: asks for provider, key and price, and tries it.

    The key is kept in the system's keyring, or in a file that only you can read.
    """
    from chargehand.app.composition import App
    from chargehand.app.onboarding import add_model
    from chargehand.cli.terminal.prompts import TerminalPrompts

    with App.open() as app:
        added = add_model(app, TerminalPrompts(out) if out.can_ask else None)
    if added is None:
        out.text("No model was added.")
        return 1
    out.document(added)
    out.text(f"added {added.model} to {added.path}")
    out.text('next:     chargehand run "TEXT"')
    return 0


@model.command()
@click.argument("name", shell_complete=complete_names("models"))
@repo_option
@json_option
def show(name: str, repo: Path | None, out: Output) -> None:
    """Show the known facts about a model: sizes, abilities, price, and the source of each value.

    NAME is an entry of [models] or a short form such as openai:gpt-5. Values without a source are shown as
    unknown, in JSON as null.

    \b
    Example:
      chargehand model show anthropic:claude-sonnet-4-5
    """
    from chargehand.app.composition import App
    from chargehand.app.models import show_model

    with App.open() as app:
        found = show_model(app, name, repo)
    out.document(found)
    out.text(f"{name}: {found.provider} {found.model}", bold=True)
    out.text(f"key: {found.key.where}")
    out.text()
    facts = [(name, getattr(found.facts, field)) for field, name in _FACTS.items()]
    facts += [(f"takes {kind}", fact) for kind, fact in found.facts.takes.items()]
    if found.facts.status.value is not None:
        facts.append(("status", found.facts.status))
    price = found.facts.price
    rows = [(name, _value(fact.value), fact.source or "") for name, fact in facts]
    out.table(("WHAT", "VALUE", "SOURCE"), [*rows, ("price", _full_price(price), price.source if price else "")])


def _value(value: object) -> str:
    match value:
        case None:
            return "unknown"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,} tokens"
        case tuple():
            return ", ".join(value) or "nothing"
    return str(value)


def _full_price(price: Price | None) -> str:
    if price is None:
        return "unknown"
    if price.input == price.output == 0:
        return "free"
    cache = ((price.cached, "cached"), (price.cache_write, "to the cache"))
    parts = [f"${price.input:g} in", f"${price.output:g} out", *(f"${usd:g} {what}" for usd, what in cache if usd)]
    return f"{', '.join(parts)} per million tokens"


@model.command()
@repo_option
@click.option("--all", "everywhere", is_flag=True, help="Count all projects, not this repository alone.")
@click.option("--since", metavar="WHEN", help="Only calls made since then: 7d, 12h, 30m, 2w or a date (UTC).")
@json_option
def stats(repo: Path | None, everywhere: bool, since: str | None, out: Output) -> None:
    """Show how models performed: calls, tokens, cost, errors, times, and verdicts on their attempts.

    Counts this repository's missions; outside a repository those of all projects. Unknown values are shown as
    unknown, never counted as 0.

    \b
    Example:
      chargehand model stats --all --since 7d
    """
    from chargehand.cli.stats import show_model_stats

    show_model_stats(out, repo=repo, everywhere=everywhere, since=since)


@model.command()
@repo_option
@click.option("--all", "everywhere", is_flag=True, help="Of all projects, not this repository alone.")
@click.option("--since", metavar="WHEN", help="Only calls made since then: 7d, 12h, 30m, 2w or a date (UTC).")
@json_option
def invoice(repo: Path | None, everywhere: bool, since: str | None, out: Output) -> None:
    """Write each call that a provider may charge for as CSV, to compare with the provider's own invoice.

    Empty fields are unknown. `booked_usd` is the amount that your limits count: the cost, or the reserved
    amount if the cost is unknown.

    \b
    Example:
      chargehand model invoice --all --since 2026-11-01 > calls.csv
    """
    import csv
    import io

    import msgspec

    from chargehand.reports.reading import StateReader
    from chargehand.reports.statistics import InvoiceLine, StatisticsRequest, model_invoice

    with StateReader.open() as reader:
        made = model_invoice(reader, StatisticsRequest(repo=repo, everywhere=everywhere, since=since))
    out.document(made)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(InvoiceLine.__struct_fields__)
    writer.writerows(msgspec.structs.astuple(line) for line in made.lines)
    for row in text.getvalue().splitlines():
        out.text(row)


@model.command()
@click.argument("name", required=False, shell_complete=complete_names("models"))
@click.option("--quick", is_flag=True, help="Only check that it answers and calls tools; store nothing.")
@repo_option
@json_option
def probe(name: str | None, quick: bool, repo: Path | None, out: Output) -> int:
    """Call a model with a few tokens and one tool; without NAME, every model that `model list` shows.

    A model that answers gets four more calls: a stream, an image, an embedding and a reply cut at its limit. The
    results are stored with the date and used by `model show` and every later mission.

    NAME is an entry of [models] or a short form such as ollama:qwen3:8b. Exits 1 if any model fails.
    """
    from chargehand.app.composition import App
    from chargehand.app.models import describe_probe, probe_models
    from chargehand.cli.terminal.interrupt import run_loop

    with App.open() as app:
        probing = probe_models(app, name, repo, quick=quick, asking=lambda each: out.notice(f"asking {each} …"))
        probes = run_loop(lambda: probing)
    out.document(probes)
    if not probes.models:
        out.text("No model is configured, and none was found. Run `chargehand model add` to set one up.")
        return 1
    for each in probes.models:
        out.text(describe_probe(each))
        if each.warning is not None:
            out.text(f"  its key is weakly protected: {each.warning}")
        if each.abilities is not None:
            tried = {
                "streaming": each.abilities.streams,
                "images": each.abilities.images,
                "embeddings": each.abilities.embeddings,
                "respects the output limit": each.abilities.output_kept,
            }
            out.text("  " + ", ".join(f"{name}: {_YES_NO[able]}" for name, able in tried.items()))
    return 0 if all(each.fine for each in probes.models) else 1
