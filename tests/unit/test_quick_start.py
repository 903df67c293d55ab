"""Derived files of outcomes and beliefs: whatever happens to them, the history and the choices are the same."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from test_later_truth import Missions, end, logs, start
from test_learned_rules import MODELS, outcomes, request
from test_router import BUDGET
from tests.conftest import examples

from chargehand.app.selection.deciders import make_decider
from chargehand.core.choices import ChoiceHistory
from chargehand.core.config import Config, DecisionsConfig
from chargehand.core.mission_events import FeedbackGiven, MissionRolledBack, PromotionDone
from chargehand.decisions import folds
from chargehand.decisions.learned import LearnedRules
from chargehand.decisions.routing import checkpoint
from chargehand.decisions.routing.records import RouterCandidate
from chargehand.reports import outcomes as history_module
from chargehand.reports.outcomes import OutcomeHistory
from chargehand.store.derived import DerivedFiles
from chargehand.store.store import Store, open_store

RULES = LearnedRules()
CHOICE = request(*MODELS)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the files after each new line and outcome, and begin without beliefs of other tests."""
    monkeypatch.setattr(history_module, "_MANY", 1)
    monkeypatch.setattr(folds, "_MANY", 1)
    monkeypatch.setattr(folds, "_folds", folds._BeliefFolds())


def read_afresh(store: Store) -> ChoiceHistory:
    """Return the history without any file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DerivedFiles, "read", lambda self, name: None)
        patch.setattr(DerivedFiles, "write", lambda self, name, content: None)
        patch.setattr(DerivedFiles, "remove", lambda self, name: None)
        return OutcomeHistory(lambda: store)()


def choose_afresh(history: ChoiceHistory) -> Any:
    """Return the choice without any earlier fold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folds, "_folds", folds._BeliefFolds())
        return RULES.choose(CHOICE, history)


def choose_in_new_process(store: Store, seen: list[ChoiceHistory] | None = None) -> Any:
    folds._folds = folds._BeliefFolds()
    decider = make_decider(Config(decisions=DecisionsConfig(learned=True)), lambda: store)
    choice = decider.choose(CHOICE)
    if seen is not None:
        seen.append(decider.history())
    return choice


def harm(place: Path, chance: random.Random) -> None:
    """Damage, cut, swap or remove derived files."""
    for path in sorted(place.iterdir()) if place.is_dir() else []:
        content = bytearray(path.read_bytes())
        match chance.choice(["flip", "cut", "swap", "remove", "keep"]):
            case "flip":
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
                path.write_bytes(content)
            case "cut":
                path.write_bytes(content[: chance.randrange(len(content))])
            case "swap":
                path.write_bytes((place / chance.choice(os.listdir(place))).read_bytes())
            case "remove":
                path.unlink()
            case _:
                pass


@settings(max_examples=examples(40), deadline=None)
@given(logs("m-1"), logs("m-2"), st.randoms(use_true_random=False))
def test_any_use_of_the_files_gives_the_history_and_choice_of_a_fresh_read(
    tmp_path_factory: pytest.TempPathFactory, one: list[Any], other: list[Any], chance: random.Random
) -> None:
    missions = Missions(tmp_path_factory.mktemp("state") / "home")
    with missions.store as store:
        pages, long_lived = [one, other], OutcomeHistory(lambda: store)
        while any(pages):
            mission, events = chance.choice([each for each in pages if each]).pop(0)
            missions.add(mission, *events)
            match chance.choice(["nothing", "new", "old", "harm", "erase"]):
                case "new":
                    seen: list[ChoiceHistory] = []
                    choice = choose_in_new_process(store, seen)
                    assert seen == [read_afresh(store)]
                    assert choice == choose_afresh(*seen)
                case "old":
                    assert long_lived() == read_afresh(store)
                case "harm":
                    harm(store.home / "derived", chance)
                case "erase":
                    store.erase_payload(mission, chance.randint(1, store.log.last_seq(mission)), reason="asked")
                    assert not [*(store.home / "derived").glob("*")]
                case _:
                    pass
        expected = read_afresh(store)
        assert OutcomeHistory(lambda: store)() == expected == long_lived()


