"""vLLM as it is used here: its settings, its adapters, its engine."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from packaging.version import InvalidVersion, Version

from ...adapters.export import read_peft_folder, write_peft_folder
from ...adapters.statefile import PolicyState, StateHeader, checksum
from ...devices.limits import ran_out
from ...devices.software import GPU_EXTRA, LEAST_VLLM, find_installed
from ...errors import AdapterError, BaseModelError
from ...home.guard import PrivateFolder
from ...models.config import FAMILIES, BaseConfig
from ...models.memory import BLOCK, SLOTS, SPARE, Device, batch_for, cache_bytes, rank_class
from ..batching.context import Arrays
from ..options import NONE, Likeliest, Wishes
from ..sampling import WHOLE, Truncation

if TYPE_CHECKING:
    import torch


# Checks if there is a usable vLLM, without an import of vllm.

INSTEAD = 'Or set `sampler = "auto"` under [rollout] in marlaas.toml.'


def require() -> None:
    """Raise ``BaseModelError`` if vLLM is missing or too old."""
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
        return False  # a custom build


# vLLM's arguments and environment, from a base's sizes and a few numbers. Pure.
#
# The names are vLLM's own (0.26 to 0.33): https://docs.vllm.ai/en/latest/configuration/engine_args.html

ADAPTERS = 1 << 16
"""Adapters that vLLM may keep in main memory: more than can be live. It dies if it must reload one without a folder."""
INTERVAL = 8
"""Tokens between two reports of a turn: each report costs as much as a small model's row."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, which is a worker already
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
"""vLLM's names of the layers that our adapters adapt. By default vLLM also adapts the embedding and the output
head, and scores of whole requests then fail on a processor."""
ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
"""Architecture by ``model_type``, for configurations without one."""


@dataclass(frozen=True)
class VllmSettings:
    """The start options of one engine."""

    path: str
    config: BaseConfig
    device: Device = "cpu"
    sequences: int = 128
    """Concurrent conversations."""
    context: int = 512
    largest_rank: int = 64
    """Largest rank of adapters; vLLM is started for the next one that it knows."""
    slots: int = SLOTS
    """Adapters in one pass; requests for others wait for a slot."""
    memory: int = 0
    """Bytes for keys and values; 0: on a processor enough for all conversations, on a card what vLLM finds free."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further arguments for vLLM on a shared device."""

    @property
    def known(self) -> bool:
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
        "generation_config": "vllm",  # a base's own would change sampling
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


# Adapters in vLLM, each in its own folder.
#
# vLLM's whole engine dies if an adapter's folder is gone. So each is below a folder that only this account may enter.
# vLLM reads it once, before its handle is used, and keeps it until the handle is freed.

HANDLES = itertools.count(1)
"""Handles are never reused in a process, because vLLM finds cached keys and values by them."""


class FolderAdapters:
    """Implements ``versions.Adapters`` on vLLM; the adapters' folders are in ``folder``."""

    def __init__(self, engine: Engine, base: Path, folder: PrivateFolder, rank: int) -> None:
        self._engine = engine
        self._base = base
        self._folder = folder
        self._rank = rank

    def load_adapter(self, adapter: Arrays, alpha: float) -> int:
        """Let vLLM read an adapter. Raises ``AdapterError`` if its rank is too large, the disk or vLLM refuses it,
        or the folder has changed after the reading.
        """
        rank = max((array.shape[0] for name, array in adapter.items() if name.endswith(".lora_A")), default=0)
        if rank > self._rank:
            raise AdapterError(
                f"The adapter has rank {rank}; vLLM was started for ranks up to {self._rank}.",
                f"Set `largest_rank = {rank}` under [rollout] in marlaas.toml and restart the engine.",
            )
        handle = next(HANDLES)
        folder = self._of(handle)
        try:
            self._folder.ensure()
            folder.mkdir(mode=0o700)
            write_peft_folder(folder, PolicyState(StateHeader(rank, alpha, 0, ""), adapter), self._base, "")
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise AdapterError(f"The adapter could not be written to {folder}: {error.strerror}.") from error
        try:
            self._engine.add_adapter(handle, folder)
            self._check(handle, folder, checksum(adapter))
        except AdapterError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return handle

    def free_adapter(self, adapter: int) -> None:
        self._engine.remove_adapter(adapter)
        shutil.rmtree(self._of(adapter), ignore_errors=True)

    def _check(self, handle: int, folder: Path, expected: str) -> None:
        try:
            found = checksum(read_peft_folder(folder).adapter)
        except AdapterError:
            found = "nothing that can be read"
        if found != expected:
            self._engine.remove_adapter(handle)
            raise AdapterError(f"While vLLM read the adapter in {folder} somebody changed it: it holds {found}.")

    def _of(self, handle: int) -> Path:
        return self._folder.path / str(handle)


