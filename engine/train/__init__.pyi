from .admission import (
    PolicyGroups as PolicyGroups,
)
from .evaluation import (
    EVAL_ATTEMPTS as EVAL_ATTEMPTS,
    EvalRun as EvalRun,
    deciding as deciding,
)
from .held_out import (
    reached as reached,
    stalled as stalled,
)
from .loop import (
    TrainRun as TrainRun,
)
from .opening import (
    check_ready as check_ready,
)
from .publishing import (
    Retention as Retention,
)
from .trial import (
    TASK as TASK,
    Tried as Tried,
    cleared as cleared,
    read_copies as read_copies,
    read_speed as read_speed,
    speed_key as speed_key,
    speed_of as speed_of,
    try_base as try_base,
    write_copies as write_copies,
    write_speed as write_speed,
)
