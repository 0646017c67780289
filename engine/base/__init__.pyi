from .chat.loading import (
    load_template as load_template,
    read_settings as read_settings,
    token_name as token_name,
)
from .chat.template import (
    SWITCH as SWITCH,
    TODAY as TODAY,
)
from .compared import (
    AGREES as AGREES,
    DISAGREES as DISAGREES,
    UNVERIFIED as UNVERIFIED,
    Comparison as Comparison,
    checksum as checksum,
    comparison_of as comparison_of,
    is_unverified as is_unverified,
    keep_comparison as keep_comparison,
)
from .computed import (
    unsupported as unsupported,
)
from .config import (
    FAMILIES as FAMILIES,
    BaseConfig as BaseConfig,
    read_config as read_config,
)
from .counting import (
    count_parameters as count_parameters,
)
from .download import (
    download_base as download_base,
)
from .find import (
    SHIPPED as SHIPPED,
    anchored as anchored,
    cache_folder as cache_folder,
    cached_bases as cached_bases,
    find_base as find_base,
    hub_name as hub_name,
)
from .gguf.adapter import (
    adapter_in_memory as adapter_in_memory,
    write_adapter as write_adapter,
)
from .gguf.base import (
    base_bytes as base_bytes,
    path_of as path_of,
    write_base as write_base,
)
from .gguf.brought import (
    brought_names as brought_names,
    plain_layers as plain_layers,
)
from .gguf.convert import (
    check_file as check_file,
)
from .gguf.library import (
    PUBLISHED as PUBLISHED,
    fetch as fetch,
    find_gguf as find_gguf,
    forget_made as forget_made,
    made_base as made_base,
    make_base as make_base,
    stored_files as stored_files,
)
from .gguf.names import (
    GgufNames as GgufNames,
    names_like as names_like,
    names_of as names_of,
)
from .kernels import (
    REMEMBERED as REMEMBERED,
    add_bfloat16_product as add_bfloat16_product,
    add_product as add_product,
    attend as attend,
    attend_backward as attend_backward,
    bfloat16_product as bfloat16_product,
    halves as halves,
    library as library,
    merged as merged,
    positive_factors as positive_factors,
    product as product,
    relative_error as relative_error,
    rms_norm as rms_norm,
    rms_norm_backward as rms_norm_backward,
    rotate as rotate,
    swiglu as swiglu,
    swiglu_backward as swiglu_backward,
    tiles as tiles,
    widened_product as widened_product,
)
from .memory import (
    ENOUGH as ENOUGH,
    FEW_SLOTS as FEW_SLOTS,
    FLASH as FLASH,
    LEAST as LEAST,
    MICRO_BATCH as MICRO_BATCH,
    RANK as RANK,
    ROOMS as ROOMS,
    SMALL as SMALL,
    STEPPING as STEPPING,
    VERSIONS as VERSIONS,
    MemoryPlan as MemoryPlan,
    Wanted as Wanted,
    context_bytes as context_bytes,
    layers_on_card as layers_on_card,
    least_plan as least_plan,
    padded_length as padded_length,
    plan_memory as plan_memory,
    policy_bytes as policy_bytes,
    slot_bytes as slot_bytes,
    version_bytes as version_bytes,
    weight_bytes as weight_bytes,
)
from .model import (
    BaseModel as BaseModel,
    load_base as load_base,
)
from .modules import (
    check_adapter as check_adapter,
    linear_shapes as linear_shapes,
    pairs as pairs,
    unadapted as unadapted,
)
from .precision import (
    BFLOAT16 as BFLOAT16,
    BITS as BITS,
    GGUF as GGUF,
    PRECISIONS as PRECISIONS,
    REPEATABLE as REPEATABLE,
    WRITTEN as WRITTEN,
    halves_memory as halves_memory,
    nearest as nearest,
)
from .samplers import (
    SAMPLERS as SAMPLERS,
)
from .sealed import (
    ensure as ensure,
    forget_others as forget_others,
    remove as remove,
    verify as verify,
)
from .sizes import (
    AGAIN as AGAIN,
    EXACT as EXACT,
    FLOAT as FLOAT,
    HALVED as HALVED,
    MOST_ON_CARD as MOST_ON_CARD,
    MOST_TOKENS as MOST_TOKENS,
    PASS_BYTES as PASS_BYTES,
    PREFILL as PREFILL,
    TILED as TILED,
    TILED_HALVED as TILED_HALVED,
    Budget as Budget,
    Kept as Kept,
    adapter_bytes as adapter_bytes,
    card_pass_bytes as card_pass_bytes,
    kept_on_card as kept_on_card,
    key_value_bytes as key_value_bytes,
    scored_rows as scored_rows,
)
from .soundness import (
    check_base as check_base,
    parameters as parameters,
)
from .tensors import (
    ATTENTION as ATTENTION,
    FEED_FORWARD as FEED_FORWARD,
    FUSED as FUSED,
    Base as Base,
    HeadShape as HeadShape,
    Layer as Layer,
    Stacked as Stacked,
    load as load,
)
from .vllm_memory import (
    BLOCK as BLOCK,
    HALF as HALF,
    SLOTS as SLOTS,
    SPARE as SPARE,
    Device as Device,
    batch_for as batch_for,
    cache_bytes as cache_bytes,
    rank_class as rank_class,
    slots_bytes as slots_bytes,
    slots_for as slots_for,
    whole_blocks as whole_blocks,
)
