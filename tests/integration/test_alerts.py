"""Alerts, from the log and the machine's state to a delivered notice, also across restarts."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import re
import shutil
import signal
import socketserver
import sqlite3
import ssl
import subprocess
import textwrap
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Cli
from msgspec.structs import replace
from tests.server_kit import API, environment, record_missions, serving
from tests.unit.older_stores import as_of_version_9
from tests.unit.test_gateway_upstream import self_signed

from chargehand.configuration.locations import UserFile
from chargehand.configuration.resolve import resolve
from chargehand.core.attempt_events import BreakerChanged, CheckpointMade, ModelCalled, SandboxClosed
from chargehand.core.clock import SteppedClock
from chargehand.core.mission_events import MissionFinished, StepFinished
from chargehand.core.records import Checkpoint, MissionStatus, Reason
from chargehand.policy.alerts import ALERT_RULES
from chargehand.reports.alerting.channels import ChannelFailedError, WebhookChannel, signature
from chargehand.reports.alerting.outbox import queue_notices
from chargehand.reports.alerting.readings import decode_memo
from chargehand.reports.alerting.watch import AlertWatch, send_safely, trial_notice
from chargehand.reports.reading import StateReader
from chargehand.reports.statistics import alert_metrics, list_alerts
from chargehand.store.ledger import SpendingLimits

SECRET = "a webhook's secret"
PASSWORD = "the mail's password"


class Hook(ThreadingHTTPServer):
    """A webhook that keeps its requests and answers with the given statuses, then with 204."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _HookHandler)
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"

    @property
    def kinds(self) -> list[str]:
        """Kind and rule of each received notice."""
        bodies = [json.loads(body) for _, _, body in self.got]
        return [f"{body['kind']} {body['rule']}" for body in bodies]


class _HookHandler(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, dict(self.headers), body))
        self.send_response(self.server.answers.pop(0) if self.server.answers else 204)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class MailSink(socketserver.ThreadingTCPServer):
    """A mail server that keeps each received line: `plain` before TLS starts, `sealed` after."""

    allow_reuse_address = True

    def __init__(self, certificate: Path | None, key: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _MailHandler)
        self.plain: list[str] = []
        self.sealed: list[str] = []
        self.context: ssl.SSLContext | None = None
        if certificate is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(certificate, key)


class _MailHandler(socketserver.BaseRequestHandler):
    server: MailSink

    def finish(self) -> None:
        self.request.close()

    def handle(self) -> None:
        line, seen = self.request, self.server.plain
        stream = line.makefile("rwb")
        data = False

        def say(text: str) -> None:
            stream.write(text.encode() + b"\r\n")
            stream.flush()

        say("220 sink")
        while written := stream.readline():
            text = written.decode().rstrip("\r\n")
            seen.append(text)
            if data:
                data = text != "."
                if not data:
                    say("250 taken")
            elif text.upper().startswith("EHLO"):
                tls = self.server.context is not None and seen is self.server.plain
                say("250-sink\r\n250 STARTTLS" if tls else "250-sink\r\n250 AUTH PLAIN LOGIN")
            elif text.upper() == "STARTTLS":
                say("220 go")
                assert self.server.context is not None
                try:
                    self.request = line = self.server.context.wrap_socket(line, server_side=True)
                except OSError:  # the client does not trust us
                    return
                stream, seen = line.makefile("rwb"), self.server.sealed
            elif text.upper() == "DATA":
                data = True
                say("354 go")
            elif text.upper() == "QUIT":
                say("221 bye")
                return
            else:
                say("235 ok" if text.upper().startswith("AUTH") else "250 ok")


@contextlib.contextmanager
def running(server: Any) -> Iterator[Any]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def hook() -> Iterator[Hook]:
    with running(Hook()) as server:
        yield server