# vLLM's engine in this process. The only file of the sampler that imports vllm.
#
# Not thread-safe. Written for vLLM 0.26 and later; run with 0.32 on a processor.


@dataclass(frozen=True)
class Ask:
    """One request for tokens that follow others."""

    name: str
    """Unique among the requests in progress."""
    tokens: list[int]
    adapter: int
    max_tokens: int
    temperature: float
    seed: int
    """Below 2**63."""
    stop: tuple[int, ...] = ()
    truncation: Truncation = WHOLE
    target: int | None = None
    """A token that gets its log-probability as the next token, in place of the sampled one."""
    whole: bool = False
    """True to get the log-probabilities of all ``tokens``, at temperature 1."""
    wishes: Wishes = NONE
    """Without a schema; those for the prompt are ``whole``."""


@dataclass(frozen=True)
class Progress:
    """The results of a request since its last progress."""

    name: str
    tokens: list[int]
    logprobs: list[float]
    """Of the tokens, or of ``target`` if given."""
    scored: list[float] | None
    """Of the request's own tokens but the first, if requested; only with the first token."""
    finish: str | None
    """vLLM's reason: stop, length, abort or error; None while it continues."""
    cached: int
    """The number of its tokens with cached keys and values."""
    likeliest: Likeliest | None = None
    """For each token, if requested."""
    prompt_likeliest: Likeliest | None = None
    """For each of the request's own tokens but the first."""


