from .agreement import (
    Agreement as Agreement,
)
from .agreement import (
    compare as compare,
)
from .agreement import (
    comparison_tokens as comparison_tokens,
)
from .lone_sampler import (
    BARE as BARE,
)
from .lone_sampler import (
    LonePlan as LonePlan,
)
from .lone_sampler import (
    LoneSampler as LoneSampler,
)
from .lone_sampler import (
    open_lone_sampler as open_lone_sampler,
)
from .lone_sampler import (
    plan_alone as plan_alone,
)
from .placement.asked import (
    Times as Times,
)
from .placement.balance import (
    Balance as Balance,
)
from .placement.balance import (
    Window as Window,
)
from .placement.balance import (
    card_seconds as card_seconds,
)
from .placement.balance import (
    modelled as modelled,
)
from .placement.cores import (
    on_cores as on_cores,
)
from .placement.words import (
    cards as cards,
)
from .placement_plan import (
    PlacementPlan as PlacementPlan,
)
from .placement_plan import (
    on_machine as on_machine,
)
from .placement_plan import (
    on_processor as on_processor,
)
from .placement_plan import (
    placed as placed,
)
from .placement_plan import (
    plans_of as plans_of,
)
from .routing.assignment import (
    Share as Share,
)
from .routing.assignment import (
    sampler_of as sampler_of,
)
from .routing.endpoints import (
    SamplerEndpoints as SamplerEndpoints,
)
from .routing.endpoints import (
    open_endpoint as open_endpoint,
)
from .routing.router import (
    Router as Router,
)
from .services import (
    Load as Load,
)
from .services import (
    Services as Services,
)
from .services_factory import (
    ServicesFactory as ServicesFactory,
)
from .supervisor import (
    WorkerSupervisor as WorkerSupervisor,
)
from .tolerance import (
    Tolerance as Tolerance,
)
from .tolerance import (
    tolerance_of as tolerance_of,
)
from .worker_specs import (
    LLAMA as LLAMA,
)
from .worker_specs import (
    TORCH as TORCH,
)
from .worker_specs import (
    TRAINER as TRAINER,
)
from .worker_specs import (
    VLLM as VLLM,
)
from .worker_specs import (
    WorkerSpec as WorkerSpec,
)
from .worker_specs import (
    plan_of as plan_of,
)
from .worker_specs import (
    sampler_spec as sampler_spec,
)
from .worker_specs import (
    stored_as as stored_as,
)
from .worker_specs import (
    trainer_spec as trainer_spec,
)
from .worker_specs import (
    with_sampler as with_sampler,
)
from .yielding.loop import (
    YieldLoop as YieldLoop,
)
from .yielding.words import (
    TAKEN_BACK as TAKEN_BACK,
)
from .yielding.words import (
    reason as reason,
)
from .yielding.words import (
    state as state,
)