class Watched:
    """A state directory with a configuration, a stepped clock, and missions that never ran."""

    def __init__(self, place: Path, config: str, **environ: str) -> None:
        self.place = place
        self.environ = environment(place) | {"ALERT_SECRET": SECRET, "MAIL_PASSWORD": PASSWORD} | environ
        (place / ".config/chargehand").mkdir(parents=True)
        # The alerts must not depend on how full the test machine is.
        quiet = "disk_percent = 1\nmemory_percent = 1\n"
        (place / ".config/chargehand/config.toml").write_text(f"[alerts]\n{quiet}{config}")
        self.clock = SteppedClock()
        self.restart()
        self.missions = record_missions(self.reader, 12)

    def restart(self) -> None:
        """Restart with the stored state, as `up` does."""
        if hasattr(self, "reader"):
            self.reader.close()
        self.reader = StateReader(environ=self.environ, cwd=self.place, clock=self.clock)
        self.watch = AlertWatch(self.reader)

    def look(self, seconds: float = 0.0) -> list[str]:
        """Advance the clock by `seconds`, look, and return kind and rule of each notice."""
        self.clock.advance(seconds)
        return [f"{notice.kind} {notice.alert.rule}" for notice in self.watch.look()]

    @property
    def raised(self) -> list[str]:
        return [alert.rule for alert in list_alerts(self.reader).raised]

    def checkpoint(self, seconds: float) -> None:
        made = Checkpoint(commit="c", tree="t", parent="p", trigger="end", changed=1)
        self.reader.store.log.append(
            self.missions[0], CheckpointMade(attempt="a", checkpoint=made, seconds=seconds)
        )

    def validation(self, mission: str, step: str, *, whole: float, commands: float) -> None:
        closed = SandboxClosed(sandbox="s", purpose="checks", ready_seconds=0.1, seconds=commands + 0.1)
        done = StepFinished(step=step, input="", output=None, seconds=whole)
        self.reader.store.log.append(mission, closed, done)

    def finish(self, number: int, status: MissionStatus, *codes: str) -> None:
        reasons = tuple(Reason(code=code, message="why") for code in codes)
        self.reader.store.log.append(self.missions[number], MissionFinished(status=status, reasons=reasons))


@pytest.fixture
def watched(tmp_path: Path, hook: Hook) -> Iterator[Watched]:
    made = Watched(tmp_path, f'webhook = "{hook.url}"\nwebhook_secret = "ALERT_SECRET"\n')
    made.look()
    yield made
    made.reader.close()


# --- rules


def test_slow_checkpoints_raise_one_alert_that_repeats_and_ends_after_calm(watched: Watched, hook: Hook) -> None:
    watched.checkpoint(0.9)
    assert watched.look(10) == []
    for seconds in (1.5, 0.1, 3.0):
        watched.checkpoint(seconds)
    assert watched.look(10) == ["raised checkpoint_slow"]
    body = json.loads(hook.got[0][2])
    assert (body["count"], body["value"], body["limit"]) == (2, 3.0, 1.0)
    assert "A checkpoint took 3.0 s" in body["text"]
    # After each restart the watch still knows which alerts it sent.
    for _ in range(3):
        watched.restart()
        watched.checkpoint(2.0)
        assert watched.look(60) == []
    assert watched.raised == ["checkpoint_slow"]
    for _ in range(14):
        watched.checkpoint(2.0)
        watched.look(250)
    assert hook.kinds == ["raised checkpoint_slow", "repeated checkpoint_slow"]
    assert json.loads(hook.got[1][2])["count"] > 10
    assert watched.look(310) == ["ended checkpoint_slow"]
    assert (watched.raised, [alert.count for alert in list_alerts(watched.reader).ended]) == ([], [19])


def test_a_suite_that_takes_long_is_no_slow_validation(watched: Watched) -> None:
    mission = watched.missions[0]
    watched.validation(mission, "verdict/base", whole=301.0, commands=300.0)
    watched.validation(mission, "attempt/1/verdict", whole=301.9, commands=300.0)
    # Two concurrent sandboxes together take longer than the step that runs them.
    watched.validation(mission, "verdict/merged", whole=3.0, commands=6.0)
    watched.validation(mission, "attempt/1/work", whole=90.0, commands=0.0)
    assert watched.look(1) == []
    watched.validation(mission, "merge-verdict/1", whole=12.5, commands=10.0)
    assert watched.look(1) == ["raised validation_slow"]
    assert list_alerts(watched.reader).raised[0].value == pytest.approx(2.5)


