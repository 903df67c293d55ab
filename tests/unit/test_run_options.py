"""An option of a run is declared once: command line, REST, MCP and the configuration take it from there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import click
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from chargehand.cli.terminal.options import RequestCommand, request_options
from chargehand.configuration import run_options as options
from chargehand.configuration.client_options import client_arguments, read_client
from chargehand.configuration.keys import section_keys
from chargehand.configuration.run_options import RunRequest
from chargehand.core.codec import json_schema
from chargehand.core.records import RedBase
from chargehand.mcp._tools import TOOLS
from chargehand.server.openapi import ROUTES


@dataclass(frozen=True, kw_only=True, slots=True)
class Wished(RunRequest):
    """The record with one more field: the only change for one more option."""

    haste: str | None = options._option(
        None, "--haste", "How fast.", metavar="N", key="limits.time", clients=("rest", "mcp"), takes="count"
    )


class Common(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments that are no options."""

    request: str


@pytest.fixture
def wished(monkeypatch: pytest.MonkeyPatch) -> None:
    known = options.run_options
    monkeypatch.setattr(options, "run_options", lambda request=Wished: known(request))
    monkeypatch.setattr(options, "RunRequest", Wished)


@pytest.mark.usefixtures("wished")
def test_one_field_is_an_option_of_the_command_line() -> None:
    @click.command(cls=RequestCommand)
    @request_options()
    def command(**given: object) -> None:
        click.echo(json.dumps(given["haste"]))

    from click.testing import CliRunner

    done = CliRunner().invoke(command, ["--haste", "9"])
    assert done.output == '"9"\n'
    assert "--haste N" in CliRunner().invoke(command, ["--help"]).output


@pytest.mark.usefixtures("wished")
@pytest.mark.parametrize("via", ["rest", "mcp"])
def test_one_field_is_an_argument_of_clients(via: options.Client) -> None:
    takes = client_arguments(Common, via)
    schema = json_schema(takes)[1]["Common"]["properties"]["haste"]
    assert schema["description"] == "How fast."
    asked = read_client(msgspec.convert({"request": "x", "haste": 9}, takes), text="x", repo=None)
    assert isinstance(asked, Wished)
    assert asked.haste == "9"
    assert asked.configuration()["limits.time"].name == "--haste"


@pytest.mark.parametrize("via", ["rest", "mcp"])
def test_the_interfaces_offer_the_options_of_the_record(via: options.Client) -> None:
    offered = {name for name, option in options.run_options().items() if via in option.clients}
    route = next(each for each in ROUTES if each.name == "post_missions")
    tool = next(each for each in TOOLS if each.name == "run_mission")
    takes = route.takes if via == "rest" else tool.takes
    own = {"request", "repo", "key"}
    assert {field.name for field in msgspec.structs.fields(takes)} == offered | own


def test_an_option_is_for_clients_or_says_why_not_or_concerns_only_a_terminal() -> None:
    for name, option in options.run_options().items():
        assert option.flag.startswith("--")
        assert option.help.endswith((".", ")."))
        assert bool(option.clients) + bool(option.withheld) == (name not in ("file", "repo", "detach", "yes"))


def test_choices_are_those_of_the_record() -> None:
    assert set(options.run_options()["red_base"].choices) == set(get_args(RedBase))


def test_options_set_known_keys() -> None:
    keys = {option.key for option in options.run_options().values() if option.key}
    assert keys - {"only_checks"} <= set(section_keys())
    assert RunRequest(time="9s").configuration()["limits.time"].value == "9s"


@given(
    budget=st.floats(0.01, 1e6),
    attempts=st.integers(1, 100),
    checks=st.lists(st.text("ab", min_size=1)),
    stops=st.lists(st.sampled_from(("plan", "promote", "step"))),
)
def test_a_clients_arguments_mean_what_a_person_would_write(
    budget: float, attempts: int, checks: list[str], stops: list[str]
) -> None:
    takes = client_arguments(Common, "rest")
    sent = {"request": "x", "budget": budget, "attempts": attempts, "checks": checks, "break_at": stops}
    asked = read_client(msgspec.convert(sent, takes), text="x", repo=Path("/r"))
    assert float(asked.budget or "") == budget
    assert asked.attempts == str(attempts)
    assert asked.checks == tuple(checks)
    assert (asked.break_at or "").split(",") == (stops or [""])
    assert (asked.text, asked.repo, asked.yes, asked.interactive) == ("x", Path("/r"), True, False)
