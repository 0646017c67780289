"""What the application asks of a home: one protocol, whoever answers. Views, verbs and the client know nothing else.

Every question is short, returns frozen rows, and raises ``StoreError`` where it cannot be answered. Questions about
what a task learned are about one of its policies: the first, where none is named. A reader is used from one thread at a
time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from marlaas.engine.store import (
        ApiKeyRow,
        ApiRow,
        ConversationSummary,
        DeviceRow,
        EngineRow,
        EnvironmentRow,
        EnvironmentUse,
        EvalRow,
        EventFilter,
        EventRow,
        FirstStep,
        GivenName,
        GroupSummary,
        History,
        KeptMarks,
        KeptVersion,
        KnownTask,
        Matchup,
        NodeRow,
        PaceRow,
        PastRun,
        ProgressRow,
        RecordedGroup,
        StageSample,
        StandingRow,
        StepRow,
        StepSummary,
        StoredConversation,
        TaskRow,
        TaskUse,
        TenantRow,
        TenantUse,
        Track,
        TrajectoryRow,
        VersionRow,
        WorkerRow,
    )


class HomeReader(Protocol):
    """Answers questions about one home until it is closed."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def close(self) -> None:
        """Close it; nothing can be asked after that."""

    def changed(self) -> int:
        """A number that differs once anybody else has written; cheap enough to ask once a second."""

    def stale(self) -> bool:
        """Whether the home was replaced or is gone, so that another reader must be opened."""

    # Tasks and who submits them

    def tasks(self) -> list[TaskRow]:
        """All tasks, oldest first."""

    def task(self, task: int) -> TaskRow | None:
        """One task."""

    def known_tasks(self) -> list[KnownTask]:
        """All tasks, with what dependencies on them need, oldest first."""

    def needs(self, task: int) -> list[TaskRow]:
        """The tasks on which this one depends."""

    def warnings(self, task: int) -> list[str]:
        """What people should know of a task, oldest first."""

    def task_config(self, task: int) -> dict[str, Any]:
        """The whole task file with defaults filled; empty for an unknown task."""

    def task_source(self, task: int) -> str:
        """The task file as its author wrote it; empty for a task that was made without one, and for an unknown one."""

    def tasks_from(self, source: str) -> list[int]:
        """Numbers of the tasks that wait or run and were made from exactly this text of a task file, oldest first."""

    def past_runs(self, names: Sequence[str], base: str) -> list[PastRun]:
        """Past runs on environments of these names and on this base, newest first."""

    def progress(self, since: float) -> list[ProgressRow]:
        """Policies with steps that were committed since a moment (seconds since 1970), oldest first."""

    def tenants(self, day: str) -> list[TenantRow]:
        """Tenants that have tasks, or settings of their own; ``day`` is today in UTC: 2026-11-21."""

    def weights(self) -> dict[str, float]:
        """Weights of tenants; a tenant without one has weight 1."""

    def command_outcomes(self, commands: Iterable[int]) -> dict[int, str]:
        """Outcomes of the commands that the engine has carried out; an empty text is success."""

    # How a task learns

    def rewards(self, task: int, limit: int = 60, policy: str | None = None) -> list[float]:
        """Mean training rewards of the last ``limit`` steps, oldest first, for sparklines."""

    def pace(self, task: int, over: int = 20, policy: str | None = None) -> PaceRow | None:
        """Speed over the last ``over`` steps, of the policy furthest behind unless one is named; None before step 2."""

    def steps(self, task: int, after: int = 0, policy: str | None = None) -> list[StepRow]:
        """Steps with a number above ``after``, oldest first, with all their metrics."""

    def evals(self, task: int, policy: str | None = None) -> list[EvalRow]:
        """Held-out evaluations, oldest first."""

    def evals_made(self, task: int, policy: str | None = None) -> tuple[int, int]:
        """The number of evaluations and the newest one's id; where both are the same, the evaluations are."""

    def history(
        self, task: int, names: Iterable[str], before: History | None = None, policy: str | None = None
    ) -> History:
        """These metrics by step; what ``before`` holds is not read again, unless steps were made anew since."""

    def metric_samples(self, task: int, most: int = 64, policy: str | None = None) -> dict[str, Track]:
        """All metrics at about ``most`` steps, spread evenly over the run, and at the newest ones: for sparklines."""

    def group_ages(self, task: int, after: int, policy: str | None = None) -> dict[int, int]:
        """Counts of groups by staleness in versions, over the steps above ``after``."""

    def recent_means(self, task: int, over: int = 10, policy: str | None = None) -> dict[str, float]:
        """The mean of each metric over the last ``over`` steps."""

    def first_step(self, task: int, policy: str | None = None) -> FirstStep | None:
        """How many episodes of its first step are there; None once it has made one."""

    # Versions

    def versions(self, task: int | None = None, kept: bool = False) -> list[VersionRow]:
        """Adapter versions, newest first, without void ones; with ``kept`` only those whose files are on the disk."""

    def kept_marks(self) -> KeptMarks:
        """A mark for each policy, which changes with its versions, their scores or its task."""

    def kept_versions(self, policies: Iterable[int]) -> list[KeptVersion]:
        """Versions of these policies that are on the disk."""

    def given_names(self) -> list[GivenName]:
        """The names that tenants have given to versions, by tenant and name."""

    def matchups(self, task: int) -> list[Matchup]:
        """How a task's versions did against each other."""

    # Rollouts: ids first, then rows by id, a page at a time. The id of a conversation is that of its first trajectory.

    def rollout_steps(self, task: int, since: int = 0, policy: str | None = None) -> list[StepSummary]:
        """Steps and evaluations from step ``since`` on, oldest first; groups that no step has consumed come last."""

    def group_ids(
        self,
        task: int,
        split: str | None = None,
        step: int | None = None,
        failures: bool = False,
        policy: str | None = None,
    ) -> array[int]:
        """Ids of groups, newest first: of a step or evaluation where ``split`` is given, else of all.

        ``step`` None: the groups that no step has consumed. ``failures``: only those with an episode that failed.
        """

    def group_ids_numbered(
        self, task: int, split: str, number: int, step: int | None = None, policy: str | None = None
    ) -> array[int]:
        """Ids of the groups of a number, newest first; with ``step`` only the groups of that step."""

    def group_rows(self, ids: Sequence[int]) -> Mapping[int, GroupSummary]:
        """Some groups by id."""

    def conversation_ids(
        self,
        task: int,
        split: str | None = None,
        step: int | None = None,
        group: int | None = None,
        failures: bool = False,
        after: int = 0,
        policy: str | None = None,
    ) -> array[int]:
        """Ids of conversations: of a group's play by member, else of a policy's step, newest first.

        Without either, all that a policy played, or where none is named the whole task. ``failures``: only those that
        failed; ``after``: only those with a trajectory above this id.
        """

    def conversation_rows(self, ids: Sequence[int]) -> Mapping[int, ConversationSummary]:
        """Some conversations by id."""

    def conversation_texts(self, ids: Sequence[int]) -> Mapping[int, str]:
        """Everything that was said in some conversations, by id, as JSON: for searching."""

    def conversation(self, id: int) -> StoredConversation | None:
        """One conversation with its tokens; None where it is gone."""

    def episode(self, id: int) -> list[StoredConversation]:
        """All conversations of one episode, the one with this id first."""

    def prompt_scores(self, task: int, evaluation: EvalRow, policy: str | None = None) -> dict[int, float]:
        """The mean reward of each instance of one of the policy's evaluations, by instance."""

    def trajectories(self, task: int, limit: int = 50, before: int | None = None) -> list[TrajectoryRow]:
        """Trajectories, newest first; ``before`` (an id) pages back."""

    def newest_group(self, task: int, policy: str | None = None) -> list[TrajectoryRow]:
        """Everything that agents said in the play of the newest training group, the last member first."""

    def newest_rollout(self, task: int, policy: str | None = None) -> TrajectoryRow | None:
        """The newest trajectory in the play of the newest training group, one with a reward if there is one."""

    def recorded_groups(self, task: int, split: str, last: int, component: str = "") -> list[RecordedGroup]:
        """The ``last`` groups of a task's split as they were played, in the order of training or of evaluation.

        Of a task with a mixture: those of the ``component`` of this name.
        """

    # Environments and events

    def environments(self) -> list[EnvironmentRow]:
        """Environments as the engine last saw them."""

    def environment_use(self, now: float, seconds: float = 3600) -> dict[str, EnvironmentUse]:
        """What came of the episodes of the last ``seconds`` by environment."""

    def events(self, task: int | None = None, after: int = 0, limit: int = 200) -> list[EventRow]:
        """The last ``limit`` events with an id above ``after``, oldest first; of one task, or of all."""

    def event_ids(self, wanted: EventFilter, after: int = 0) -> array[int]:
        """Ids above ``after`` of the events that pass a filter, oldest first."""

    def event_rows(self, wanted: Sequence[int]) -> Mapping[int, EventRow]:
        """Some events by id; those that are gone are left out."""

    def newest_events(self, wanted: EventFilter, after: int = 0, limit: int = 200) -> list[EventRow]:
        """The last ``limit`` events that pass a filter, with an id above ``after``, oldest first."""

    def event_bounds(self) -> tuple[int, int]:
        """Ids of the oldest and the newest stored event; 0 where there are none."""

    # The engine and its machine

    def engine(self) -> EngineRow | None:
        """The newest engine, or None if none ever ran."""

    def engine_starts(self, limit: int) -> list[EngineRow]:
        """The newest engines of the home, newest first."""

    def workers(self) -> list[WorkerRow]:
        """Worker processes of the newest engine."""

    def devices(self) -> list[DeviceRow]:
        """All cards, in the driver's order; none where the engine has seen none."""

    def nodes(self) -> list[NodeRow]:
        """The machines of the cluster, the engine's first; none where the engine knows of no cluster."""

    def drained_nodes(self) -> frozenset[str]:
        """Names of the machines that people drain, or have asked the next engine to drain."""

    def api_state(self) -> ApiRow | None:
        """Whether the API is open, as its engine wrote last; None where it was never asked for."""

    def api_keys(self) -> list[ApiKeyRow]:
        """Keys of the API, revoked ones too, oldest first."""

    def newest_samples(self) -> tuple[float, float]:
        """Begin and end of the newest samples of the stages, in seconds since 1970; 0 where there are none."""

    def stage_spans(self, since: float, grain: int) -> list[StageSample]:
        """Samples of every stage on every device, put together to ``grain`` seconds of the clock, oldest first."""

    def stage_totals(self, since: float) -> dict[str, StageSample]:
        """The sum of every stage since a time, whatever the device."""

    def stages(self, since: float) -> list[StageSample]:
        """Every stage since a time, one row for each device."""

    def turn_rate(self, over: float = 10.0) -> float | None:
        """Turns a second of all samplers together, over the last seconds that were measured; None before that."""

    def steps_since(self, since: float) -> int:
        """Number of optimizer steps committed since a recent time."""

    def standings(self) -> list[StandingRow]:
        """Who waits in line, as the engine last wrote it."""

    def seconds_used(self, day: str) -> list[TenantUse]:
        """Tenants that used a shared stage on a day (2026-11-21, UTC), or have a task that runs; by name."""

    def tasks_used(self, day: str) -> list[TaskUse]:
        """Tasks that run, or used something since the beginning of a day (2026-11-21, UTC)."""
