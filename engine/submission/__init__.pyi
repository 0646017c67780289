from . import (
    taskfile as taskfile,
)
from .estimate import (
    BaseSpeed as BaseSpeed,
    EpisodeShape as EpisodeShape,
    TaskEstimate as TaskEstimate,
    TimeEstimate as TimeEstimate,
    estimate_task as estimate_task,
    rough_time as rough_time,
    together as together,
)
from .queue import (
    HomeBase as HomeBase,
    check_bases as check_bases,
    check_data as check_data,
    check_environment as check_environment,
    check_environments as check_environments,
    check_serve as check_serve,
    check_use as check_use,
    find_environment as find_environment,
    missing_rows as missing_rows,
    settled_base as settled_base,
)
from .references import (
    choose as choose,
    choose_at as choose_at,
    family_of as family_of,
    find_starts as find_starts,
    link as link,
    named_by as named_by,
    task_number as task_number,
)
from .taskfile import (
    ToPlay as ToPlay,
    demo_tasks as demo_tasks,
    environments_of as environments_of,
    sketch as sketch,
    submission as submission,
)
from .transitions import (
    PAST as PAST,
    TRANSITIONS as TRANSITIONS,
    next_state as next_state,
)