def test_only_engine_failures_count_as_failures(watched: Watched) -> None:
    ends: tuple[tuple[MissionStatus, str], ...] = (
        ("refused", "check_failed"), ("failed", "agent_failed"), ("exhausted", "budget"), ("promoted", ""),
        ("cancelled", "cancelled"), ("refused", "no_change"), ("failed", "upstream_unreachable"), ("promoted", ""),
        ("refused", "base_red"),
    )  # fmt: skip
    for number, (status, code) in enumerate(ends):
        watched.finish(number, status, *([code] if code else []))
    assert watched.look(1) == []
    watched.finish(9, "failed", "internal")  # one of ten is not more than ten percent
    assert watched.look(1) == []
    watched.finish(10, "failed", "worker_lost")
    assert watched.look(1) == ["raised missions_failing"]
    # Missions that ended before the window no longer count.
    assert watched.look(3700) == ["ended missions_failing"]


def test_a_breaker_and_the_budget_of_a_day(tmp_path: Path) -> None:
    watched = Watched(tmp_path, "[limits]\nday_usd = 10.0\n")
    watched.look()
    opened = BreakerChanged(agent="native", model="m1", state="open", failures=3)
    watched.reader.store.log.append(watched.missions[0], opened)
    assert watched.look(1) == ["raised breaker_open"]
    spending = watched.reader.store.spending
    ledger = spending.ledger(mission=watched.missions[0], attempt="a", limits=SpendingLimits())
    ledger.reserve("c1", 7.9)
    assert watched.look(1) == []
    ledger.reserve("c2", 0.1)
    assert watched.look(1) == ["raised day_budget"]
    assert sorted(watched.raised) == ["breaker_open", "day_budget"]
    closed = BreakerChanged(agent="native", model="m1", state="closed")
    watched.reader.store.log.append(watched.missions[0], closed)
    assert watched.look(1) == ["ended breaker_open"]
    for status, http, told in (
        ("failed", 502, []), ("failed", 429, []), ("failed", 502, []), ("cut", 502, []),
        ("failed", 0, ["raised breaker_open"]), ("failed", 503, []), ("replayed", 200, []),
        ("ok", 200, ["ended breaker_open"]),
    ):  # fmt: skip
        call = ModelCalled(
            call=f"c{http}", attempt="a", turn=1, model="m", upstream="m", status=status, http_status=http,
            seconds=1.0, provider="http://127.0.0.1:9/v1",
        )  # fmt: skip
        watched.reader.store.log.append(watched.missions[0], call)
        assert watched.look(1) == told, (status, http)
    assert watched.look(86_400) == ["ended day_budget"]
    watched.reader.close()


def test_a_notice_being_sent_is_not_due_for_another_sender_at_that_moment(watched: Watched) -> None:
    now, notice = watched.clock.now(), trial_notice(watched.clock.now())
    waiting, due = queue_notices((), [notice], ["hook"], now)
    assert due == {"hook": [notice]}
    assert queue_notices(waiting, [], ["hook"], now) == (waiting, {})
    later = now + timedelta(minutes=2)  # the sender died meanwhile
    assert queue_notices(waiting, [], ["hook"], later)[1] == {"hook": [notice]}


def test_two_concurrent_watchers_send_one_notice(watched: Watched, hook: Hook) -> None:
    watched.checkpoint(2.0)
    with StateReader.open(environ=watched.environ, cwd=watched.place) as other:
        other.clock = watched.clock
        looks = [threading.Thread(target=AlertWatch(each).look) for each in (watched.reader, other)]
        for look in looks:
            look.start()
        for look in looks:
            look.join()
    watched.look(1)
    assert hook.kinds == ["raised checkpoint_slow"]


@pytest.mark.parametrize(
    ("store", "moment", "times"),
    [("alerts", "before", 1), ("alerts", "after", 1), ("followers", "before", 2), ("followers", "after", 1)],
)
def test_a_notice_arrives_whatever_moment_a_kill_comes_at(
    watched: Watched, hook: Hook, store: str, moment: str, times: int
) -> None:
    watched.checkpoint(2.0)
    watched.reader.close()  # a forked process must not inherit an open database
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            watched.reader = StateReader(environ=watched.environ, cwd=watched.place, clock=watched.clock)
            part: Any = getattr(watched.reader.store, store)
            save = part.save

            def save_and_die(*arguments: Any) -> None:
                if moment == "after":
                    save(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)

            part.save = save_and_die
            AlertWatch(watched.reader).look()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    watched.restart()
    for _ in range(4):
        watched.look(30)
    assert hook.kinds == ["raised checkpoint_slow"] * times
    assert len({json.loads(body)["id"] for _, _, body in hook.got}) == 1
    assert watched.raised == ["checkpoint_slow"]