ends = st.tuples(st.sampled_from(MODELS), st.booleans(), st.none() | st.floats(0.01, 5))


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(ends, max_size=30), st.lists(ends, max_size=10), st.data())
def test_beliefs_folded_on_from_a_checkpoint_are_the_same_bit_for_bit(
    before: list[Any], after: list[Any], data: st.DataObject
) -> None:
    whole = outcomes(*before, *after)
    words = data.draw(
        st.lists(st.none() | st.booleans(), min_size=len(whole.outcomes), max_size=len(whole.outcomes))
    )
    judged = ChoiceHistory(
        outcomes=tuple(replace(each, proved_right=word) for each, word in zip(whole.outcomes, words, strict=True))
    )
    arms = [RouterCandidate(id=f"native with {each}", agent="native", model=each) for each in MODELS]
    for history in (whole, judged):
        folds._folds = folds._BeliefFolds()
        folds.fold_outcomes(ChoiceHistory(outcomes=whole.outcomes[: len(before)]), arms, BUDGET)
        saved = folds.save_checkpoints()
        assert (saved is not None) == bool(before)
        folds._folds = folds._BeliefFolds()
        folds.load_checkpoints(saved or b"")
        found = checkpoint.encode_state(folds.fold_outcomes(history, arms, BUDGET))
        folds._folds = folds._BeliefFolds()
        assert found == checkpoint.encode_state(folds.fold_outcomes(history, arms, BUDGET))
        assert checkpoint.encode_state(checkpoint.decode_state(found)) == found


def fill(missions: Missions, count: int = 3) -> None:
    for number in range(1, count + 1):
        missions.add("m-1", start(f"m-1-a-{number}", number))
        missions.add("m-1", *end(f"m-1-a-{number}", good=number % 2 == 0))


