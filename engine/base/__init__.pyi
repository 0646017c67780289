from .arithmetic import (
    halves as halves,
)
from .arithmetic import (
    rms_norm as rms_norm,
)
from .arithmetic import (
    rms_norm_backward as rms_norm_backward,
)
from .arithmetic import (
    rotate as rotate,
)
from .arithmetic import (
    swiglu as swiglu,
)
from .arithmetic import (
    swiglu_backward as swiglu_backward,
)
from .chat.template import (
    SWITCH as SWITCH,
)
from .chat.template import (
    load_template as load_template,
)
from .chat.template import (
    read_settings as read_settings,
)
from .chat.template import (
    token_name as token_name,
)
from .computed import (
    unsupported as unsupported,
)
from .config import (
    FAMILIES as FAMILIES,
)
from .config import (
    BaseConfig as BaseConfig,
)
from .config import (
    read_config as read_config,
)
from .download import (
    download_base as download_base,
)
from .find import (
    SHIPPED as SHIPPED,
)
from .find import (
    anchored as anchored,
)
from .find import (
    cache_folder as cache_folder,
)
from .find import (
    cached_bases as cached_bases,
)
from .find import (
    find_base as find_base,
)
from .find import (
    hub_name as hub_name,
)
from .fit import (
    ENOUGH as ENOUGH,
)
from .fit import (
    FEW_SLOTS as FEW_SLOTS,
)
from .fit import (
    LEAST as LEAST,
)
from .fit import (
    ROOMS as ROOMS,
)
from .fit import (
    SMALL as SMALL,
)
from .fit import (
    MemoryPlan as MemoryPlan,
)
from .fit import (
    least_plan as least_plan,
)
from .fit import (
    plan_memory as plan_memory,
)
from .gguf.adapter import (
    adapter_in_memory as adapter_in_memory,
)
from .gguf.adapter import (
    write_adapter as write_adapter,
)
from .gguf.base import (
    base_bytes as base_bytes,
)
from .gguf.base import (
    path_of as path_of,
)
from .gguf.base import (
    write_base as write_base,
)
from .gguf.brought import (
    brought_names as brought_names,
)
from .gguf.names import (
    GgufNames as GgufNames,
)
from .gguf.names import (
    names_like as names_like,
)
from .gguf.names import (
    names_of as names_of,
)
from .kernels import (
    add_product as add_product,
)
from .kernels import (
    library as library,
)
from .kernels import (
    product as product,
)
from .llama_memory import (
    MICRO_BATCH as MICRO_BATCH,
)
from .llama_memory import (
    context_bytes as context_bytes,
)
from .llama_memory import (
    layers_on_card as layers_on_card,
)
from .model import (
    BaseModel as BaseModel,
)
from .model import (
    load_base as load_base,
)
from .modules import (
    check_adapter as check_adapter,
)
from .modules import (
    linear_shapes as linear_shapes,
)
from .needs import (
    RANK as RANK,
)
from .needs import (
    STEPPING as STEPPING,
)
from .needs import (
    VERSIONS as VERSIONS,
)
from .needs import (
    Wanted as Wanted,
)
from .needs import (
    policy_bytes as policy_bytes,
)
from .needs import (
    slot_bytes as slot_bytes,
)
from .needs import (
    version_bytes as version_bytes,
)
from .needs import (
    weight_bytes as weight_bytes,
)
from .precision import (
    BITS as BITS,
)
from .precision import (
    PRECISIONS as PRECISIONS,
)
from .precision import (
    REPEATABLE as REPEATABLE,
)
from .precision import (
    WRITTEN as WRITTEN,
)
from .precision import (
    nearest as nearest,
)
from .sealed import (
    ensure as ensure,
)
from .sealed import (
    forget_others as forget_others,
)
from .sealed import (
    verify as verify,
)
from .sizes import (
    EXACT as EXACT,
)
from .sizes import (
    FLOAT as FLOAT,
)
from .sizes import (
    MOST_ON_CARD as MOST_ON_CARD,
)
from .sizes import (
    MOST_TOKENS as MOST_TOKENS,
)
from .sizes import (
    PASS_BYTES as PASS_BYTES,
)
from .sizes import (
    PREFILL as PREFILL,
)
from .sizes import (
    Budget as Budget,
)
from .sizes import (
    Kept as Kept,
)
from .sizes import (
    adapter_bytes as adapter_bytes,
)
from .sizes import (
    card_pass_bytes as card_pass_bytes,
)
from .sizes import (
    kept_on_card as kept_on_card,
)
from .sizes import (
    scored_rows as scored_rows,
)
from .soundness import (
    check_base as check_base,
)
from .soundness import (
    parameters as parameters,
)
from .tensors import (
    ATTENTION as ATTENTION,
)
from .tensors import (
    FEED_FORWARD as FEED_FORWARD,
)
from .tensors import (
    FUSED as FUSED,
)
from .tensors import (
    Base as Base,
)
from .tensors import (
    HeadShape as HeadShape,
)
from .tensors import (
    Layer as Layer,
)
from .tensors import (
    Stacked as Stacked,
)
from .tensors import (
    load as load,
)
from .vllm_memory import (
    BLOCK as BLOCK,
)
from .vllm_memory import (
    HALF as HALF,
)
from .vllm_memory import (
    SLOTS as SLOTS,
)
from .vllm_memory import (
    SPARE as SPARE,
)
from .vllm_memory import (
    Device as Device,
)
from .vllm_memory import (
    batch_for as batch_for,
)
from .vllm_memory import (
    cache_bytes as cache_bytes,
)
from .vllm_memory import (
    rank_class as rank_class,
)
from .vllm_memory import (
    slots_bytes as slots_bytes,
)
from .vllm_memory import (
    slots_for as slots_for,
)
from .vllm_memory import (
    whole_blocks as whole_blocks,
)
