"""The page of limits is current, and names every limit there is."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from chargehand.app.config.keys import section_keys
from chargehand.app.reference.limits import LIMITS, render_limits
from chargehand.missions.causes import load_causes
from chargehand.sandbox.contract import LimitName

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "limits.md"
NO_LIMITS = {
    # of [sandbox], what is no limit
    *("sandbox.tier", "sandbox.container_program", "sandbox.container_image", "sandbox.toolchain"),
    *("sandbox.network", "sandbox.network_checks", "sandbox.host_packages"),
}


def test_the_page_is_current() -> None:
    command = "python -m chargehand.app.reference.limits > docs/reference/limits.md"
    assert PAGE.read_text() == render_limits(), f"run: {command}"


def test_every_key_that_limits_a_sandbox_is_on_it() -> None:
    keys = [key for limit in LIMITS for key in limit.keys]
    assert len(keys) == len(set(keys))
    ours = {name for name in section_keys() if name.startswith("sandbox.")} - NO_LIMITS
    assert set(keys) == ours | {"limits.time", "limits.check_time"}


def test_every_limit_that_ends_something_is_on_it_and_has_a_remedy() -> None:
    named = {limit.name for limit in LIMITS if limit.name}
    assert named == {*get_args(LimitName), "disk"}
    codes = {code for remedy in load_causes().remedies for code in remedy.codes}
    assert named - {"wall_time"} <= codes
