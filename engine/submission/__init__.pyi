from . import (
    demo as demo,
    taskfile as taskfile,
)
from .data import (
    check_data as check_data,
    missing_rows as missing_rows,
)
from .dependencies import (
    family_of as family_of,
    link as link,
)
from .estimate import (
    TaskEstimate as TaskEstimate,
    TimeEstimate as TimeEstimate,
    estimate_task as estimate_task,
    together as together,
)
from .home_base import (
    HomeBase as HomeBase,
    check_bases as check_bases,
    check_serve as check_serve,
    check_use as check_use,
    settled_base as settled_base,
)
from .named_environments import (
    sketch as sketch,
)
from .queue import (
    check_environment as check_environment,
    check_environments as check_environments,
    find_environment as find_environment,
)
from .rough import (
    BaseSpeed as BaseSpeed,
    EpisodeShape as EpisodeShape,
    rough_time as rough_time,
)
from .starts import (
    find_starts as find_starts,
)
from .task_names import (
    task_number as task_number,
)
from .taskfile import (
    ToPlay as ToPlay,
    environments_of as environments_of,
    submission as submission,
)
from .transitions import (
    PAST as PAST,
    TRANSITIONS as TRANSITIONS,
    next_state as next_state,
)
from .version_names import (
    choose as choose,
    choose_at as choose_at,
    named_by as named_by,
)
