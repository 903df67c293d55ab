"""Traces of real missions at a collector: the whole tree, once, over attempts, kills and restarts."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli
from google.protobuf import json_format
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from test_native_crashes import SCENE, NativeCrashKit, servers
from tests.crash_kit import SCENES, CrashKit, Site, nothing_survives
from tests.server_kit import environment, record_missions, serving

from chargehand.core.attempt_events import AttemptStarted
from chargehand.core.events import read_payload
from chargehand.core.mission_events import AttemptFinished, MissionClaimed, MissionCreated, MissionFinished
from chargehand.reports.reading import StateReader
from chargehand.reports.statistics import mission_trace
from chargehand.reports.tracing.export import FOLLOWER, ExportFailedError, TraceExporter
from chargehand.reports.tracing.spans import mission_spans, span_id, trace_id

SECRET = "Bearer of-the-collector"


class Collector(ThreadingHTTPServer):
    """A fake collector: it decodes with the protocol's own schema, and refuses content that does not fit it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _CollectorHandler)
        self.requests: list[dict[str, str]] = []
        self.spans: list[Any] = []
        self.answers: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def take(self, body: bytes) -> None:
        def with_bytes(value: Any) -> Any:
            """The protocol writes ids in hexadecimal; protobuf's own JSON uses base64."""
            if isinstance(value, dict):
                ids = ("traceId", "spanId", "parentSpanId")
                return {
                    key: base64.b64encode(bytes.fromhex(item)).decode() if key in ids else with_bytes(item)
                    for key, item in value.items()
                }
            return [with_bytes(each) for each in value] if isinstance(value, list) else value

        request = json_format.ParseDict(with_bytes(json.loads(body)), ExportTraceServiceRequest())
        for resource in request.resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            assert names["service.name"] == "chargehand"
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)


class _CollectorHandler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append({"path": self.path, **dict(self.headers)})
        status = self.server.answers.pop(0) if self.server.answers else 200
        if status == 200:
            self.server.take(body)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


class Tree:
    """The spans of one trace, checked to be a tree: one root, no duplicates, no span outside its parent."""

    def __init__(self, spans: list[Any], mission: str) -> None:
        self.spans = spans
        self.by_id = {span.span_id: span for span in spans}
        assert len(self.by_id) == len(spans)
        assert {span.trace_id.hex() for span in spans} == {trace_id(mission)}
        (self.root,) = (span for span in spans if not span.parent_span_id)
        assert self.root.span_id.hex() == span_id(mission, "mission")
        for span in spans:
            assert span.start_time_unix_nano <= span.end_time_unix_nano
            if span is not self.root:
                above = self.by_id[span.parent_span_id]
                assert above.start_time_unix_nano <= span.start_time_unix_nano, (above.name, span.name)
                assert span.end_time_unix_nano <= above.end_time_unix_nano, (above.name, span.name)

    def below(self, span: Any, name: str = "") -> list[Any]:
        """Return the children of a span in order of time."""
        found = [each for each in self.spans if each.parent_span_id == span.span_id and each.name.startswith(name)]
        return sorted(found, key=lambda each: each.start_time_unix_nano)


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def opened(place: Path, environ: Mapping[str, str], collector: Collector, **more: str) -> StateReader:
    return StateReader(environ={**environ, "CHARGEHAND_TRACES_ENDPOINT": collector.url, **more}, cwd=place)


def finish(kit: CrashKit, site: Site, collector: Collector) -> Tree:
    """Send the spans of a site's mission, and return the tree."""
    mission = kit.mission(site)
    reader = opened(kit.place, kit.environ, collector)
    assert TraceExporter(reader).export() > 0
    lines = reader.store.log.read(mission)
    reader.close()
    whole = mission_spans(lines)
    for number in range(len(lines) + 1):
        begun = mission_spans(lines[:number])
        assert begun == whole[: len(begun)]  # an ended span is final
        assert begun + mission_spans(lines, after=number) == whole
    assert [span.span_id.hex() for span in collector.spans] == [span.id for span in whole]
    return Tree(collector.spans, mission)


