"""Choices that are made for this machine and kept on it: defaults, the driver, and what missions still need."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workspace_kit import cloning_disk

from chargehand.app.wiring.tiers import _machine, choose_driver
from chargehand.configuration.resolve import resolve
from chargehand.core.config import EngineConfig, SandboxConfig
from chargehand.core.ids import new_id
from chargehand.core.records import Base, MissionStatus
from chargehand.core.state import AttemptState, MissionState
from chargehand.missions.sandboxes.provisioning import workspace_prefix
from chargehand.reports.disk import StillNeeded, mission_of
from chargehand.reports.state.profile import MachineSize, profile_for, read_machine
from chargehand.sandbox.toolchain import Toolchain, discover


@given(st.integers(1024, 4 << 20), st.integers(1, 256))
def test_a_profile_never_exceeds_the_size_of_the_machine(memory: int, cores: int) -> None:
    profile = profile_for(MachineSize(memory_mb=memory, cores=cores))
    assert profile.fits
    assert profile.most_mb <= 0.8 * memory
    assert 1 <= profile.attempts_at_once <= EngineConfig().attempts_at_once
    assert 1 <= profile.checks_at_once <= cores
    assert 256 <= profile.memory_mb <= SandboxConfig().memory_mb
    assert 32 <= profile.tmp_mb <= SandboxConfig().tmp_mb


def test_a_profile_reports_too_small_a_machine() -> None:
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


def test_any_setting_overrides_the_machine_profile() -> None:
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


ROOT = Path("/state/projects/p-1")
COMMIT = "c" * 40
CREATED = "2026-01-01T00:00:00+00:00"
CREATED_SECONDS = 1767225600.0


def state(status: MissionStatus) -> MissionState:
    base = Base(commit=COMMIT, tree="t" * 40, branch="main", revision="HEAD")
    attempt = AttemptState(id="a-1", number=1, agent="a", workspace="w-odd")
    return MissionState(
        id="m-aaaaaaaaaaaaaa", project="p-1", status=status, base=base, attempts=[attempt], created=CREATED
    )


@pytest.mark.parametrize("status", ["planned", "running", "waiting", "paused"])
def test_an_open_mission_needs_its_workspaces_base_and_layer(status: MissionStatus) -> None:
    needed = StillNeeded([state(status)])
    for purpose in ("setup-0", "checks-3", "attempt-1-2"):
        assert needed(ROOT, "workspace", f"w-aaaaaaaaaaaaaa-{purpose}", 0.0) is True
    assert needed(ROOT, "workspace", "w-odd", 0.0) is True, "as its log names it"
    assert needed(ROOT, "base", COMMIT, 0.0) is True
    assert needed(ROOT, "layer", "key", CREATED_SECONDS + 1) is True


@pytest.mark.parametrize("status", ["promoted", "refused", "failed", "exhausted", "cancelled", "discarded"])
def test_an_ended_mission_needs_no_resources(status: MissionStatus) -> None:
    needed = StillNeeded([state(status)])
    assert needed(ROOT, "workspace", "w-aaaaaaaaaaaaaa-attempt-1-0", 1e12) is False
    assert needed(ROOT, "base", COMMIT, 1e12) is False
    assert needed(ROOT, "layer", "key", 1e12) is False


def test_resources_that_no_mission_mentions(tmp_path: Path) -> None:
    needed = StillNeeded([state("running")])
    assert needed(ROOT, "workspace", new_id("workspace"), 0.0) is None, "that of an exec"
    assert needed(ROOT, "workspace", "strange", 0.0) is None
    assert needed(ROOT, "base", "d" * 40, 1e12) is False
    assert needed(ROOT, "layer", "key", CREATED_SECONDS - 1) is False, "used before the mission was made"
    assert needed(ROOT.with_name("p-2"), "base", COMMIT, 1e12) is False
    assert needed(ROOT.with_name("p-2"), "layer", "key", 1e12) is False


@given(st.integers(0, 1 << 44))
def test_the_names_of_workspaces_tell_their_mission(moment: int) -> None:
    mission = new_id("mission", now_ms=moment)
    assert mission_of(f"{workspace_prefix(mission)}attempt-1-0") == mission


@pytest.fixture
def tools() -> Toolchain:
    return discover(search=os.environ["PATH"])


@pytest.mark.needs_bwrap
@pytest.mark.needs_root
async def test_the_direct_strategy_uses_reflinks_if_available(tmp_path: Path, tools: Toolchain) -> None:
    with cloning_disk("btrfs", tmp_path) as home:
        assert await choose_driver(home, tools, strategy="direct") == "reflink"
        kept = json.loads((home / "probe.json").read_text())["drivers"]
        assert (kept["direct"], kept["shadow"]) == ("reflink", await choose_driver(home, tools, strategy="shadow"))
        assert [path.name for path in home.iterdir()] == ["probe.json"], "the probe leaves nothing"


@pytest.mark.needs_bwrap
async def test_the_driver_remembered_by_an_older_version_is_probed_again(tmp_path: Path, tools: Toolchain) -> None:
    place = tmp_path / "probe.json"
    place.write_text(json.dumps({"machine": _machine(tmp_path, tools), "driver": "mine"}))
    assert await choose_driver(tmp_path, tools, strategy="shadow") in ("overlay", "reflink", "worktree")
    kept = json.loads(place.read_text())
    place.write_text(json.dumps({**kept, "drivers": {"shadow": "mine"}}))
    assert await choose_driver(tmp_path, tools, strategy="shadow") == "mine", "what is known is not tried again"
