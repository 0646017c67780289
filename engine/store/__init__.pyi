from .backup import (
    Held as Held,
    check_copy as check_copy,
)
from .database import (
    insert as insert,
    insert_all as insert_all,
    open_database as open_database,
    transaction as transaction,
)
from .evaluations import (
    Evaluation as Evaluation,
    EvaluationTable as EvaluationTable,
    FindingTable as FindingTable,
    HeldOutScore as HeldOutScore,
    Known as Known,
    NewFinding as NewFinding,
    Said as Said,
    StepSeen as StepSeen,
    best as best,
)
from .experience import (
    Beside as Beside,
    Draw as Draw,
    ExperienceTable as ExperienceTable,
    OpenPlay as OpenPlay,
    PolicyGroup as PolicyGroup,
    Speaking as Speaking,
)
from .queries import (
    timings as timings,
)
from .queries.episodes import (
    EVAL as EVAL,
    TRAIN as TRAIN,
    ConversationSummary as ConversationSummary,
    GroupSummary as GroupSummary,
    MemberSummary as MemberSummary,
    Paid as Paid,
    RecordedAgent as RecordedAgent,
    RecordedEpisode as RecordedEpisode,
    RecordedGroup as RecordedGroup,
    StepSummary as StepSummary,
    StoredConversation as StoredConversation,
    StoredTrajectory as StoredTrajectory,
    Tokens as Tokens,
    reply_ends as reply_ends,
)
from .queries.learning import (
    FirstStep as FirstStep,
    GivenName as GivenName,
    History as History,
    KeptMarks as KeptMarks,
    KeptVersion as KeptVersion,
    Matchup as Matchup,
    PastRun as PastRun,
    ProgressRow as ProgressRow,
    Total as Total,
    Track as Track,
)
from .queries.machine import (
    LEVELS as LEVELS,
    STAGES as STAGES,
    WORKER as WORKER,
    DeviceRow as DeviceRow,
    EnvironmentUse as EnvironmentUse,
    EpisodeFailure as EpisodeFailure,
    EpisodeUse as EpisodeUse,
    EventFilter as EventFilter,
    NodeRow as NodeRow,
    StageSample as StageSample,
    StandingRow as StandingRow,
    TaskUse as TaskUse,
    TenantUse as TenantUse,
    engine_cost as engine_cost,
    held_by as held_by,
    tenants_used as tenants_used,
)
from .queries.reader import (
    Reader as Reader,
)
from .rows import (
    ACTIVE as ACTIVE,
    FINISHED as FINISHED,
    HOURS as HOURS,
    IDLE as IDLE,
    NO_REASON as NO_REASON,
    YIELDED as YIELDED,
    ApiKeyRow as ApiKeyRow,
    ApiRow as ApiRow,
    BoundTask as BoundTask,
    EngineRow as EngineRow,
    EnvironmentRow as EnvironmentRow,
    EvalRow as EvalRow,
    EventRow as EventRow,
    FindingRow as FindingRow,
    KnownTask as KnownTask,
    LostEpisodes as LostEpisodes,
    PaceRow as PaceRow,
    PolicyRow as PolicyRow,
    Reason as Reason,
    ReasonCode as ReasonCode,
    ScoreBasis as ScoreBasis,
    StepRow as StepRow,
    TaskRow as TaskRow,
    TenantRow as TenantRow,
    TrajectoryRow as TrajectoryRow,
    Turn as Turn,
    VersionRow as VersionRow,
    WorkerRow as WorkerRow,
    Yielding as Yielding,
    YieldRequest as YieldRequest,
    day_of as day_of,
    stale as stale,
    stale_age as stale_age,
)
from .schema import (
    is_current as is_current,
)
from .store import (
    Store as Store,
)
from .submissions import (
    API_SWITCHES as API_SWITCHES,
    NODE_COMMANDS as NODE_COMMANDS,
    YIELDS as YIELDS,
    Borrowed as Borrowed,
    Submission as Submission,
    add_key as add_key,
    command as command,
    command_all as command_all,
    revoke_key as revoke_key,
    submit as submit,
)
from .tasks import (
    Command as Command,
    Needed as Needed,
    QueuedTask as QueuedTask,
)
from .tenants import (
    ApiTable as ApiTable,
    KeyUse as KeyUse,
    ServedTable as ServedTable,
    Tenant as Tenant,
)
from .versions import (
    NewVersion as NewVersion,
    Version as Version,
)