@pytest.mark.needs_bwrap
def test_a_mission_with_two_attempts(tmp_path: Path, collector: Collector) -> None:
    with nothing_survives():
        kit = CrashKit(tmp_path)
        reader = opened(tmp_path, kit.environ, collector)
        assert TraceExporter(reader).export() == 0  # exports start now
        reader.close()
        site = kit.site(SCENES["second try"])
        assert kit.run(site).wait() == 0, kit.output()
    tree = finish(kit, site, collector)
    assert attributes(tree.root)["chargehand.status"] == "promoted"
    assert tree.root.status.code == 0
    first, second = tree.below(tree.root, "attempt")
    assert [attributes(each)["chargehand.status"] for each in (first, second)] == ["refused", "succeeded"]
    assert (first.status.code, second.status.code) == (2, 0)
    assert first.end_time_unix_nano <= second.start_time_unix_nano
    for number, attempt in enumerate((first, second), 1):
        (verdict,) = tree.below(attempt, f"attempt/{number}/verdict")
        (check,) = tree.below(verdict, "check")
        assert attributes(check)["chargehand.check.status"] == ("failed" if number == 1 else "passed")
        assert len(tree.below(attempt, "execute_tool command")) == 1
    (base,) = tree.below(tree.root, "verdict/base")
    assert attributes(base)["chargehand.step"] == "repository"
    (promotion,) = tree.below(tree.root, "promotion")
    assert promotion.start_time_unix_nano >= second.end_time_unix_nano
    reader = opened(tmp_path, kit.environ, collector)
    sent = len(collector.spans)
    assert TraceExporter(reader).export() == 0  # after a restart nothing is sent twice
    assert len(collector.spans) == sent
    reader.close()


@pytest.mark.needs_bwrap
def test_a_mission_whose_worker_was_killed(tmp_path: Path, collector: Collector) -> None:
    with nothing_survives(), servers(1) as one:
        kit = NativeCrashKit(tmp_path, one)
        reader = opened(tmp_path, kit.environ, collector)
        TraceExporter(reader).export()
        reader.close()
        site = kit.site(SCENE)
        kit.worker_dies_at("after checkpoint.made+step.finished#2", site)
        reader = opened(tmp_path, kit.environ, collector)
        assert TraceExporter(reader).export() > 0
        reader.close()
        names = {span.name for span in collector.spans}
        assert "chat served-1" in names
        assert names.isdisjoint({"attempt", "mission"})
        kit.go_on()
        tree = finish(kit, site, collector)
    claims = [event for event in tree.root.events if event.name == "mission.claimed"]
    assert len({attributes(each)["worker"] for each in claims}) == 2
    (attempt,) = tree.below(tree.root, "attempt")
    assert attributes(attempt)["chargehand.status"] == "succeeded"
    assert "attempt.resumed" in [event.name for event in attempt.events]
    # Every reply was paid once, before the kill or after it; every tool call of both workers is present.
    calls = tree.below(attempt, "chat ")
    assert [attributes(call)["chargehand.turn"] for call in calls] == [1, 2, 3]
    assert all(attributes(call)["gen_ai.usage.input_tokens"] > 0 for call in calls)
    tools = [each.name for each in tree.below(attempt, "execute_tool") if each.name != "execute_tool command"]
    assert tools.count("execute_tool bash") == 2
    assert "execute_tool edit" in tools
    # The time without a worker is inside the attempt, and in no call or tool of it.
    killed = claims[1].time_unix_nano
    assert attempt.start_time_unix_nano < killed < attempt.end_time_unix_nano
    assert not [
        each.name
        for each in tree.spans
        if each.name.startswith(("chat", "execute_tool"))
        and each.start_time_unix_nano < killed < each.end_time_unix_nano
    ]


# --- a collector's answers