def test_a_notice_that_no_way_takes_is_tried_for_hours_and_given_up(
    watched: Watched, hook: Hook, caplog: pytest.LogCaptureFixture
) -> None:
    def untold() -> int:
        return len(decode_memo(watched.reader.store.followers.load("alerts").content).untold)

    hook.answers = [400] * 3
    watched.checkpoint(2.0)
    watched.look(1)
    for seconds in (30, 31):  # retried a minute after the first failure, no sooner
        assert (untold(), len(hook.got)) == (1, 1)
        watched.look(seconds)
    assert len(hook.got) == 2
    hook.answers = [400]
    watched.look(300)
    hook.answers = []
    watched.restart()
    watched.look(1800)
    assert untold() == 0
    told = [json.loads(body)["id"] for _, _, body in hook.got if b"checkpoint_slow/" in body]
    assert [each for each in told if "/raised/" in each] == [told[0]] * 4
    assert "given up" not in caplog.text
    hook.answers = [400] * 100
    watched.checkpoint(2.0)
    watched.look(1)
    for _ in range(8):
        watched.look(7200)
    assert "was given up for webhook: the answer was 400" in caplog.text
    # Notices that wait for a day are given up too; those of a removed channel are dropped silently.
    watched.look(86_400)
    (watched.place / ".config/chargehand/config.toml").write_text("[alerts]\n")
    watched.restart()
    watched.look(1)
    assert untold() == 0


def test_a_webhook_that_takes_some_is_asked_for_the_others_alone(watched: Watched, hook: Hook) -> None:
    hook.answers = [204, 400]
    notices = [replace(trial_notice(SteppedClock().now()), id=name) for name in "abc"]
    delivery = send_safely(channel(hook), notices)
    assert (delivery.taken, delivery.problem) == ({"a"}, "the answer was 400")


def test_a_damaged_memo_begins_with_the_next_line(watched: Watched) -> None:
    watched.checkpoint(2.0)
    kept = watched.reader.store.followers.load("alerts")
    assert watched.reader.store.followers.save("alerts", replace(kept, content=b"\xff{"))
    assert watched.look(1) == []
    watched.checkpoint(2.0)
    assert watched.look(1) == ["raised checkpoint_slow"]


# --- channels


