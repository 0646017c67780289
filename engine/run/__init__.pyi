from .admission import (
    GroupPool as GroupPool,
)
from .evaluation.eval_run import (
    EvalRun as EvalRun,
)
from .evaluation.evaluator import (
    EVAL_ATTEMPTS as EVAL_ATTEMPTS,
)
from .evaluation.scores import (
    reached as reached,
    stalled as stalled,
)
from .evaluation.suites import (
    deciding as deciding,
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
