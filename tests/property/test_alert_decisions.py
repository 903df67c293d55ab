"""Alerts as a function of readings: one notice per crossing, no flapping, and the right count in each notice."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chargehand.core.records import Alert
from chargehand.policy.alerts import AlertNotice, AlertRule, Reading, Threshold, decide_alerts

START = datetime(2026, 1, 1, tzinfo=UTC)
CALM, REPEAT = 300.0, 3600.0
THRESHOLDS = {
    "disk_low": Threshold(limit=0.05, calm=CALM, below=True),
    "missions_failing": Threshold(limit=0.1, calm=CALM),
    "checkpoint_slow": Threshold(limit=1.0, calm=CALM, single=True),
    "day_budget": Threshold(limit=0.8, calm=CALM, reached=True),
}
VALUES = st.sampled_from(
    [0.0, 0.04, 0.05, 0.052, 0.055, 0.06, 0.09, 0.095, 0.1, 0.2, 0.72, 0.75, 0.8, 0.9, 1.0, 1.5]
)


class AlertMachine(RuleBasedStateMachine):
    """`chargehand up`: it reads, decides and keeps alerts, also over a restart, which knows only kept alerts."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.raised: dict[tuple[str, str], Alert] = {}
        self.told: dict[tuple[str, str], list[AlertNotice]] = {}
        self.breaches: dict[tuple[str, str], int] = {}
        self.last_bad: dict[tuple[str, str], datetime] = {}

    @rule(
        rule=st.sampled_from(sorted(THRESHOLDS)),
        subject=st.sampled_from(["", "a"]),
        values=st.lists(VALUES, max_size=4),
        seconds=st.integers(0, 1000),
    )
    def look(self, rule: AlertRule, subject: str, values: list[float], seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        key, threshold = (rule, subject), THRESHOLDS[rule]
        readings = [Reading(rule=rule, subject=subject, value=each, time=self.now) for each in values]
        before = dict(self.raised)
        decided = decide_alerts(self.raised.values(), readings, THRESHOLDS, now=self.now, repeat=REPEAT)
        for alert in decided.changed:
            place = (alert.rule, alert.subject)
            if alert.ended:
                self.raised.pop(place, None)
            else:
                self.raised[place] = alert
        for notice in decided.notices:
            self.told.setdefault((notice.alert.rule, notice.alert.subject), []).append(notice)
        bad = [each for each in values if threshold.is_breached(each)]
        if bad:
            self.last_bad[key] = self.now
            # Each breach is noticed, and only once.
            assert key in self.raised or before.get(key) is not None
        for place, alert in before.items():
            if place not in self.raised:
                # It ends only after a calm period, however readings go up and down meanwhile.
                assert self.now - self.last_bad[place] >= timedelta(seconds=CALM)
                assert datetime.fromisoformat(alert.last) <= self.now

    @precondition(lambda self: self.raised)
    @rule(seconds=st.integers(0, 10_000))
    def nothing_is_read(self, seconds: int) -> None:
        """An alert for a level without a reading stays as it was; an alert for a single event ends by itself."""
        self.look("disk_low", "", [], seconds)

    @invariant()
    def a_crossing_is_told_once(self) -> None:
        for place, notices in self.told.items():
            kinds = [notice.kind for notice in notices]
            crossings = " ".join(kinds).split("raised")
            assert crossings[0] == ""
            for each in crossings[1:]:
                words = each.split()
                assert words.count("ended") <= 1
                assert "ended" not in words[:-1]
            assert (kinds[-1] != "ended") == (place in self.raised)

    @invariant()
    def repeats_are_throttled_and_count(self) -> None:
        for place, notices in self.told.items():
            single = THRESHOLDS[place[0]].single
            for before, after in itertools.pairwise(notices):
                if after.kind == "repeated":
                    assert single
                    passed = datetime.fromisoformat(after.alert.told) - datetime.fromisoformat(before.alert.told)
                    assert passed >= timedelta(seconds=REPEAT)
                    assert after.more == after.alert.count - before.alert.told_count > 0


TestAlertMachine = AlertMachine.TestCase


@given(st.lists(st.floats(0.0901, 0.1099), min_size=2, max_size=30))
def test_a_value_near_its_limit_raises_at_most_one_alert(values: list[float]) -> None:
    raised: tuple[Alert, ...] = ()
    notices: list[AlertNotice] = []
    for number, value in enumerate(values):
        now = START + timedelta(seconds=1000 * number)
        reading = Reading(rule="missions_failing", value=value, time=now)
        changed, told = decide_alerts(raised, [reading], THRESHOLDS, now=now, repeat=REPEAT)
        raised, notices = changed or raised, [*notices, *told]
    assert [notice.kind for notice in notices] == ["raised"] * any(value > 0.1 for value in values)


@given(st.lists(st.floats(0, 3), max_size=20), st.integers(1, 19))
def test_splitting_the_readings_does_not_change_the_alerts(values: list[float], part: int) -> None:
    readings = [
        Reading(rule="checkpoint_slow", value=value, time=START + timedelta(seconds=number))
        for number, value in enumerate(values)
    ]
    now = START + timedelta(seconds=60)
    whole = decide_alerts((), readings, THRESHOLDS, now=now, repeat=REPEAT)
    first = decide_alerts((), readings[:part], THRESHOLDS, now=now, repeat=REPEAT)
    second = decide_alerts(first.changed, readings[part:], THRESHOLDS, now=now, repeat=REPEAT)
    kinds = [notice.kind for notice in (*first.notices, *second.notices)]
    assert kinds == [notice.kind for notice in whole.notices]
    for alert, again in zip(whole.changed, second.changed or first.changed, strict=True):
        assert (alert.count, alert.value, alert.raised, alert.last) == (
            again.count,
            again.value,
            again.raised,
            again.last,
        )


def test_an_alert_ends_if_its_rule_is_removed() -> None:
    reading = Reading(rule="day_budget", value=0.8, time=START)
    raised = decide_alerts((), [reading], THRESHOLDS, now=START, repeat=REPEAT).changed
    changed, notices = decide_alerts(raised, [], {}, now=START, repeat=REPEAT)
    assert changed[0].ended
    assert [notice.kind for notice in notices] == ["ended"]
