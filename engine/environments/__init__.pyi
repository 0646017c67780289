from .alone import (
    BlindEpisode as BlindEpisode,
    Meant as Meant,
    Peek as Peek,
    first_prompts as first_prompts,
    found_alone as found_alone,
    meant as meant,
    play_blind as play_blind,
    serve_alone as serve_alone,
    settled as settled,
)
from .baselines import (
    ConstantBaselines as ConstantBaselines,
    HeldOut as HeldOut,
    KnownScores as KnownScores,
    best_constant as best_constant,
)
from .conformance.check import (
    CROWD as CROWD,
    PROMPTS as PROMPTS,
    REST as REST,
    SECONDS as SECONDS,
    Background as Background,
    Scope as Scope,
    check as check,
    try_out as try_out,
)
from .conformance.checks import (
    Ruler as Ruler,
)
from .conformance.finding import (
    Finding as Finding,
    Level as Level,
    bounded as bounded,
    count as count,
)
from .dependencies.interpreters import (
    Interpreters as Interpreters,
    Refused as Refused,
    installed as installed,
    needs_of as needs_of,
)
from .dependencies.venv import (
    BuildFailed as BuildFailed,
    Venv as Venv,
    build as build,
    in_words as in_words,
)
from .durations import (
    quantile as quantile,
)
from .files.source import (
    Source as Source,
    SourceError as SourceError,
    plugin_paths as plugin_paths,
    read_source as read_source,
    shown as shown,
)
from .health import (
    Standstill as Standstill,
)
from .nodes.remote import (
    Caller as Caller,
    RemoteNode as RemoteNode,
)
from .outcomes import (
    Counted as Counted,
    OutcomeCounts as OutcomeCounts,
)
from .plugin import (
    said as said,
    unserved as unserved,
)
from .process.child import (
    Child as Child,
)
from .process.launch import (
    Folders as Folders,
    launch as launch,
    obstacle as obstacle,
)
from .process.wire import (
    Asked as Asked,
    Ended as Ended,
    encode_reply as encode_reply,
    encode_start as encode_start,
)
from .protocol import (
    FAILED as FAILED,
    Answering as Answering,
    Crew as Crew,
    DataFacts as DataFacts,
    EnvironmentEvent as EnvironmentEvent,
    EnvironmentInfo as EnvironmentInfo,
    EpisodeOutcome as EpisodeOutcome,
    EpisodeSpec as EpisodeSpec,
    FinalReward as FinalReward,
    FinishedEpisode as FinishedEpisode,
    Listener as Listener,
    Opens as Opens,
    Unscored as Unscored,
    endpoint_of as endpoint_of,
    no_endpoint as no_endpoint,
)
from .served_version import (
    Lease as Lease,
)
from .service import (
    EnvironmentService as EnvironmentService,
    find as find,
    ranked as ranked,
)