def count_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the position from which each later page is read."""
    positions: list[int] = []
    after = store.log.after

    def read(position: int = 0, **options: Any) -> Any:
        positions.append(position)
        return after(position, **options)

    monkeypatch.setattr(store.log, "after", read)
    return positions


def test_a_new_process_reads_and_folds_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missions = Missions(tmp_path / "home")
    with missions.store as store:
        fill(missions)
        first = choose_in_new_process(store)
        positions, folded = count_pages(store, monkeypatch), list[int]()
        write = folds.write_records

        def count(new: Any, *rest: Any) -> Any:
            folded.append(len(new))
            return write(new, *rest)

        monkeypatch.setattr(folds, "write_records", count)
        assert choose_in_new_process(store) == first
        assert (min(positions) > 0, folded) == (True, [0])
        missions.add("m-1", start("m-1-a-4", 4))
        missions.add("m-1", *end("m-1-a-4", good=True))
        assert choose_in_new_process(store) != first
        assert folded == [0, 1]


def test_a_file_of_another_version_is_read_again_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missions = Missions(tmp_path / "home")
    with missions.store as store:
        fill(missions)
        expected = choose_in_new_process(store)
        for name in ("outcomes", "beliefs"):
            content = msgspec.msgpack.decode(store.derived.read(name) or b"")
            store.derived.write(name, msgspec.msgpack.encode({**content, "form": "0 of another program"}))
        positions = count_pages(store, monkeypatch)
        assert choose_in_new_process(store) == expected
        assert positions[0] == 0
        for name in ("outcomes", "beliefs"):
            assert "another" not in msgspec.msgpack.decode(store.derived.read(name) or b"")["form"]


def test_an_older_log_that_goes_another_way_is_noticed(tmp_path: Path) -> None:
    missions = Missions(tmp_path / "home")
    with missions.store as store:
        fill(missions, 1)
        store.backup(tmp_path / "backup")
        fill(missions, 3)
        assert len(OutcomeHistory(lambda: store)().outcomes) == 3
    shutil.copytree(tmp_path / "home" / "derived", tmp_path / "backup" / "derived")
    with open_store(tmp_path / "backup", clock=missions.clock) as store:
        assert len(OutcomeHistory(lambda: store)().outcomes) == 1
        shutil.copytree(tmp_path / "home" / "derived", tmp_path / "backup" / "derived", dirs_exist_ok=True)
        missions.store = store
        fill(missions, 5)
        assert OutcomeHistory(lambda: store)() == read_afresh(store)


def test_a_directory_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    missions = Missions(tmp_path / "home")
    with missions.store as store:
        fill(missions)
        (store.home / "derived").write_text("in the way, as a full disk is")
        assert choose_in_new_process(store) == choose_afresh(read_afresh(store))
        (store.home / "derived").unlink()
    with open_store(tmp_path / "home", read_only=True) as store:
        assert choose_in_new_process(store) == choose_afresh(read_afresh(store))
        assert not (store.home / "derived").exists()


def test_processes_that_write_at_the_same_time_leave_one_whole_file(tmp_path: Path) -> None:
    files = DerivedFiles(tmp_path, read_only=False)
    contents = [bytes([number]) * 100_000 for number in range(4)]
    writers = [threading.Thread(target=files.write, args=("a", each)) for each in contents * 5]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert files.read("a") in contents
    assert os.listdir(tmp_path / "derived") == ["a"]
    assert (tmp_path / "derived" / "a").stat().st_mode & 0o777 == 0o600


def test_erasing_and_rebuilding_remove_what_repeats_the_log(tmp_path: Path) -> None:
    missions = Missions(tmp_path / "home")
    with missions.store as store:
        fill(missions)
        for change in (lambda: store.erase_payload("m-1", 1, reason="asked"), store.rebuild):
            choose_in_new_process(store)
            assert sorted(os.listdir(store.home / "derived")) == ["beliefs", "outcomes"]
            change()
            assert os.listdir(store.home / "derived") == []


def test_a_process_that_lives_on_notices_an_erasure_and_a_second_promotion(tmp_path: Path) -> None:
    missions = Missions(tmp_path / "home")
    with missions.store as store:
        missions.add("m-1", start("m-1-a-1", 1))
        missions.add("m-1", *end("m-1-a-1", good=True), PromotionDone(ref="r", commit="c-1", tree="1" * 40))
        missions.add("m-1", MissionRolledBack(ref="r", commit="c-9", tree="0" * 40))
        history = OutcomeHistory(lambda: store)
        assert [each.proved_right for each in history().outcomes] == [False]
        missions.add("m-1", PromotionDone(ref="r", commit="c-5", tree="5" * 40))
        assert [each.proved_right for each in history().outcomes] == [None]
        missions.add("m-1", FeedbackGiven(identity="os:ann", attempt="m-1-a-1", good=False))
        assert [each.proved_right for each in history().outcomes] == [False]
        store.erase_payload("m-1", store.log.last_seq("m-1"), reason="asked")
        assert [each.proved_right for each in history().outcomes] == [None]
        assert history() == read_afresh(store)


def test_at_most_four_sets_of_arms_are_kept_those_used_last() -> None:
    history = outcomes(*[("one", True, 0.1)] * 3)
    for number in range(6):
        folds.fold_outcomes(history, [RouterCandidate(id=f"arm {number}", agent="native")])
        saved = folds.save_checkpoints()
    assert saved is not None
    kept = msgspec.msgpack.decode(saved, type=folds.BeliefCheckpoints).states
    folds._folds = folds._BeliefFolds()
    folds.load_checkpoints(saved)
    assert len(kept) == 4
    folds.fold_outcomes(history, [RouterCandidate(id="arm 5", agent="native")])
    assert folds.save_checkpoints() is None  # nothing was folded


def test_arrays_that_bytes_cannot_describe_are_not_stored_and_other_bytes_are_refused() -> None:
    arms = [RouterCandidate(id="native with one", agent="native")]
    state = folds.fold_outcomes(outcomes(("one", True, 0.1)), arms)
    kind = state.kinds["p"]
    turned = replace(state, kinds={"p": replace(kind, skill_covariances=kind.skill_covariances.T)})
    with pytest.raises(ValueError, match="row order"):
        checkpoint.encode_state(turned)
    content = checkpoint.encode_state(state)
    plain = msgspec.msgpack.decode(content)
    shape, data = plain["kinds"]["p"]["skills"]
    wrong: Any
    for wrong in ([shape, data[:-8]], [[-1], data], [["x"], data], 7, [[], data], [shape, "text"]):
        plain["kinds"]["p"]["skills"] = wrong
        with pytest.raises(ValueError, match=r"."):
            checkpoint.decode_state(msgspec.msgpack.encode(plain))
    with pytest.raises(ValueError, match="no beliefs"):
        checkpoint.decode_state(content[:-1])
