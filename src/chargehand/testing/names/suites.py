"""Conformance suites of dialects, test runners, notifiers and sources of keys: what every registered one promises.

pytest collects them from a subclass that provides the fixture.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from chargehand.checks.runners.base import Runner
from chargehand.core.ports import KeySource
from chargehand.models.conversation import ConversationTurn, NeutralRequest, TextPart
from chargehand.models.dialects.base import ModelDialect
from chargehand.sandbox.contract import ExecResult


class DialectContract:
    """The promises of a dialect; provide the fixture `dialect`."""

    @pytest.fixture
    def dialect(self) -> ModelDialect:
        """Return the dialect; a subclass provides it."""
        raise NotImplementedError("a subclass gives the dialect")

    def test_a_request_is_read_as_it_was_written(self, dialect: ModelDialect) -> None:
        turn = ConversationTurn(role="user", parts=(TextPart(text="hello"),))
        asked = NeutralRequest(turns=(turn,), system=("be brief",), limit=77)
        written = dialect.write_request(asked, "m")
        assert written.left_out == ()
        read = dialect.read_request(json.loads(json.dumps(written.body)))
        assert (read.turns, read.system, read.limit) == (asked.turns, asked.system, asked.limit)
        assert dialect.output_limit(written.body) == 77

    def test_an_error_is_a_document_with_the_message(self, dialect: ModelDialect) -> None:
        assert "no money" in json.dumps(json.loads(dialect.write_error(402, "budget", "no money")))
        assert b"no money" in dialect.write_error_event(402, "budget", "no money")

    def test_a_document_that_is_no_reply_is_named(self, dialect: ModelDialect) -> None:
        documents: list[object] = [[], {"error": {"message": "overloaded"}}, {}]
        for document in documents:
            assert dialect.find_fault(document), document

    def test_the_key_is_in_one_header(self, dialect: ModelDialect) -> None:
        headers = dialect.provider_headers("k-1")
        assert [name for name, value in headers.items() if "k-1" in value] == [dialect.key_header]
        assert "k-1" not in str(dialect.provider_headers(None))


class RunnerContract:
    """The promises of a test runner; provide the fixture `runner`."""

    @pytest.fixture
    def runner(self) -> Runner:
        """Return the runner; a subclass provides it."""
        raise NotImplementedError("a subclass gives the runner")

    @pytest.mark.parametrize("output", ["", "ok\n", "3 passed\n", "\x1b[1m\u2713\n"])
    def test_only_an_exit_code_of_0_can_pass(self, runner: Runner, output: str) -> None:
        for code in (1, 2, 5, 101, 126, 127, 139):
            result = ExecResult(exit_code=code, stdout=b"", stderr=b"", seconds=0.1)
            assert runner.outcome(result, output, None).status != "passed", code

    def test_a_run_that_was_ended_never_passes(self, runner: Runner) -> None:
        for end in ({"timed_out": True}, {"limit": "memory"}):
            result = ExecResult(exit_code=0, stdout=b"", stderr=b"", seconds=0.1, **end)
            assert runner.outcome(result, "1 passed\n", None).status in ("timed_out", "failed")

    @pytest.mark.parametrize("name", ["", "test_a", "a/b.py::test_a[x]", "x::y::z", "line\nline", "\u2713 \ud800"])
    def test_every_name_of_a_test_has_parts(self, runner: Runner, name: str) -> None:
        parts = runner.split_name(name)
        assert all(part in name for part in parts)

    def test_each_of_its_commands_starts_it(self, runner: Runner) -> None:
        for start in runner.starts:
            program, *words = start.split()
            assert runner.is_started_by(program, words)
        assert not runner.is_started_by("unrelated-program", ["test"])

    def test_its_script_runs_the_command(self, runner: Runner) -> None:
        assert "some-program --flag" in runner.script("some-program --flag").text.splitlines()


class NotifierContract:
    """The promises of a notifier; provide the fixture `unreachable` and the class of the error."""

    failure: ClassVar[type[Exception]]
    secret: ClassVar[str] = "s3cret-of-the-test"

    @pytest.fixture
    def unreachable(self) -> tuple[Callable[[Any], Any], Any, Any, Any]:
        """Return a notifier, a setup without it, one whose recipient fails and knows `secret`, and a notice."""
        raise NotImplementedError("a subclass gives the notifier")

    def test_it_opens_no_channel_unless_configured(self, unreachable: tuple[Any, Any, Any, Any]) -> None:
        notifier, without, _, _ = unreachable
        assert notifier(without) is None

    def test_a_failed_delivery_is_an_error_without_the_secret(
        self, unreachable: tuple[Any, Any, Any, Any]
    ) -> None:
        notifier, _, failing, notice = unreachable
        channel = notifier(failing)
        assert channel.name
        with pytest.raises(self.failure) as caught:
            channel.send([notice])
        assert str(caught.value)
        assert self.secret not in str(caught.value)


class KeySourceContract:
    """The promises of a source of keys; provide the fixture `source`, which has `THE_KEY` with `value`."""

    value: ClassVar[str] = "s3cret-of-the-test"

    @pytest.fixture
    def source(self) -> KeySource:
        """Return the source; a subclass provides it."""
        raise NotImplementedError("a subclass gives the source")

    def test_it_returns_the_key_it_has(self, source: KeySource) -> None:
        assert source.get("THE_KEY") == self.value

    def test_a_missing_key_is_no_error(self, source: KeySource) -> None:
        assert source.get("ANOTHER_KEY") is None

    def test_its_representation_hides_values(self, source: KeySource) -> None:
        assert self.value not in repr(source)
