from .advantages import (
    ClosedGroup as ClosedGroup,
    ClosingRules as ClosingRules,
    Credit as Credit,
    Overlong as Overlong,
    RewardSummary as RewardSummary,
    TooFewRewards as TooFewRewards,
    close_group as close_group,
    pass_tokens as pass_tokens,
    spread as spread,
    teaches as teaches,
    train_group as train_group,
)
from .decoder.decoder import (
    Decoder as Decoder,
    compute_on as compute_on,
    score_by_layers as score_by_layers,
)
from .decoder.linear import (
    loaded_as as loaded_as,
)
from .group_pass import (
    add_gradient as add_gradient,
)
from .memory import (
    Layout as Layout,
    PolicyMemory as PolicyMemory,
    clip as clip,
    fresh as fresh,
)
from .model import (
    Batch as Batch,
    Criterion as Criterion,
    Groups as Groups,
    Model as Model,
    pass_room as pass_room,
)
from .peft_model import (
    PeftModel as PeftModel,
)
from .protocol import (
    GroupStats as GroupStats,
    Job as Job,
    PolicyConfig as PolicyConfig,
    PolicyTrainer as PolicyTrainer,
    Probe as Probe,
    Refused as Refused,
    StepResult as StepResult,
    Trainer as Trainer,
    TrainGroup as TrainGroup,
    TrainSequence as TrainSequence,
)
from .torch_trainer import (
    TorchTrainer as TorchTrainer,
    keep_freed_memory as keep_freed_memory,
)
