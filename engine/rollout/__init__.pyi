from .batching.sampler import (
    BatchingSampler as BatchingSampler,
)
from .conversation import (
    SamplingParameters as SamplingParameters,
    Unplayable as Unplayable,
)
from .episodes import (
    EPISODES as EPISODES,
    EpisodeListener as EpisodeListener,
    FinishedAgent as FinishedAgent,
    HeldOutPrompt as HeldOutPrompt,
    PromptHash as PromptHash,
    Role as Role,
    Roles as Roles,
    Rollout as Rollout,
    RunEnvironment as RunEnvironment,
)
from .llama.model import (
    LlamaSampler as LlamaSampler,
    ensure_base_gguf as ensure_base_gguf,
)
from .programs import (
    SamplingOptions as SamplingOptions,
    calls_of as calls_of,
    messages_of as messages_of,
    options_of as options_of,
    refused as refused,
    tokens_of as tokens_of,
    tools_of as tools_of,
)
from .protocol import (
    Finish as Finish,
    NewTokens as NewTokens,
    OnTokens as OnTokens,
    Sampler as Sampler,
    SampleRequest as SampleRequest,
    SampleResult as SampleResult,
    SamplerLimits as SamplerLimits,
    SamplerStats as SamplerStats,
    WishedResult as WishedResult,
    WishfulRequest as WishfulRequest,
)
from .renderer import (
    Continuation as Continuation,
    Opening as Opening,
    PromptRuler as PromptRuler,
    Renderer as Renderer,
    Rendering as Rendering,
    Said as Said,
    TooLong as TooLong,
    plain as plain,
)
from .sampler_client import (
    ReplyStream as ReplyStream,
    SamplerClient as SamplerClient,
)
from .sampling import (
    WHOLE as WHOLE,
    Truncation as Truncation,
    choose as choose,
)
from .seeds import (
    noise_seed as noise_seed,
)
from .slots import (
    Replicas as Replicas,
    SamplerEndpoint as SamplerEndpoint,
    SamplerSlots as SamplerSlots,
    SlotHolder as SlotHolder,
    Waiter as Waiter,
)
from .spoken import (
    CLOSE as CLOSE,
    OPEN as OPEN,
    SPACE as SPACE,
    Spoken as Spoken,
    before_stop as before_stop,
    first_stop as first_stop,
    opened_thought as opened_thought,
)
from .talk import (
    Manner as Manner,
    Speech as Speech,
    Talk as Talk,
)
from .toolcalls import (
    forced_call as forced_call,
    split_hermes as split_hermes,
    split_llama as split_llama,
)
from .torch_sampler.sampler import (
    TorchSampler as TorchSampler,
)
from .vllm.engine import (
    environment as environment,
    require as require,
)
from .vllm.sampler import (
    VllmSampler as VllmSampler,
)
from .vocabulary import (
    Vocabulary as Vocabulary,
)
from .wishes import (
    MOST_LIKELIEST as MOST_LIKELIEST,
    Extras as Extras,
    Likeliest as Likeliest,
    Wishes as Wishes,
)
