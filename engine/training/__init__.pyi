from .adamw import (
    clip as clip,
)
from .advantages import (
    ClosedGroup as ClosedGroup,
)
from .advantages import (
    ClosingRules as ClosingRules,
)
from .advantages import (
    TooFewRewards as TooFewRewards,
)
from .advantages import (
    close_group as close_group,
)
from .decoder.compute import (
    compute_on as compute_on,
)
from .decoder.decoder import (
    Decoder as Decoder,
)
from .decoder.matrix import (
    loaded_as as loaded_as,
)
from .group_pass import (
    add_gradient as add_gradient,
)
from .intake import (
    spread as spread,
)
from .intake import (
    train_group as train_group,
)
from .layout import (
    Layout as Layout,
)
from .load import (
    keep_freed_memory as keep_freed_memory,
)
from .model import (
    Batch as Batch,
)
from .model import (
    Criterion as Criterion,
)
from .model import (
    Groups as Groups,
)
from .model import (
    Model as Model,
)
from .overlong import (
    Overlong as Overlong,
)
from .peft_model import (
    PeftModel as PeftModel,
)
from .policy_memory import (
    PolicyMemory as PolicyMemory,
)
from .policy_memory import (
    fresh as fresh,
)
from .protocol import (
    GroupStats as GroupStats,
)
from .protocol import (
    Job as Job,
)
from .protocol import (
    PolicyConfig as PolicyConfig,
)
from .protocol import (
    PolicyTrainer as PolicyTrainer,
)
from .protocol import (
    Refused as Refused,
)
from .protocol import (
    StepResult as StepResult,
)
from .protocol import (
    Trainer as Trainer,
)
from .protocol import (
    TrainGroup as TrainGroup,
)
from .protocol import (
    TrainSequence as TrainSequence,
)
from .rooms import (
    pass_room as pass_room,
)
from .torch_trainer import (
    TorchTrainer as TorchTrainer,
)
