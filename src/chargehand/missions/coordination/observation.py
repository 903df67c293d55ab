"""Gathers the inputs of a coordinator's decisions: its plan's progress, and the states of its child missions."""

from __future__ import annotations

from chargehand.core.choices import AgentFacts, named_by_person
from chargehand.core.plan_events import PLAN_QUESTION, TASK_QUESTION
from chargehand.core.plans import Task
from chargehand.core.records import Base, MissionStatus
from chargehand.core.state import MissionSummary
from chargehand.missions.causes import mission_cause
from chargehand.missions.coordination.children import failed_agents
from chargehand.missions.coordination.situation import ChildMission, Ladder, Situation
from chargehand.missions.journal import Journal
from chargehand.missions.planning.collisions import collision, footprint
from chargehand.missions.reading import MissionReader, mission_ref, plan_seconds_used
from chargehand.missions.services import Services, TaskWish
from chargehand.store.rows import MissionFilter

# The identity under which a coordinator closes questions that no longer need a person.
ITSELF = "coordinator"


class PlanObserver:
    """Observes one mission that has a plan, and its children; every method may block."""

    def __init__(self, services: Services, journal: Journal, reader: MissionReader) -> None:
        self._services = services
        self._journal = journal
        self._look = reader
        # By child mission: the last line read, and the paths changed up to it.
        self._written: dict[str, tuple[int, frozenset[str]]] = {}

    def tip(self) -> Base:
        """Return the current tip of the coordinator's branch, as a base."""
        depot, first = self._services.depot, self._journal.state.first_base
        assert first is not None
        tip = depot.read_ref(mission_ref(self._journal.mission))
        if tip is None or tip == first.commit:
            return first
        return Base(commit=tip, tree=depot.tree_of(tip), revision=f"mission {self._journal.mission}")

    def children(self) -> dict[str, MissionSummary]:
        """Return the child missions by their ids, in their current state."""
        log, live = self._services.store.log, self._services.workers.live
        return {
            each.summary.id: each.summary
            for each in log.summaries(live, MissionFilter(parent=self._journal.mission))
        }

    def runs(self) -> dict[str, ChildMission]:
        """Return the child missions by their ids, as decisions see them."""
        children: dict[str, ChildMission] = {}
        for name, summary in self.children().items():
            status: MissionStatus = summary.status
            codes = {reason.code for reason in summary.reasons}
            # A mission that waits for quota or for a worker continues by itself: no person has to act.
            if status in ("waiting", "paused") and (summary.waits_for_quota or "worker_lost" in codes):
                status = "planned"
            cause = mission_cause(summary)
            children[name] = ChildMission(
                id=summary.id,
                status=status,
                stopping=summary.cancel_asked,
                changes=summary.commit is not None,
                reasons=summary.reasons,
                cause=cause.kind if cause is not None else "",
            )
        return children

    def situation(self) -> Situation:
        """Return all inputs of a decision."""
        progress = self._journal.state.plan
        assert progress is not None
        written: dict[str, tuple[str, ...]] = {}
        questions = self._journal.state.questions
        prefix = (TASK_QUESTION, PLAN_QUESTION)

        def footprint_of(task: Task) -> tuple[str, ...]:
            if task.id not in written:
                # Of all rounds: a new round has written nothing yet, and will write the same.
                runs = progress.tasks[task.id].runs if task.id in progress.tasks else ()
                paths = (path for run in runs for path in self._find_written(run.mission))
                written[task.id] = tuple(sorted(set(paths)))
            return written[task.id]

        return Situation(
            progress=progress,
            children=self.runs(),
            answers={
                name: asked.answer
                for name, asked in questions.items()
                if name.startswith(prefix) and asked.identity != ITSELF
            },
            at_once=progress.plan.at_once or self._services.attempts_at_once,
            is_strict=progress.plan.at_once > 0,
            elapsed=plan_seconds_used(self._journal.state, self._services.clock.now()),
            tip=self.tip().commit,
            changes=self._find_written,
            ladders=self._ladder,
            decider=self._services.decider,
            project=self._services.project,
            mission=self._journal.mission,
            collides=lambda task, other: (
                None
                if progress.is_allowed(task, other)
                else collision(footprint(task), footprint(other, footprint_of(other)))
            ),
        )

    def _find_written(self, mission: str) -> frozenset[str]:
        """Return the paths that a child mission has changed; its log is read again only if it grew."""
        seq = self._services.store.log.last_seq(mission)
        if mission not in self._written or self._written[mission][0] != seq:
            state, paths = self._look.state(mission), frozenset[str]()
            if state.base is not None and state.checkpoints:
                changes = self._services.depot.diff(state.base.tree, state.checkpoints[-1].tree)
                paths = frozenset(each.path for each in changes)
            self._written[mission] = seq, paths
        return self._written[mission][1]

    def _ladder(self, task: Task) -> Ladder:
        state, config = self._journal.state, self._services.config
        assert state.request is not None
        # The models of the task's own role and agent, not the mission's.
        tried = failed_agents(self._services.store, state, task)
        wish = TaskWish(avoid=tried, chosen=state.chosen)
        prepared = self._services.prepare_task(state.request, task, wish)
        assigned = prepared.request
        own = (*((assigned.model,) if assigned.model else ()), *assigned.fallback)
        agents = [AgentFacts.of(config, assigned.agent)]
        if "agent" not in named_by_person(assigned, prepared.chosen):
            others = (AgentFacts.of(config, name) for name in config.agents if name != assigned.agent)
            agents += [each for each in others if {*task.needs} <= {*each.offers}]
        return Ladder(
            models=task.models or tuple(dict.fromkeys(own)),
            agents=tuple(agents),
            has_other=bool(tried) and assigned.agent not in tried,
            money_left=self._services.money_left(self._journal.mission),
        )
