"""Defaults that follow from the machine, and can never use it up."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.app.config.resolve import resolve
from chargehand.app.wiring.profile import MachineSize, profile_for, read_machine
from chargehand.core.config import EngineConfig, SandboxConfig


@given(st.integers(1024, 4 << 20), st.integers(1, 256))
def test_what_may_run_at_once_never_takes_more_than_there_is(memory: int, cores: int) -> None:
    profile = profile_for(MachineSize(memory_mb=memory, cores=cores))
    assert profile.fits
    assert profile.most_mb <= 0.8 * memory
    assert 1 <= profile.attempts_at_once <= EngineConfig().attempts_at_once
    assert 1 <= profile.checks_at_once <= cores
    assert 256 <= profile.memory_mb <= SandboxConfig().memory_mb
    assert 32 <= profile.tmp_mb <= SandboxConfig().tmp_mb


def test_a_machine_that_is_too_small_is_said_to_be() -> None:
    tiny = profile_for(MachineSize(memory_mb=512, cores=1))
    assert not tiny.fits
    assert (tiny.attempts_at_once, tiny.checks_at_once) == (1, 1)


def test_more_memory_never_gives_less() -> None:
    made = [profile_for(MachineSize(memory_mb=size, cores=4)) for size in range(1024, 131_072, 512)]
    at_once = [each.attempts_at_once for each in made]
    assert at_once == sorted(at_once)
    assert made[-1].said() == {}, "the product's own defaults, where there is room for them"
    assert {each.name for each in made} == {"small", "medium", "large"}


def machine(place: Path, lines: str, limits: dict[str, str]) -> tuple[Path, Path]:
    proc, groups = place / "proc", place / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:       16777216 kB\nMemFree: 1 kB\n")
    (proc / "self/cgroup").write_text(lines)
    for name, value in limits.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(value)
    return proc, groups


@pytest.mark.parametrize(
    ("lines", "limits", "memory", "grouped"),
    [
        ("0::/\n", {}, 16_384, False),
        ("0::/user/mine\n", {"user/mine/memory.max": "max\n"}, 16_384, False),
        ("0::/user/mine\n", {"user/mine/memory.max": "1073741824\n"}, 1024, True),
        ("0::/user/mine\n", {"user/memory.max": "2147483648\n", "user/mine/memory.max": "max\n"}, 2048, True),
        ("4:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "536870912\n"}, 512, True),
        ("4:memory:/a\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 16_384, False),
    ],
)
def test_a_control_group_above_us_counts(
    tmp_path: Path, lines: str, limits: dict[str, str], memory: int, grouped: bool
) -> None:
    proc, groups = machine(tmp_path, lines, limits)
    seen = read_machine(proc=proc, groups=groups)
    assert (seen.memory_mb, seen.grouped) == (memory, grouped)


def test_this_machine_can_be_read() -> None:
    seen = read_machine()
    assert seen.memory_mb > 256
    assert seen.cores >= 1


def test_it_stands_below_everything_that_anybody_said() -> None:
    profile = profile_for(MachineSize(memory_mb=4096, cores=2))
    plain = resolve(machine=profile.said())
    assert plain.config.sandbox.memory_mb == profile.memory_mb < SandboxConfig().memory_mb
    assert plain.config.engine.attempts_at_once == profile.attempts_at_once
    assert plain.origins["sandbox.memory_mb"] == profile.origin == "profile small: 4096 MiB, 2 processors"
    said = resolve(machine=profile.said(), environ={"CHARGEHAND_SANDBOX_MEMORY_MB": "3000"})
    assert said.config.sandbox.memory_mb == 3000
    assert said.origins["sandbox.memory_mb"] == "environment CHARGEHAND_SANDBOX_MEMORY_MB"


def test_a_persons_word_for_all_sandboxes_is_the_budget() -> None:
    roomy, tight = (profile_for(MachineSize(memory_mb=65_536, cores=4), budget_mb=size) for size in (60_000, 3000))
    assert tight.most_mb <= 3000 < roomy.most_mb
