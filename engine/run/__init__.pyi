from .evaluation.early_stop import (
    reached as reached,
    stalled as stalled,
)
from .evaluation.eval_run import (
    EvalRun as EvalRun,
)
from .evaluation.evaluator import (
    EVAL_ATTEMPTS as EVAL_ATTEMPTS,
)
from .evaluation.suites import (
    deciding as deciding,
)
from .group_pool import (
    GroupPool as GroupPool,
)
from .preflight import (
    check_ready as check_ready,
)
from .serving.retention import (
    Retention as Retention,
)
from .train_run import (
    TrainRun as TrainRun,
)
from .trial.base import (
    Tried as Tried,
    cleared as cleared,
    try_base as try_base,
)
from .trial.speeds import (
    read_copies as read_copies,
    read_speed as read_speed,
    speed_key as speed_key,
    speed_of as speed_of,
    write_copies as write_copies,
    write_speed as write_speed,
)
from .trial.step import (
    TASK as TASK,
)
