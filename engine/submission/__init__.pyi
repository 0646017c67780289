from . import demo as demo
from . import taskfile as taskfile
from .dependencies import (
    family_of as family_of,
)
from .dependencies import (
    link as link,
)
from .estimate import (
    TaskEstimate as TaskEstimate,
)
from .estimate import (
    TimeEstimate as TimeEstimate,
)
from .estimate import (
    estimate_task as estimate_task,
)
from .estimate import (
    together as together,
)
from .home_base import (
    HomeBase as HomeBase,
)
from .home_base import (
    check_serve as check_serve,
)
from .home_base import (
    check_use as check_use,
)
from .home_base import (
    check_wish as check_wish,
)
from .home_base import (
    settled_base as settled_base,
)
from .queue import (
    PAST as PAST,
)
from .queue import (
    TRANSITIONS as TRANSITIONS,
)
from .queue import (
    check_environment as check_environment,
)
from .queue import (
    find_environment as find_environment,
)
from .queue import (
    next_state as next_state,
)
from .starts import (
    find_starts as find_starts,
)
from .taskfile import (
    submission as submission,
)
from .version_names import (
    choose as choose,
)
from .version_names import (
    choose_at as choose_at,
)
from .version_names import (
    named_by as named_by,
)
