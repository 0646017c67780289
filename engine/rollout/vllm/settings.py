"""Whether vLLM can be used, and its arguments and environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from packaging.version import InvalidVersion, Version

from ...base import BLOCK, FAMILIES, SLOTS, BaseConfig, Device, batch_for, cache_bytes, rank_class
from ...devices import GPU_EXTRA, LEAST_VLLM, find_installed
from ...errors import BaseModelError

# Is there a vLLM that can be used? One sentence for people where there is none. Imports no vllm.

INSTEAD = 'Or set `sampler = "auto"` under [rollout] in marlaas.toml.'


def require() -> None:
    """Raise ``BaseModelError`` where vLLM is missing or too old."""
    found = find_installed().vllm
    if not found:
        raise BaseModelError("vLLM is not installed.", f"{GPU_EXTRA}, about 12 GB. {INSTEAD}")
    if _older(found):
        raise BaseModelError(
            f"vLLM {found} can serve another tenant's adapter ({LEAST_VLLM} cannot), and is not used.",
            f"`pip install --upgrade 'marlaas[gpu]'` installs another. {INSTEAD}",
        )


def _older(found: str) -> bool:
    try:
        return Version(found) < LEAST_VLLM
    except InvalidVersion:
        return False  # somebody's own build


# vLLM's arguments and environment, from a base's sizes and a few numbers. Pure.
#
# The names are vLLM's own (0.26 to 0.33): https://docs.vllm.ai/en/latest/configuration/engine_args.html

ADAPTERS = 1 << 16
"""Adapters that vLLM may keep in main memory: more than can be live. It reads an adapter's folder again once it has
dropped it, and dies where the folder is gone; so it never drops one by itself."""
INTERVAL = 8
"""Tokens after which vLLM reports a turn that goes on: each report costs as much as a small model's row."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: a worker is one already
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",  # a score asks for one token more than the context holds, and drops it
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
ON_CPU = {
    "TORCHDYNAMO_DISABLE": "1",  # else the first log-probabilities wait half a minute for a C++ compiler
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the worker is pinned already; vLLM would take the first core for itself
}
ADAPTED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
"""vLLM's names of the layers that our adapters adapt, in the families whose layers are all known. By default vLLM keeps
room for the embedding and the output head, too, and scores of whole requests then fail on a processor."""
ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
"""Architecture by ``model_type``, for bases whose configuration names none."""


@dataclass(frozen=True)
class VllmSettings:
    """How one engine is started."""

    path: str
    """Folder of the base."""
    config: BaseConfig
    device: Device = "cpu"
    sequences: int = 128
    """Conversations that run at the same time."""
    context: int = 512
    """Tokens that each may grow to."""
    largest_rank: int = 64
    """Largest rank of adapters; vLLM is started for the next one that it knows."""
    slots: int = SLOTS
    """Adapters in one pass; requests for others wait for a slot."""
    memory: int = 0
    """Bytes for keys and values; 0: on a processor as many as all conversations need at their longest, on a card what
    vLLM finds free."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM's, used where it shares its device."""

    @property
    def known(self) -> bool:
        """Whether the names of all its layers are known."""
        return self.config.architecture in FAMILIES

    @property
    def rank(self) -> int:
        """The rank that vLLM is started for. Raises ``ValueError`` beyond the largest that it knows."""
        return rank_class(self.largest_rank)


def environment(device: Device) -> dict[str, str]:
    """Environment variables that must be set before vllm is imported."""
    return ENVIRONMENT | (ON_CPU if device == "cpu" else {})


def engine_arguments(settings: VllmSettings) -> dict[str, Any]:
    """Keyword arguments of vLLM's ``EngineArgs``."""
    cpu = settings.device == "cpu"
    arguments: dict[str, Any] = {
        "model": settings.path,
        "skip_tokenizer_init": True,  # token ids in and out
        "generation_config": "vllm",  # a base's own would change how it is sampled
        "logprobs_mode": "processed_logprobs",  # of the distribution that was sampled from
        "dtype": "float32" if cpu else "bfloat16",
        "max_model_len": settings.context + 1,
        "max_num_seqs": settings.sequences,
        "block_size": BLOCK[settings.device],
        "enable_prefix_caching": True,
        "distributed_executor_backend": "uni",
        "enable_lora": True,
        "max_lora_rank": settings.rank,
        "max_loras": settings.slots,
        "max_cpu_loras": max(ADAPTERS, settings.slots),
        "stream_interval": INTERVAL,
        "disable_log_stats": True,
        "seed": 0,
    }
    if settings.known:
        arguments["lora_target_modules"] = list(ADAPTED)
    if cpu:
        arguments["enforce_eager"] = True
        arguments["enable_chunked_prefill"] = False  # see ``BATCH``
        arguments["max_num_batched_tokens"] = batch_for(settings.sequences, settings.context)
    memory = settings.memory
    if cpu and not memory:
        memory = cache_bytes(settings.config, settings.sequences, settings.context, settings.device)
    if memory:
        arguments["kv_cache_memory_bytes"] = memory
    return arguments | settings.extra
