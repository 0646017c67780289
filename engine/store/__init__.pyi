from . import events as events
from .backup import (
    Held as Held,
)
from .backup import (
    check_copy as check_copy,
)
from .database import (
    insert as insert,
)
from .database import (
    insert_all as insert_all,
)
from .database import (
    open_database as open_database,
)
from .database import (
    transaction as transaction,
)
from .days import (
    day_of as day_of,
)
from .events import (
    LEVELS as LEVELS,
)
from .events import (
    EventFilter as EventFilter,
)
from .events import (
    newest as newest,
)
from .experience import (
    Beside as Beside,
)
from .experience import (
    ExperienceTable as ExperienceTable,
)
from .experience import (
    PolicyGroup as PolicyGroup,
)
from .metric_names import (
    stale as stale,
)
from .metric_names import (
    stale_age as stale_age,
)
from .queries import rollouts as rollouts
from .queries import timeline as timeline
from .queries.conversations import (
    conversation as conversation,
)
from .queries.conversations import (
    episode as episode,
)
from .queries.devices import (
    DeviceRow as DeviceRow,
)
from .queries.devices import (
    device_rows as device_rows,
)
from .queries.devices import (
    held_by as held_by,
)
from .queries.environment_use import (
    EnvironmentUse as EnvironmentUse,
)
from .queries.environment_use import (
    EpisodeFailure as EpisodeFailure,
)
from .queries.environment_use import (
    EpisodeUse as EpisodeUse,
)
from .queries.environment_use import (
    environment_use as environment_use,
)
from .queries.history import (
    History as History,
)
from .queries.history import (
    Track as Track,
)
from .queries.history import (
    ages as ages,
)
from .queries.history import (
    history as history,
)
from .queries.history import (
    measured as measured,
)
from .queries.history import (
    samples as samples,
)
from .queries.kept import (
    KeptVersion as KeptVersion,
)
from .queries.kept import (
    Placeholders as Placeholders,
)
from .queries.kept import (
    kept_marks as kept_marks,
)
from .queries.kept import (
    kept_versions as kept_versions,
)
from .queries.matchups import (
    Matchup as Matchup,
)
from .queries.matchups import (
    matchups as matchups,
)
from .queries.past_runs import (
    PastRun as PastRun,
)
from .queries.past_runs import (
    past_runs as past_runs,
)
from .queries.policies import (
    PolicyRow as PolicyRow,
)
from .queries.reader import (
    Reader as Reader,
)
from .queries.recorded import (
    RecordedAgent as RecordedAgent,
)
from .queries.recorded import (
    RecordedEpisode as RecordedEpisode,
)
from .queries.recorded import (
    RecordedGroup as RecordedGroup,
)
from .queries.recorded import (
    Recordings as Recordings,
)
from .queries.rollout_rows import (
    EVAL as EVAL,
)
from .queries.rollout_rows import (
    TRAIN as TRAIN,
)
from .queries.rollout_rows import (
    Conversation as Conversation,
)
from .queries.rollout_rows import (
    ConversationSummary as ConversationSummary,
)
from .queries.rollout_rows import (
    GroupSummary as GroupSummary,
)
from .queries.rollout_rows import (
    MemberSummary as MemberSummary,
)
from .queries.rollout_rows import (
    Paid as Paid,
)
from .queries.rollout_rows import (
    StepSummary as StepSummary,
)
from .queries.rollout_rows import (
    StoredTrajectory as StoredTrajectory,
)
from .queries.rollout_rows import (
    Tokens as Tokens,
)
from .queries.statistics import (
    StageUse as StageUse,
)
from .queries.statistics import (
    Statistics as Statistics,
)
from .queries.statistics import (
    TaskUse as TaskUse,
)
from .queries.statistics import (
    TenantUse as TenantUse,
)
from .queries.statistics import (
    engine_cost as engine_cost,
)
from .queries.statistics import (
    tenants_used as tenants_used,
)
from .queries.timeline import (
    STAGES as STAGES,
)
from .queries.timeline import (
    WORKER as WORKER,
)
from .queries.timeline import (
    StageSample as StageSample,
)
from .queries.timeline import (
    StandingRow as StandingRow,
)
from .queries.timeline import (
    TenantSeconds as TenantSeconds,
)
from .rows import (
    ACTIVE as ACTIVE,
)
from .rows import (
    FINISHED as FINISHED,
)
from .rows import (
    HOURS as HOURS,
)
from .rows import (
    IDLE as IDLE,
)
from .rows import (
    NO_REASON as NO_REASON,
)
from .rows import (
    YIELDED as YIELDED,
)
from .rows import (
    BoundTask as BoundTask,
)
from .rows import (
    EngineRow as EngineRow,
)
from .rows import (
    EnvironmentRow as EnvironmentRow,
)
from .rows import (
    EvalRow as EvalRow,
)
from .rows import (
    EventRow as EventRow,
)
from .rows import (
    KnownTask as KnownTask,
)
from .rows import (
    PaceRow as PaceRow,
)
from .rows import (
    Reason as Reason,
)
from .rows import (
    ReasonCode as ReasonCode,
)
from .rows import (
    Rest as Rest,
)
from .rows import (
    StepRow as StepRow,
)
from .rows import (
    TaskRow as TaskRow,
)
from .rows import (
    TenantRow as TenantRow,
)
from .rows import (
    TrajectoryRow as TrajectoryRow,
)
from .rows import (
    Turn as Turn,
)
from .rows import (
    VersionRow as VersionRow,
)
from .rows import (
    WorkerRow as WorkerRow,
)
from .rows import (
    YieldRequest as YieldRequest,
)
from .schema import (
    is_current as is_current,
)
from .sources import (
    task_source as task_source,
)
from .store import (
    Store as Store,
)
from .submissions import (
    YIELDS as YIELDS,
)
from .submissions import (
    Borrowed as Borrowed,
)
from .submissions import (
    Submission as Submission,
)
from .submissions import (
    command as command,
)
from .submissions import (
    command_all as command_all,
)
from .submissions import (
    submit as submit,
)
from .tasks import (
    Command as Command,
)
from .tasks import (
    Needed as Needed,
)
from .tasks import (
    QueuedTask as QueuedTask,
)
from .tenants import (
    Tenant as Tenant,
)
from .versions import (
    Evaluation as Evaluation,
)
from .versions import (
    NewVersion as NewVersion,
)
from .versions import (
    Version as Version,
)