class Kept:
    """A state directory with missions that never ran, and an exporter."""

    def __init__(self, place: Path, collector: Collector, **more: str) -> None:
        self.reader = opened(place, environment(place), collector, **more)
        self.exporter = TraceExporter(self.reader)
        self.missions = record_missions(self.reader, 3)
        assert self.exporter.export() == 0

    def settle(self, number: int, status: Any = "promoted") -> None:
        claimed = MissionClaimed(worker="k-1", role="worker", epoch=1, version="0")
        self.reader.store.log.append(self.missions[number], claimed, MissionFinished(status=status))


def test_failed_exports_are_retried_in_order(tmp_path: Path, collector: Collector) -> None:
    kept = Kept(tmp_path, collector, COLLECTOR_AUTH=SECRET, CHARGEHAND_TRACES_SECRET="COLLECTOR_AUTH")
    kept.settle(0)
    kept.settle(1)
    for status in (503, 302, 429):
        collector.answers = [status]
        with pytest.raises(ExportFailedError, match=str(status)):
            kept.exporter.export()
    assert collector.spans == []
    collector.answers = [200, 500]
    with pytest.raises(ExportFailedError):
        kept.exporter.export()
    assert kept.exporter.export() == 1
    assert [span.trace_id.hex() for span in collector.spans] == [
        trace_id(kept.missions[number]) for number in (0, 1)
    ]
    assert {(each["path"], each["Authorization"]) for each in collector.requests} == {("/v1/traces", SECRET)}
    # Spans that are refused for good do not hold back others.
    kept.settle(2, "failed")
    kept.settle(0)
    collector.answers = [400]
    kept.exporter.export()
    again, root = collector.spans[-1], collector.spans[0]
    assert again.parent_span_id == root.span_id
    assert again.span_id != root.span_id
    kept.reader.close()


def started(attempt: str) -> AttemptStarted:
    return AttemptStarted(attempt=attempt, number=1, agent="command:true", workspace="w", tree="0" * 40)


def test_ended_spans_are_exported_while_the_mission_runs(tmp_path: Path, collector: Collector) -> None:
    kept = Kept(tmp_path, collector)
    log, (one, other, _) = kept.reader.store.log, kept.missions
    log.append(one, started("a-1"))
    assert kept.exporter.export() == 0
    log.append(other, started("b-1"))
    log.append(one, AttemptFinished(attempt="a-1", status="failed", seconds=1.0))
    assert kept.exporter.export() == 1
    (attempt,) = collector.spans
    assert (attempt.name, attempt.span_id.hex()) == ("attempt", span_id(one, "attempt a-1"))
    assert attempt.parent_span_id.hex() == span_id(one, "mission")
    # After a restart and a failed export it reads again, and sends every span that was not received.
    kept.exporter = TraceExporter(kept.reader)
    log.append(other, AttemptFinished(attempt="b-1", status="succeeded", seconds=1.0))
    collector.answers = [503]
    with pytest.raises(ExportFailedError):
        kept.exporter.export()
    kept.settle(0)
    assert kept.exporter.export() == 2
    kept.settle(1)
    assert kept.exporter.export() == 1
    sent = [span.span_id.hex() for span in collector.spans]
    made = {mission: [span.id for span in mission_spans(log.read(mission))] for mission in (one, other)}
    assert sorted(sent) == sorted([*made[one], *made[other]])
    for ids in made.values():
        assert [each for each in sent if each in ids] == ids
    kept.reader.close()


def test_an_export_without_a_saved_position_is_repeated_identically(tmp_path: Path, collector: Collector) -> None:
    kept = Kept(tmp_path, collector)
    followers = kept.reader.store.followers
    before = followers.load(FOLLOWER)
    kept.settle(0, "failed")
    assert kept.exporter.export() == 1
    assert followers.save(FOLLOWER, replace(before, revision=followers.load(FOLLOWER).revision))
    assert TraceExporter(kept.reader).export() == 1
    first, again = collector.spans
    assert first == again
    kept.reader.close()