def test_a_webhook_can_tell_that_a_notice_is_ours(watched: Watched, hook: Hook) -> None:
    watched.checkpoint(2.0)
    watched.look(1)
    path, headers, body = hook.got[0]
    assert (path, headers["Content-Type"]) == ("/hook", "application/json")
    moment, _, signed = headers["X-Chargehand-Signature"].removeprefix("t=").partition(",v1=")
    expected = hmac.new(SECRET.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(signed, expected)
    assert SECRET not in f"{headers}{body!r}"


def channel(hook: Hook, **keys: str) -> WebhookChannel:
    return WebhookChannel(
        hook.url, secret=next(iter(keys), ""), keys=keys, stopping=threading.Event(), pauses=(0.0, 0.0)
    )


@pytest.mark.parametrize(
    ("answers", "tries", "problem"),
    [
        ([503, 429], 3, ""),
        ([503, 503, 500], 3, "500"),
        ([404], 1, "404"),
        ([302], 1, "302"),
        ([307, 307], 1, "307"),
    ],
)
def test_a_webhook_is_retried_only_after_retryable_errors(
    hook: Hook, answers: list[int], tries: int, problem: str
) -> None:
    hook.answers = list(answers)
    notice = trial_notice(SteppedClock().now())
    if problem:
        with pytest.raises(ChannelFailedError, match=problem):
            channel(hook).send([notice, notice])
    else:
        channel(hook).send([notice])
    assert [path for path, _, _ in hook.got] == ["/hook"] * tries
    assert all("X-Chargehand-Signature" not in headers for _, headers, _ in hook.got)


def test_no_unsigned_notice_is_sent_if_the_signing_secret_is_missing(hook: Hook, watched: Watched) -> None:
    watched.environ.pop("ALERT_SECRET")
    watched.restart()
    watched.checkpoint(2.0)
    assert watched.look(1) == ["raised checkpoint_slow"]
    assert hook.got == []
    assert watched.look(1) == ["raised channel_failing"]
    assert "ALERT_SECRET is not set" in (list_alerts(watched.reader).channels[0].problem or "")


def test_a_failing_channel_raises_one_alert_on_the_other_channels(tmp_path: Path, hook: Hook) -> None:
    with running(MailSink(None)) as sink:
        port = sink.server_address[1]
        mail = f'mail_to = ["ops@example.org", "dev@example.org"]\nmail_server = "127.0.0.1:{port}"\n'
        watched = Watched(tmp_path, f'webhook = "{hook.url}"\ncalm = "10s"\n{mail}')
        watched.look()
        hook.answers = [400, 400]
        watched.checkpoint(2.0)
        assert watched.look(1) == ["raised checkpoint_slow"]
        assert watched.look(1) == ["raised channel_failing"]
        assert watched.look(1) == []
        # The working channel has both notices; the failing channel was not sent the notice about itself.
        assert len(hook.got) == 1
        text = "\n".join(sink.plain)
        assert text.count("Subject: ") == 2
        assert "TO:<ops@example.org>" in text
        assert "TO:<dev@example.org>" in text
        assert "Notices by webhook do not arrive" in text
        hook.answers = []
        assert watched.look(20) == ["ended checkpoint_slow"]
        assert watched.look(1) == ["ended channel_failing"]
        watched.reader.close()


def mail_config(port: int) -> str:
    return (
        f'mail_to = ["ops@example.org"]\nmail_from = "chargehand@example.org"\nmail_server = "localhost:{port}"\n'
        'mail_user = "ops"\nmail_password = "MAIL_PASSWORD"\n'
    )


def test_mail_is_sent_over_tls_with_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    self_signed(key, certificate, host="localhost")
    with running(MailSink(certificate, key)) as sink:
        watched = Watched(tmp_path, mail_config(sink.server_address[1]))
        watched.look()
        # A server with an untrusted certificate gets neither password nor notice.
        watched.checkpoint(2.0)
        watched.look(1)
        assert sink.sealed == []
        assert watched.look(1) == ["raised channel_failing"]
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert watched.look(400) == ["ended checkpoint_slow"]
        watched.reader.close()
    text = "\n".join(sink.sealed)
    assert base64.b64encode(f"\0ops\0{PASSWORD}".encode()).decode() in text
    assert "From: chargehand@example.org" in text
    assert "Over: slow checkpoints" in text
    assert sink.plain[-1] == "STARTTLS"


def test_a_password_is_never_sent_without_tls(tmp_path: Path) -> None:
    with running(MailSink(None)) as sink:
        watched = Watched(tmp_path, mail_config(sink.server_address[1]))
        watched.look()
        watched.checkpoint(2.0)
        watched.look(1)
        assert watched.look(1) == ["raised channel_failing"]
        problem = list_alerts(watched.reader).channels[0].problem or ""
        watched.reader.close()
    assert "offers no TLS" in problem
    assert all(line.upper().startswith(("EHLO", "QUIT")) for line in sink.plain)


def test_desktop_notices_are_shown_in_a_user_session(tmp_path: Path) -> None:
    program, shown = tmp_path / "bin/notify-send", tmp_path / "shown"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {shown}\n')
    program.chmod(0o755)
    path = f"{program.parent}:/usr/bin:/bin"
    watched = Watched(tmp_path, "", PATH=path, DBUS_SESSION_BUS_ADDRESS="unix:path=/none")
    watched.look()
    watched.checkpoint(2.0)
    watched.look(1)
    assert shown.read_text().splitlines()[:3] == ["--app-name=Chargehand", "--", "Chargehand"]
    program.write_text("#!/bin/sh\nexit 1\n")
    watched.look(400)
    assert watched.look(1) == ["raised channel_failing"]
    watched.reader.close()


# --- server and command


def test_the_server_watches_and_shows_alerts_over_restarts(tmp_path: Path, hook: Hook) -> None:
    environ = environment(tmp_path) | {
        "CHARGEHAND_ALERTS_DISK_PERCENT": "100",
        "CHARGEHAND_ALERTS_WEBHOOK": hook.url,
    }

    def is_low(reader: StateReader) -> int:
        return alert_metrics(reader).raised["disk_low"]

    for _ in range(2):
        with serving(environ, tmp_path) as served:
            client = served.token("read")
            with served.reader() as reader:
                _wait(partial(is_low, reader))
            document = client.get(f"{API}/alerts").json()
            assert [alert["rule"] for alert in document["raised"]] == ["disk_low"]
            assert document["watched"] is True
            metrics = client.get("/metrics").text
            assert 'chargehand_alert_raised{rule="disk_low"} 1.0' in metrics
            assert 'chargehand_alert_raised{rule="memory_low"} 0.0' in metrics
            assert 'chargehand_alert_reading{rule="disk_low"} 0.' in metrics
    assert hook.kinds == ["raised disk_low"]


def _wait(ready: Any) -> None:
    passed = threading.Event()
    for _ in range(2400):
        if ready():
            return
        passed.wait(0.05)
    raise AssertionError("it did not come")


def test_the_command_lists_tries_and_prints_rules(tmp_path: Path, hook: Hook) -> None:
    cli = Cli(tmp_path, CHARGEHAND_ALERTS_WEBHOOK=hook.url, CHARGEHAND_LIMITS_DAY_USD="5")
    listed = cli.say("alerts", cwd=tmp_path).document
    assert (listed["raised"], listed["watched"]) == ([], False)
    tried = cli.say("alerts", "test", cwd=tmp_path)
    assert (tried.code, tried.document) == (0, {"channels": [{"channel": "webhook", "problem": None}]})
    assert hook.kinds == ["trial trial"]
    hook.answers = [404]
    assert cli.say("alerts", "test", cwd=tmp_path).code == 1
    failing = cli.say("alerts", "list", cwd=tmp_path).document["channels"]
    assert failing == [{"channel": "webhook", "problem": "the answer was 404"}]
    rules = cli.say("alerts", "--prometheus", cwd=tmp_path).document["rules"]
    (group,) = yaml.safe_load(rules)["groups"]
    expressions = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    assert len(expressions) == len(ALERT_RULES) + 1
    assert expressions["ChargehandDiskLow"] == 'chargehand_alert_reading{rule="disk_low"} < 0.05'
    assert expressions["ChargehandDayBudget"] == 'chargehand_alert_reading{rule="day_budget"} >= 0.8'
    for rule in group["rules"]:
        assert rule["labels"]["severity"]
        assert rule["annotations"]["summary"]
    promtool = shutil.which("promtool")
    if promtool is not None:
        (tmp_path / "rules.yml").write_text(rules)
        subprocess.run([promtool, "check", "rules", str(tmp_path / "rules.yml")], check=True, capture_output=True)


def test_alerts_work_with_unreadable_rows_and_a_migrated_store(watched: Watched) -> None:
    watched.checkpoint(2.0)
    watched.look(1)
    database = watched.reader.home / "store.db"
    with contextlib.closing(sqlite3.connect(database)) as raw:
        raw.execute("UPDATE alerts SET raised = 'yesterday'")
        raw.execute("UPDATE followers SET memo = 'text'")
        raw.commit()
    assert watched.raised == []
    watched.look(1)
    with contextlib.closing(sqlite3.connect(database)) as raw:
        as_of_version_9(raw)
        raw.commit()
    watched.restart()
    assert watched.look(1) == []
    watched.checkpoint(2.0)
    assert watched.look(1) == ["raised checkpoint_slow"]


def test_the_examples_of_the_operations_guide_are_valid() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/operations.md").read_text()
    shown = re.findall(r"```toml\n(.*?)```", page, re.S)
    resolved = resolve(user=UserFile(path=Path("config.toml"), text="\n".join(shown))).config
    assert (resolved.alerts.disk_percent, resolved.alerts.mail_to) == (10, ("ops@example.org",))
    assert (resolved.log.format, resolved.traces.endpoint) == ("json", "http://127.0.0.1:4318")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    names: dict[str, Any] = {}
    exec(textwrap.dedent(code), names)
    now = int(time.time())
    assert names["is_ours"](signature(b"{}", SECRET, moment=now), b"{}", SECRET)
    assert not names["is_ours"](signature(b"{}", SECRET, moment=now), b"{ }", SECRET)
    assert not names["is_ours"](signature(b"{}", SECRET, moment=now - 400), b"{}", SECRET)
    rules = re.findall(r"`([a-z]+_[a-z]+)`", "".join(re.findall(r"^\| (`.*?) \|", page, re.M)))
    assert sorted(rules) == sorted(ALERT_RULES)