class Engine:
    """A running vLLM."""

    def __init__(self, settings: VllmSettings) -> None:
        """Start it. Raises ``BaseModelError`` if vLLM is missing, too old, or cannot serve the base."""
        require()
        os.environ.update(environment(settings.device))
        self.settings = settings
        try:
            from vllm import EngineArgs, LLMEngine, SamplingParams
            from vllm.lora.request import LoRARequest
            from vllm.sampling_params import RequestOutputKind
        except Exception as error:  # a missing library, one of another version, a build for other cards
            raise BaseModelError(
                f"vLLM is installed and cannot be imported: {_first_line(error)}", f"Install it again. {INSTEAD}"
            ) from error
        arguments = engine_arguments(settings) | _named_architecture(settings)
        try:
            self.llm: Any = LLMEngine.from_engine_args(EngineArgs(**arguments))
        except Exception as error:
            raise BaseModelError(
                f"vLLM cannot serve the base in {settings.path}: {_first_line(error)}",
                f"The log of the worker says more. {INSTEAD}",
            ) from error
        self._lora_request, self._sampling_params, self._delta = LoRARequest, SamplingParams, RequestOutputKind.DELTA
        self._adapters: dict[int, Any] = {}
        self._likeliest: dict[str, int] = {}
        """The requested number of likeliest tokens, by the request's name."""
        cache = self.llm.vllm_config.cache_config
        self.tokens: int = max(0, cache.num_gpu_blocks - SPARE) * cache.block_size
        """Tokens that fit into the memory that vLLM has really taken for keys and values."""

    @property
    def model(self) -> torch.nn.Module:
        network: torch.nn.Module = self.llm.apply_model(lambda model: model)[0]
        return network

    def add_adapter(self, handle: int, folder: Path) -> None:
        """Read an adapter in PEFT's format and keep it in memory. Raises ``AdapterError``; the engine survives."""
        request = self._lora_request(str(handle), handle, str(folder))
        try:
            self.llm.add_lora(request)
        except Exception as error:
            if ran_out(error):
                raise
            raise AdapterError(f"vLLM refuses the adapter in {folder}: {_first_line(error)}") from error
        self._adapters[handle] = request

    def remove_adapter(self, handle: int) -> None:
        del self._adapters[handle]
        self.llm.remove_lora(handle)

    def holds(self, handle: int) -> bool:
        return handle in self._adapters and handle in self.llm.list_loras()

    def add(self, ask: Ask) -> None:
        """Add a request. Raises ``ValueError`` if it can never be served."""
        wishes = ask.wishes
        parameters = self._sampling_params(
            temperature=ask.temperature,
            top_k=ask.truncation.top_k,
            top_p=ask.truncation.top_p,
            min_p=ask.truncation.min_p,
            max_tokens=ask.max_tokens,
            seed=ask.seed,
            stop_token_ids=list(ask.stop),
            ignore_eos=True,
            logprobs=None if ask.target is not None else wishes.likeliest,
            logprob_token_ids=None if ask.target is None else [ask.target],
            prompt_logprobs=wishes.likeliest if ask.whole else None,
            presence_penalty=wishes.presence_penalty,
            frequency_penalty=wishes.frequency_penalty,
            repetition_penalty=wishes.repetition_penalty,
            detokenize=False,
            flat_logprobs=True,
            output_kind=self._delta,
        )
        prompt = {"prompt_token_ids": ask.tokens, "cache_salt": str(ask.adapter)}
        self.llm.add_request(ask.name, prompt, parameters, lora_request=self._adapters[ask.adapter])
        if wishes.likeliest:
            self._likeliest[ask.name] = wishes.likeliest

    def abort(self, names: Sequence[str]) -> None:
        self.llm.abort_request(list(names))
        for name in names:
            self._likeliest.pop(name, None)

    def step(self) -> list[Progress]:
        return [self._progress(output) for output in self.llm.step()]

    def close(self) -> None:
        shutdown = getattr(self.llm.engine_core, "shutdown", None)
        if shutdown is not None:
            shutdown()

    def _progress(self, output: Any) -> Progress:
        (completion,) = output.outputs
        name, count = output.request_id, self._likeliest.get(output.request_id, 0)
        if completion.finish_reason is not None:
            self._likeliest.pop(name, None)
        last = -1 - count  # before the likeliest, which follow the requested one
        told, scored = completion.logprobs, output.prompt_logprobs or None
        return Progress(
            name=name,
            tokens=list(completion.token_ids),
            logprobs=_one_of_each(told, last),
            scored=None if scored is None else _one_of_each(scored, last),
            finish=completion.finish_reason,
            cached=output.num_cached_tokens or 0,
            likeliest=_likeliest(told, count) if count else None,
            prompt_likeliest=_likeliest(scored, count) if count and scored is not None else None,
        )


def _places(flat: Any) -> list[tuple[int, int]]:
    pairs = zip(flat.start_indices, flat.end_indices, strict=True)
    return [(begin, end) for begin, end in pairs if end > begin]


def _one_of_each(flat: Any, place: int) -> list[float]:
    return [] if flat is None else [flat.logprobs[end + place] for _, end in _places(flat)]


def _likeliest(flat: Any, count: int) -> Likeliest:
    places = [] if flat is None else _places(flat)
    tokens = [list(flat.token_ids[end - count : end]) for _, end in places]
    logprobs = [list(flat.logprobs[end - count : end]) for _, end in places]
    shape = len(places), count
    return Likeliest(np.array(tokens, np.int32).reshape(shape), np.array(logprobs, np.float32).reshape(shape))


def _named_architecture(settings: VllmSettings) -> dict[str, Any]:
    config = json.loads(Path(settings.path, "config.json").read_text("utf-8"))
    known = ARCHITECTURES.get(settings.config.architecture)
    return {} if config.get("architectures") or not known else {"hf_overrides": {"architectures": [known]}}


def _first_line(error: Exception) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if line.endswith(".") else f"{line}."
