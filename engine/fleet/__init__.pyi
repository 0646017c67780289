from .lone_sampler import (
    BARE as BARE,
    LonePlan as LonePlan,
    LoneSampler as LoneSampler,
    open_lone_sampler as open_lone_sampler,
    plan_alone as plan_alone,
)
from .placement.capacity import (
    CORE as CORE,
    REFERENCE as REFERENCE,
    rates_of_cores as rates_of_cores,
    sampling_speed as sampling_speed,
)
from .placement.choices import (
    Copy as Copy,
    CopySpeed as CopySpeed,
    Times as Times,
    best as best,
    decides_precision as decides_precision,
    decides_weights as decides_weights,
    is_small as is_small,
    on_cores as on_cores,
)
from .placement.place import (
    cards_in_words as cards_in_words,
)
from .plan import (
    LLAMA as LLAMA,
    TORCH as TORCH,
    TRAINER as TRAINER,
    VLLM as VLLM,
    PlacementPlan as PlacementPlan,
    WorkerSpec as WorkerSpec,
    copies_of as copies_of,
    gguf_of as gguf_of,
    numbered as numbered,
    on_machine as on_machine,
    on_machines as on_machines,
    on_processor as on_processor,
    placed as placed,
    plan_of as plan_of,
    precision_words as precision_words,
    sampler_spec as sampler_spec,
    stored_as as stored_as,
    trainer_spec as trainer_spec,
    with_copy as with_copy,
    with_sampler as with_sampler,
)
from .processes import (
    EnvironmentHosts as EnvironmentHosts,
    WorkerProcesses as WorkerProcesses,
)
from .reference import (
    check_comparison as check_comparison,
    compare_base as compare_base,
    compare_once as compare_once,
    compared_before as compared_before,
    spoken_comparison as spoken_comparison,
)
from .routing.assignment import (
    Share as Share,
)
from .routing.router import (
    Agreement as Agreement,
    Router as Router,
    SamplerEndpoints as SamplerEndpoints,
    Tolerance as Tolerance,
    compare as compare,
    comparison_tokens as comparison_tokens,
    open_endpoint as open_endpoint,
    tolerance_of as tolerance_of,
)
from .services import (
    Load as Load,
    Services as Services,
    ServicesFactory as ServicesFactory,
)
from .supervisor import (
    WorkerSupervisor as WorkerSupervisor,
)
from .yielding.decision import (
    TAKEN_BACK as TAKEN_BACK,
    clock as clock,
    reason as reason,
    state as state,
)
from .yielding.loop import (
    YieldLoop as YieldLoop,
)
