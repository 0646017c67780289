from . import (
    events as events,
)
from .backup import (
    Held as Held,
    check_copy as check_copy,
)
from .clients.keys import (
    add_key as add_key,
    revoke_key as revoke_key,
)
from .clients.served import (
    ApiTable as ApiTable,
    KeyUse as KeyUse,
    ServedTable as ServedTable,
)
from .database import (
    insert as insert,
    insert_all as insert_all,
    open_database as open_database,
    transaction as transaction,
)
from .days import (
    day_of as day_of,
)
from .evaluations import (
    Evaluation as Evaluation,
    EvaluationTable as EvaluationTable,
    HeldOutScore as HeldOutScore,
    best as best,
)
from .events import (
    LEVELS as LEVELS,
    EventFilter as EventFilter,
    newest as newest,
)
from .experience import (
    Beside as Beside,
    Draw as Draw,
    ExperienceTable as ExperienceTable,
    KeptMember as KeptMember,
    MeasuredEpisode as MeasuredEpisode,
    OpenPlay as OpenPlay,
    PolicyGroup as PolicyGroup,
    Speaking as Speaking,
)
from .findings import (
    FindingTable as FindingTable,
    Known as Known,
    NewFinding as NewFinding,
    Said as Said,
    StepSeen as StepSeen,
)
from .metric_names import (
    stale as stale,
    stale_age as stale_age,
)
from .queries import (
    timeline as timeline,
    timings as timings,
)
from .queries.api import (
    api_keys as api_keys,
    api_state as api_state,
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
    Recordings as Recordings,
    StepSummary as StepSummary,
    StoredConversation as StoredConversation,
    StoredTrajectory as StoredTrajectory,
    Tokens as Tokens,
    conversation as conversation,
    episode as episode,
    reply_ends as reply_ends,
)
from .queries.findings import (
    FindingRow as FindingRow,
)
from .queries.history import (
    History as History,
    Track as Track,
    ages as ages,
    history as history,
    measured as measured,
    samples as samples,
)
from .queries.machine import (
    DeviceRow as DeviceRow,
    EnvironmentUse as EnvironmentUse,
    EpisodeFailure as EpisodeFailure,
    EpisodeUse as EpisodeUse,
    NodeRow as NodeRow,
    StageUse as StageUse,
    Statistics as Statistics,
    TaskUse as TaskUse,
    TenantUse as TenantUse,
    device_rows as device_rows,
    drained_nodes as drained_nodes,
    engine_cost as engine_cost,
    environment_use as environment_use,
    held_by as held_by,
    node_rows as node_rows,
    tenants_used as tenants_used,
)
from .queries.policies import (
    PolicyRow as PolicyRow,
)
from .queries.reader import (
    Reader as Reader,
)
from .queries.tasks import (
    FirstStep as FirstStep,
    PastRun as PastRun,
    ProgressRow as ProgressRow,
    Total as Total,
    past_runs as past_runs,
    progress as progress,
    totals as totals,
)
from .queries.timeline import (
    STAGES as STAGES,
    WORKER as WORKER,
    StageSample as StageSample,
    StandingRow as StandingRow,
    TenantSeconds as TenantSeconds,
)
from .queries.versions import (
    GivenName as GivenName,
    KeptMarks as KeptMarks,
    KeptVersion as KeptVersion,
    Matchup as Matchup,
    kept_marks as kept_marks,
    kept_versions as kept_versions,
    matchups as matchups,
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
    KnownTask as KnownTask,
    LostEpisodes as LostEpisodes,
    PaceRow as PaceRow,
    Reason as Reason,
    ReasonCode as ReasonCode,
    StepRow as StepRow,
    TaskRow as TaskRow,
    TenantRow as TenantRow,
    TrajectoryRow as TrajectoryRow,
    Turn as Turn,
    VersionRow as VersionRow,
    WorkerRow as WorkerRow,
    Yielding as Yielding,
    YieldRequest as YieldRequest,
)
from .schema import (
    is_current as is_current,
)
from .score_basis import (
    ScoreBasis as ScoreBasis,
)
from .sources import (
    task_source as task_source,
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
    command as command,
    command_all as command_all,
    submit as submit,
)
from .tasks import (
    Command as Command,
    Needed as Needed,
    QueuedTask as QueuedTask,
)
from .tenants import (
    Tenant as Tenant,
)
from .versions import (
    NewVersion as NewVersion,
    Version as Version,
)
