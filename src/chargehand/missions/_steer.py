"""Steering missions that no worker runs at the moment; those that run take orders (`Control`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from chargehand.core.errors import RefusedError
from chargehand.core.events import Payload
from chargehand.core.ids import new_id
from chargehand.core.mission_events import (
    CLOCK,
    MessageSent,
    MissionFinished,
    MissionPaused,
    MissionResumed,
    QuestionAnswered,
)
from chargehand.core.records import MissionStatus, Reason
from chargehand.core.state import MissionState
from chargehand.missions._acknowledge import CANCEL, checked_answer, is_about_message
from chargehand.missions._hold import hold
from chargehand.missions._judgement import end_attempts
from chargehand.missions._kept_calls import put_away
from chargehand.missions._missions import Look
from chargehand.missions._sleep import GO_ON, wakes_at
from chargehand.missions._undelivered import with_undelivered
from chargehand.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Steering:
    """What a person does to a mission at rest; needs neither its repository nor a sandbox.

    Every method holds the mission for the moment it takes, and raises `RefusedError`: `mission_held` where a
    worker has it, else with the status that forbids it.
    """

    store: Store
    look: Look
    worker: str
    identity: str

    def pause(self, mission: str, reason: str = "") -> MissionState:
        """Keep a mission that waits for a worker from being taken."""
        paused = MissionPaused(identity=self.identity, reason=reason)
        return self._note(mission, paused, among=("planned", "paused"), verb="pause", code="not_pausable")

    def resume(self, mission: str) -> MissionState:
        """Let a worker take a paused mission; one that waits for a worker already is left as it is."""
        if self.look.state(mission).status == "planned" or self.store.log.get(mission).runnable:
            return self.look.state(mission)
        return self._note(
            mission, MissionResumed(identity=self.identity), among=("paused",), verb="resume", code="not_resumable"
        )

    def cancel(self, mission: str) -> MissionState:
        """End a mission that has not come to its end."""
        reason = Reason(code="cancelled", message="a person cancelled the mission")
        finished = MissionFinished(status="cancelled", reasons=(reason,))
        among: tuple[MissionStatus, ...] = ("planned", "paused", "waiting")
        return self._end(mission, finished, among=among, verb="cancel", code="not_cancellable")

    def discard(self, mission: str) -> MissionState:
        """Settle a mission as not wanted; its checkpoints stay until `gc`."""
        if self.look.state(mission).status == "discarded":
            return self.look.state(mission)
        reason = Reason(code="discarded", message="a person discarded the mission")
        finished = MissionFinished(status="discarded", reasons=(reason,))
        among: tuple[MissionStatus, ...] = (
            *("planned", "paused", "waiting"),
            *("refused", "failed", "exhausted", "cancelled"),
        )
        return self._end(mission, finished, among=among, verb="discard", code="not_discardable")

    def send(self, mission: str, text: str, *, critical: bool = False) -> MissionState:
        """Keep a message for the agent's next attempt."""
        message = MessageSent(identity=self.identity, text=text, message=new_id("message"), critical=critical)
        return self._note(mission, message, among=("planned", "paused"), verb="send to", code="not_sendable")

    def answer(self, mission: str, text: str) -> MissionState:
        """Answer what the agent of a mission asked, as far as nobody did; a worker may then go on with it.

        Raises `RefusedError` (`no_question`) where nothing is asked.
        """
        with hold(self.store.log, mission, worker=self.worker, look=self.look) as epoch:
            asked = self.look.at_rest(mission).open_question
            if asked is None:
                raise RefusedError(
                    f"mission {mission!r} asks nothing",
                    code="no_question",
                    hint=f"chargehand mission show {mission}; `mission promote` or `discard` decide on a result",
                )
            about_message = is_about_message(asked)
            said = checked_answer(text) if about_message else text
            more: list[Payload] = (
                [MissionResumed(identity=self.identity)] if about_message and said != CANCEL else []
            )
            answered = QuestionAnswered(question=asked.id, text=said, identity=self.identity)
            self.store.log.append(mission, answered, *more, epoch=epoch, durable=True)
        return self.cancel(mission) if about_message and said == CANCEL else self.look.state(mission)

    def wake(self, mission: str, *, now: datetime) -> bool:
        """Let a mission go on whose moment has come; `False` where it sleeps on, or does not sleep any more."""
        with hold(self.store.log, mission, worker=self.worker, look=self.look) as epoch:
            asked = self.look.at_rest(mission).waits_for_quota
            if asked is None or wakes_at(mission, asked.until) > now:
                return False
            answered = QuestionAnswered(question=asked.id, text=GO_ON, identity=CLOCK)
            self.store.log.append(mission, answered, epoch=epoch, durable=True)
        return True

    def give_up(self, mission: str, reason: Reason) -> MissionState:
        """End a mission that a worker should go on with and cannot, unless it came to rest meanwhile."""
        finished = MissionFinished(status="failed", reasons=(reason,))
        with hold(self.store.log, mission, worker=self.worker, look=self.look) as epoch:
            if self.store.log.get(mission).runnable:
                told = with_undelivered(self.look.at_rest(mission), finished)
                self.store.log.append(mission, *told, epoch=epoch, durable=True)
        return self.look.state(mission)

    def _note(
        self, mission: str, *payloads: Payload, among: tuple[MissionStatus, ...], verb: str, code: str
    ) -> MissionState:
        with hold(self.store.log, mission, worker=self.worker, look=self.look) as epoch:
            status = self._at_rest(mission)
            if status not in among:
                raise RefusedError(
                    f"mission {mission!r} is {status}: there is nothing to {verb}",
                    code=code,
                    hint=_HINTS.get(status, f"chargehand mission show {mission}").format(mission=mission),
                )
            self.store.log.append(mission, *payloads, epoch=epoch, durable=True)
        return self.look.state(mission)

    def _end(
        self, mission: str, finished: MissionFinished, *, among: tuple[MissionStatus, ...], verb: str, code: str
    ) -> MissionState:
        """Settle a mission, and the attempts that would have gone on."""
        before = self.look.at_rest(mission)
        ended = end_attempts(before, finished.reasons[0])
        told = with_undelivered(before, finished)
        state = self._note(mission, *ended, *told, among=among, verb=verb, code=code)
        put_away(self.store, mission, *(each.attempt for each in ended))
        return state

    def _at_rest(self, mission: str) -> MissionStatus:
        """Return the status it had before we held it: what looks as if it ran is our own hold."""
        return self.look.at_rest(mission).status


_HINTS: dict[MissionStatus, str] = {
    "promoted": "roll it back first: chargehand mission rollback {mission}",
    "waiting": "chargehand mission answer {mission} TEXT, or promote or discard it",
    "running": "chargehand mission cancel {mission} stops it",
}