def test_no_spans_are_sent_without_a_collector_or_its_secret(tmp_path: Path, collector: Collector) -> None:
    kept = Kept(tmp_path, collector, CHARGEHAND_TRACES_SECRET="COLLECTOR_AUTH")
    kept.settle(0)
    with pytest.raises(ExportFailedError, match="COLLECTOR_AUTH is not set"):
        kept.exporter.export()
    kept.reader.close()
    with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as reader:
        assert TraceExporter(reader).export() == 0
    assert collector.requests == []


def test_the_server_exports_missions_that_ended_while_it_was_down(tmp_path: Path, collector: Collector) -> None:
    environ = environment(tmp_path) | {"CHARGEHAND_TRACES_ENDPOINT": f"{collector.url}/v1/traces"}
    with serving(environ, tmp_path) as served, served.reader() as reader:
        (mission,) = record_missions(reader, 1)
        _wait(lambda: reader.store.followers.load("traces").revision)
    with StateReader.open(environ=environ, cwd=tmp_path) as reader:
        reader.store.log.append(mission, MissionFinished(status="cancelled"))
    with serving(environ, tmp_path):
        _wait(lambda: collector.spans)
    assert [span.name for span in collector.spans] == ["mission"]
    assert collector.requests[0]["path"] == "/v1/traces"


def _wait(ready: Callable[[], Any]) -> None:
    passed = threading.Event()
    for _ in range(2400):
        if ready():
            return
        passed.wait(0.05)
    raise AssertionError("it did not come")


# --- spans of a log


def test_each_end_of_a_mission_exports_the_spans_since_the_previous_end(
    tmp_path: Path, collector: Collector
) -> None:
    kept = Kept(tmp_path, collector)
    for status in ("waiting", "failed", "discarded"):
        kept.settle(0, status)
    lines = kept.reader.store.log.read(kept.missions[0])
    kept.reader.close()
    ends = [line.seq for line in lines if line.type == "mission.finished"]
    assert [span.name for span in mission_spans(lines[: ends[0]])] == ["mission"]
    assert mission_spans(lines, after=ends[1]) == mission_spans(lines)[2:]
    assert [span.problem for span in mission_spans(lines)] == ["", "failed", ""]
    assert len({span.id for span in mission_spans(lines)}) == 3


def test_the_mission_of_a_task_is_in_the_trace_of_its_coordinator(tmp_path: Path, collector: Collector) -> None:
    kept = Kept(tmp_path, collector)
    log = kept.reader.store.log
    created = read_payload(log.read(kept.missions[0])[0])
    assert isinstance(created, MissionCreated)
    log.append("m-child", replace(created, parent=kept.missions[0], task="t1"), MissionFinished(status="promoted"))
    (span,) = mission_spans(log.read("m-child"))
    kept.reader.close()
    assert (span.trace, span.parent) == (trace_id(kept.missions[0]), span_id(kept.missions[0], "mission"))
    assert span.attributes["chargehand.task"] == "t1"


def test_a_key_in_the_agent_command_is_redacted(tmp_path: Path, collector: Collector) -> None:
    kept = Kept(tmp_path, collector)
    key = "sk-ant-0123456789abcdefghijkl"
    created = read_payload(kept.reader.store.log.read(kept.missions[0])[0])
    assert isinstance(created, MissionCreated)
    request = replace(created.request, agent=f"command:fix --key {key}")
    kept.reader.store.log.append("m-key", replace(created, request=request), MissionFinished(status="promoted"))
    text = json.dumps(mission_trace(kept.reader, "m-key"))
    kept.reader.close()
    assert "command:fix --key" in text
    assert key not in text


def test_the_report_command_prints_the_trace_of_a_mission(tmp_path: Path, collector: Collector) -> None:
    cli = Cli(tmp_path)
    with StateReader.open(environ=cli.environ, cwd=tmp_path) as reader:
        (mission,) = record_missions(reader, 1)
        reader.store.log.append(mission, MissionFinished(status="failed"))
    result = cli.say("mission", "report", mission, "--otlp", cwd=tmp_path)
    collector.take(result.stdout.encode())
    (span,) = collector.spans
    assert (span.name, span.status.message) == ("mission", "failed")
