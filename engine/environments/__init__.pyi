from .alone import (
    Meant as Meant,
)
from .alone import (
    meant as meant,
)
from .alone import (
    serve_alone as serve_alone,
)
from .alone import (
    settled as settled,
)
from .baselines import (
    ConstantBaselines as ConstantBaselines,
)
from .baselines import (
    HeldOut as HeldOut,
)
from .conformance.background import (
    PROMPTS as PROMPTS,
)
from .conformance.background import (
    REST as REST,
)
from .conformance.background import (
    SECONDS as SECONDS,
)
from .conformance.background import (
    Background as Background,
)
from .conformance.check import (
    Scope as Scope,
)
from .conformance.check import (
    check as check,
)
from .conformance.finding import (
    Finding as Finding,
)
from .conformance.finding import (
    Level as Level,
)
from .conformance.finding import (
    bounded as bounded,
)
from .conformance.finding import (
    count as count,
)
from .conformance.lengths import (
    Ruler as Ruler,
)
from .dependencies.building import (
    BuildFailed as BuildFailed,
)
from .dependencies.building import (
    build as build,
)
from .dependencies.commands import (
    find_uv as find_uv,
)
from .dependencies.commands import (
    in_words as in_words,
)
from .dependencies.interpreters import (
    Interpreters as Interpreters,
)
from .dependencies.interpreters import (
    Refused as Refused,
)
from .dependencies.interpreters import (
    needs_of as needs_of,
)
from .dependencies.unclaimed import (
    installed as installed,
)
from .dependencies.venv import (
    Venv as Venv,
)
from .files.source import (
    Source as Source,
)
from .files.source import (
    SourceError as SourceError,
)
from .files.source import (
    plugin_paths as plugin_paths,
)
from .files.source import (
    read_source as read_source,
)
from .lease import (
    Lease as Lease,
)
from .names import (
    find as find,
)
from .outcomes import (
    Counted as Counted,
)
from .outcomes import (
    OutcomeCounts as OutcomeCounts,
)
from .outcomes import (
    quantile as quantile,
)
from .peek import (
    Peek as Peek,
)
from .peek import (
    first_prompts as first_prompts,
)
from .plugin import (
    said as said,
)
from .plugin import (
    unserved as unserved,
)
from .process.child import (
    Child as Child,
)
from .process.confinement import (
    obstacle as obstacle,
)
from .process.launch import (
    Folders as Folders,
)
from .process.launch import (
    launch as launch,
)
from .process.wire import (
    Asked as Asked,
)
from .process.wire import (
    Ended as Ended,
)
from .process.wire import (
    encode_reply as encode_reply,
)
from .process.wire import (
    encode_start as encode_start,
)
from .protocol import (
    EnvironmentEvent as EnvironmentEvent,
)
from .protocol import (
    EnvironmentInfo as EnvironmentInfo,
)
from .protocol import (
    EpisodeOutcome as EpisodeOutcome,
)
from .protocol import (
    EpisodeSpec as EpisodeSpec,
)
from .protocol import (
    Unscored as Unscored,
)
from .ranking import (
    ranked as ranked,
)
from .service import (
    EnvironmentService as EnvironmentService,
)
