"""The sampler on vLLM.

One thread schedules and never waits. vLLM's prefix cache finds conversations' keys and values. vLLM seeds requests, not
positions, so noise does not follow the protocol's rule.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from packaging.version import InvalidVersion, Version

from ...adapters.export import write_peft_folder
from ...adapters.statefile import PolicyState, StateHeader
from ...devices.limits import end_process, ran_out
from ...devices.software import GPU_EXTRA, LEAST_VLLM, find_installed
from ...errors import AdapterError, BaseModelError, CallFailed, ConfigError
from ...home.guard import PrivateFolder
from ...models.config import FAMILIES, BaseConfig
from ...models.find import BaseModel, load_base
from ...models.memory import BLOCK, SLOTS, SPARE, Device, batch_for, cache_bytes, rank_class, whole_blocks
from ...trajectories import Logprobs, Tokens
from ..batching.context import Arrays
from ..batching.requests import Answer, Version as Serving, Versions
from ..batching.sampler import Gate, ThreadedSampler
from ..batching.turn import check
from ..options import NONE, Extras, Likeliest, Wishes
from ..protocol import Finish, NewTokens, OnTokens, SampleRequest, SampleResult, SamplerLimits, SamplerStats
from ..sampling import WHOLE, Truncation
from ..seeds import noise_seed

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

PREFIX = "vllm-"
MOST = 1024
LEAST_TEMPERATURE = 0.01
"""vLLM raises smaller ones."""
LOGITS = 1 << 26
"""Of one score, a quarter of a gigabyte, unplanned by vLLM."""

INSTEAD = 'Or set `sampler = "auto"` under [rollout] in marlaas.toml.'


def require() -> None:
    """Raise ``BaseModelError`` if vLLM is missing or too old."""
    found = find_installed().vllm
    if not found:
        raise BaseModelError("vLLM is not installed.", f"{GPU_EXTRA}, about 12 GB. {INSTEAD}")
    old = False
    with suppress(InvalidVersion):  # a custom build
        old = Version(found) < LEAST_VLLM
    if old:
        raise BaseModelError(
            f"vLLM {found} can serve another tenant's adapter ({LEAST_VLLM} cannot), and is not used.",
            f"`pip install --upgrade 'marlaas[gpu]'` installs another. {INSTEAD}",
        )


# --- settings of vLLM 0.26 to 0.33 ---
#
# https://docs.vllm.ai/en/latest/configuration/engine_args.html

ADAPTERS = 1 << 16
"""More than can be live: vLLM dies if it must reload one without a folder."""
INTERVAL = 8
"""Tokens between reports: each costs as much as a small model's row."""
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
"""By default vLLM also adapts embedding and output head; scores of whole requests then fail on a processor."""
ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}


@dataclass(frozen=True)
class VllmSettings:
    """The start options of one engine."""

    path: str
    config: BaseConfig
    device: Device = "cpu"
    sequences: int = 128
    context: int = 512
    largest_rank: int = 64
    """Of adapters; vLLM knows only some."""
    slots: int = SLOTS
    """Adapters in one pass; others wait."""
    memory: int = 0
    """Bytes for keys and values; 0: on a processor enough for all, on a card what vLLM finds free."""
    extra: dict[str, Any] = field(default_factory=dict)
    """For vLLM on a shared device."""

    @property
    def known(self) -> bool:
        return self.config.architecture in FAMILIES

    @property
    def rank(self) -> int:
        """Raises ``ValueError`` beyond vLLM's largest."""
        return rank_class(self.largest_rank)


def environment(device: Device) -> dict[str, str]:
    """Variables to set before importing vllm."""
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


# --- adapters ---
#
# vLLM dies if an adapter's folder is gone, so each is below a folder that only this account may enter. vLLM reads it
# once, before its handle is used, and keeps it until the handle is freed.

HANDLES = itertools.count(1)
"""Never reused: vLLM finds cached keys and values by them."""


class FolderAdapters:
    """Implements ``batching.requests.Adapters``, in ``folder``."""

    def __init__(self, engine: Engine, base: Path, folder: PrivateFolder, rank: int) -> None:
        self._engine = engine
        self._base = base
        self._folder = folder
        self._rank = rank

    def load_adapter(self, adapter: Arrays, alpha: float) -> int:
        """Raises ``AdapterError`` if the rank is too large, disk or vLLM refuses."""
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
            write_peft_folder(folder, PolicyState(StateHeader(rank, alpha, 0, ""), adapter), str(self._base))
            self._engine.add_adapter(handle, folder)
        except (OSError, AdapterError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, AdapterError):
                raise
            raise AdapterError(f"The adapter could not be written to {folder}: {error.strerror}.") from error
        return handle

    def free_adapter(self, adapter: int) -> None:
        self._engine.remove_adapter(adapter)
        shutil.rmtree(self._of(adapter), ignore_errors=True)

    def _of(self, handle: int) -> Path:
        return self._folder.path / str(handle)


Position = tuple[list[int], list[float]]
"""Tokens and log-probabilities: of the given or sampled token, then of the likeliest; ``target`` is the last."""


@dataclass(frozen=True)
class Progress:
    """A request's results since its last progress."""

    name: str
    tokens: list[int]
    positions: list[Position]
    """Of the tokens."""
    prompt: list[Position]
    """Of the request's tokens but the first, if they are scored; only with the first token."""
    finish: str | None
    """stop, length, abort or error; None: continues."""
    cached: int
    """Tokens with cached keys and values."""


class Engine:
    """vLLM 0.26 or later; not thread-safe."""

    def __init__(self, settings: VllmSettings) -> None:
        """Raises ``BaseModelError`` if vLLM is missing, too old, or cannot serve the base."""
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
        cache = self.llm.vllm_config.cache_config
        self.tokens: int = max(0, cache.num_gpu_blocks - SPARE) * cache.block_size
        """Tokens that fit into the memory that vLLM has really taken for keys and values."""

    @property
    def model(self) -> torch.nn.Module:
        network: torch.nn.Module = self.llm.apply_model(lambda model: model)[0]
        return network

    def add_adapter(self, handle: int, folder: Path) -> None:
        """In PEFT's format. Raises ``AdapterError``; the engine survives."""
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

    def add(
        self,
        name: str,
        tokens: list[int],
        adapter: int,
        max_tokens: int,
        temperature: float,
        seed: int = 0,
        stop: tuple[int, ...] = (),
        truncation: Truncation = WHOLE,
        target: int | None = None,
        whole: bool = False,
        wishes: Wishes = NONE,
    ) -> None:
        """Raises ``ValueError`` if it can never be served.

        ``name`` is unique among those in progress, ``seed`` below 2**63. ``target``: gets its log-probability in place
        of the sampled one; ``whole``: scores all ``tokens``, at temperature 1. ``wishes`` have no schema.
        """
        parameters = self._sampling_params(
            temperature=temperature,
            top_k=truncation.top_k,
            top_p=truncation.top_p,
            min_p=truncation.min_p,
            max_tokens=max_tokens,
            seed=seed,
            stop_token_ids=list(stop),
            ignore_eos=True,
            logprobs=None if target is not None else wishes.likeliest,
            logprob_token_ids=None if target is None else [target],
            prompt_logprobs=wishes.likeliest if whole else None,
            presence_penalty=wishes.presence_penalty,
            frequency_penalty=wishes.frequency_penalty,
            detokenize=False,
            flat_logprobs=True,
            output_kind=self._delta,
        )
        prompt = {"prompt_token_ids": tokens, "cache_salt": str(adapter)}
        self.llm.add_request(name, prompt, parameters, lora_request=self._adapters[adapter])

    def abort(self, names: Sequence[str]) -> None:
        self.llm.abort_request(list(names))

    def step(self) -> list[Progress]:
        return [_progress(output) for output in self.llm.step()]

    def close(self) -> None:
        shutdown = getattr(self.llm.engine_core, "shutdown", None)
        if shutdown is not None:
            shutdown()


def _progress(output: Any) -> Progress:
    (completion,) = output.outputs
    return Progress(
        name=output.request_id,
        tokens=list(completion.token_ids),
        positions=_positions(completion.logprobs),
        prompt=_positions(output.prompt_logprobs),
        finish=completion.finish_reason,
        cached=output.num_cached_tokens or 0,
    )


def _positions(flat: Any) -> list[Position]:
    """Of vLLM's ``FlatLogprobs``; the first token of a prompt has none."""
    if not flat:
        return []
    bounds = zip(flat.start_indices, flat.end_indices, strict=True)
    return [(list(flat.token_ids[begin:end]), list(flat.logprobs[begin:end])) for begin, end in bounds if end > begin]


def _reported(positions: Sequence[Position], count: int) -> tuple[Logprobs, Likeliest]:
    """Log-probabilities (n,) of the given or sampled tokens, and the ``count`` likeliest."""
    near = [(tokens[1 : count + 1], logprobs[1 : count + 1]) for tokens, logprobs in positions]
    tokens, logprobs = (np.array([pair[half] for pair in near]).reshape(len(near), count) for half in (0, 1))
    given = np.array([logprobs[0] for _, logprobs in positions], np.float32)
    return given, Likeliest(tokens.astype(np.int32), logprobs.astype(np.float32))


def _named_architecture(settings: VllmSettings) -> dict[str, Any]:
    config = json.loads(Path(settings.path, "config.json").read_text("utf-8"))
    known = ARCHITECTURES.get(settings.config.architecture)
    return {} if config.get("architectures") or not known else {"hf_overrides": {"architectures": [known]}}


def _first_line(error: Exception) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if line.endswith(".") else f"{line}."


@dataclass(eq=False)
class Turn:
    """One running request, and its sampled tokens."""

    name: str
    request: SampleRequest
    version: Serving
    answer: Answer[SampleResult]
    room: int
    """Tokens to sample; 0 only scores the prompt."""
    stream_to: OnTokens | None = None
    tokens: list[int] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    prompt: list[Position] = field(default_factory=list)
    prefilled: int = 0

    def take(self, progress: Progress) -> None:
        self.prompt = self.prompt or progress.prompt
        if not self.room:  # vLLM samples at least one
            return
        self.tokens += progress.tokens
        self.positions += progress.positions
        if self.stream_to is not None and progress.tokens:
            logprobs, extras = self._reported(progress.positions)
            self.answer.stream(self.stream_to, NewTokens(np.array(progress.tokens, np.int32), logprobs, extras))

    def result(self, finish: Finish) -> SampleResult:
        logprobs, extras = self._reported(self.positions, self.prompt)
        return SampleResult(
            tokens=np.array(self.tokens, np.int32),
            logprobs=logprobs,
            finish=finish,
            version=self.version.name,
            checksum=self.version.checksum,
            prefilled=self.prefilled,
            extras=extras,
        )

    def _reported(
        self, positions: Sequence[Position], prompt: Sequence[Position] = ()
    ) -> tuple[Logprobs, Extras | None]:
        wishes = self.request.wishes
        logprobs, near = _reported(positions, wishes.likeliest if wishes else 0)
        if wishes is None:
            return logprobs, None
        read = wishes.prompt and len(prompt) == len(self.request.tokens) - 1  # of a prompt of one token nothing comes
        return logprobs, Extras(logprobs, near, *_reported(prompt, wishes.likeliest) if read else ())


@dataclass(eq=False)
class Score:
    """Scores in progress, from one request or one per token."""

    version: Serving
    answer: Answer[Logprobs]
    values: Logprobs
    missing: int
    """Unanswered requests."""


class VllmScheduler:
    """All conversations of one engine, of up to ``length`` tokens each."""

    def __init__(self, engine: Engine, versions: Versions, length: int) -> None:
        self._engine = engine
        self._versions = versions
        self._length = length
        self._vocabulary = engine.settings.config.vocab_size
        self._tokens: dict[str, Tokens] = {}
        """The tokens so far, by conversation."""
        self._turns: dict[str, Turn] = {}
        """By conversation."""
        self._waiting: dict[str, Turn | tuple[Score, int | None]] = {}
        """By a request's name: a turn, or a score with the place of its value; None: all values."""
        self._numbers = itertools.count()
        self._sampled = self._prefilled = self._passes = 0
        self._seconds = 0.0

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def stats(self) -> SamplerStats:
        active = sum(1 for turn in self._turns.values() if turn.tokens)
        waiting = len(self._turns) - active
        return SamplerStats(self._sampled, self._prefilled, self._seconds, active, waiting, self._passes)

    def submit(self, request: SampleRequest, answer: Answer[SampleResult], stream_to: OnTokens | None = None) -> None:
        """Raises ``ValueError`` or ``AdapterError`` if it can never be served."""
        version, name, wishes = self._versions.serving(request.version), request.conversation, request.wishes or NONE
        known = self._tokens.get(name, np.empty(0, np.int32))
        check(request, known, name in self._turns, self._length, self._vocabulary)
        _check_temperature(request.temperature)
        self._check_wishes(wishes, request)
        room = min(request.max_tokens, self._length - len(request.tokens))
        turn = Turn(f"turn {next(self._numbers)}", request, version, answer, room, stream_to)
        if room == 0 and not wishes.prompt:
            answer.give(turn.result("length"))
            return
        self._engine.add(
            turn.name,
            request.tokens.tolist(),
            version.handle,
            max_tokens=max(room, 1),
            temperature=request.temperature,
            seed=noise_seed(request.seed, len(request.tokens)) >> 1,
            stop=request.stop,
            truncation=request.truncation,
            whole=wishes.prompt,
            wishes=wishes,
        )
        self._tokens[name], self._turns[name] = known, turn
        version.users += 1
        self._waiting[turn.name] = turn

    def score(self, name: str, tokens: Tokens, start: int, temperature: float, answer: Answer[Logprobs]) -> None:
        """Ask for log-probabilities of ``tokens[start:]``, float32 (T-start,).

        vLLM scores a request's own only at temperature 1; else each token gets a request. Raises ``ValueError`` or
        ``AdapterError``.
        """
        version, count = self._versions.serving(name), len(tokens) - start
        if not 1 <= start <= len(tokens):
            raise ValueError(f"start is {start}; it must lie between 1 and the {len(tokens)} tokens.")
        check(SampleRequest("", "", tokens, 1, temperature, (), 0), tokens[:0], False, self._length, self._vocabulary)
        _check_temperature(temperature)
        if count == 0:
            answer.give(np.empty(0, np.float32))
            return
        whole = temperature in (0.0, 1.0) and self._engine.settings.known and len(tokens) * self._vocabulary <= LOGITS
        score = Score(version, answer, np.empty(count, np.float32), 1 if whole else count)
        version.users += 1
        for offset in range(score.missing):
            stop = len(tokens) if whole else start + offset
            asked, target = f"score {next(self._numbers)}", None if whole else int(tokens[stop])
            self._engine.add(asked, tokens[:stop].tolist(), version.handle, 1, temperature, target=target, whole=whole)
            self._waiting[asked] = score, None if whole else offset

    def release(self, name: str) -> None:
        turn = self._turns.get(name)
        if turn is not None:
            self._engine.abort([turn.name])
            self._end(turn, "abort")
        self._tokens.pop(name, None)

    def step(self) -> None:
        begin = time.perf_counter()
        self._passes += 1
        for progress in self._engine.step():
            match self._waiting.get(progress.name):
                case Turn() as turn:
                    self._move(turn, progress)
                case (score, offset):
                    self._learn(score, offset, progress)
        self._seconds += time.perf_counter() - begin

    def fail(self, error: Exception) -> None:
        self._engine.abort(list(self._waiting))
        for each in {waiting if isinstance(waiting, Turn) else waiting[0] for waiting in self._waiting.values()}:
            self._versions.leave(each.version)
            each.answer.fail(error)
        for everything in (self._waiting, self._turns, self._tokens):
            everything.clear()

    def _check_wishes(self, wishes: Wishes, request: SampleRequest) -> None:
        if wishes.schema:
            raise ConfigError(
                "vLLM is started without a tokenizer here, so replies cannot be held to a JSON schema.",
                'Set `sampler = "torch"` or `"llama.cpp"` under [rollout] in marlaas.toml.',
            )
        most = LOGITS // self._vocabulary
        if wishes.prompt and (request.temperature not in (0.0, 1.0) or not self._engine.settings.known):
            raise ValueError("vLLM tells prompts' log-probabilities at temperatures 0 and 1 alone, of bases it adapts.")
        if wishes.prompt and len(request.tokens) > most:
            raise ValueError(f"vLLM can tell the log-probabilities of prompts of up to {most} tokens of this base.")

    def _move(self, turn: Turn, progress: Progress) -> None:
        if not turn.prefilled:
            turn.prefilled = len(turn.request.tokens) - progress.cached
            self._prefilled += turn.prefilled
        turn.take(progress)
        self._sampled += len(progress.tokens)
        if progress.finish in ("stop", "length"):
            self._end(turn, "stop" if progress.finish == "stop" and turn.tokens else "length")
        elif progress.finish is not None:
            self._leave(turn)
            del self._tokens[turn.request.conversation]
            turn.answer.fail(CallFailed(f"vLLM ended a turn with {progress.finish!r}."))

    def _end(self, turn: Turn, finish: Finish) -> None:
        result = turn.result(finish)
        self._tokens[turn.request.conversation] = np.concatenate([turn.request.tokens, result.tokens])
        self._leave(turn)
        turn.answer.give(result)

    def _leave(self, turn: Turn) -> None:
        del self._waiting[turn.name], self._turns[turn.request.conversation]
        self._versions.leave(turn.version)

    def _learn(self, score: Score, offset: int | None, progress: Progress) -> None:
        if progress.finish is None:
            return
        del self._waiting[progress.name]
        if offset is not None:
            score.values[offset] = progress.positions[0][1][-1]
        elif progress.prompt:
            score.values[:] = _reported(progress.prompt, 0)[0][-len(score.values) :]
        score.missing -= 1
        if score.missing == 0:
            self._versions.leave(score.version)
            score.answer.give(score.values)


def _check_temperature(temperature: float) -> None:
    if 0 < temperature < LEAST_TEMPERATURE:
        raise ValueError(f"temperature is {temperature}; vLLM knows 0, and {LEAST_TEMPERATURE} or more.")


class EngineSampler(ThreadedSampler):
    """``protocol.Sampler`` on the caller's engine."""

    def __init__(
        self,
        base: BaseModel,
        engine: Engine,
        scratch: Path,
        gate: Gate = nullcontext,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        """Adapters are below ``scratch``; ``gate``: see ``ThreadedSampler``. Raises ``OSError`` if the disk refuses."""
        self.engine = engine
        settings = engine.settings
        self._folder = PrivateFolder(scratch, PREFIX)
        versions = Versions(base, FolderAdapters(engine, base.path, self._folder, settings.rank))
        self.scheduler = VllmScheduler(engine, versions, settings.context)
        limits = limits_of(settings, max(1, engine.tokens // whole_blocks(settings.context, settings.device)))
        super().__init__(self.scheduler, versions, limits, gate, idle)

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        return await self._ask(partial(self.scheduler.score, version, tokens, start, temperature))

    def tidy(self) -> None:
        self._folder.remove()

    def _failed(self, error: Exception) -> None:
        """End the process, as vLLM cannot continue; the supervisor starts another worker."""
        log.error("vLLM's engine has failed.", exc_info=error)
        end_process(f"vLLM's engine has failed: {error}", error)

    def _close(self) -> None:
        self._versions.close()
        self._folder.remove()


class VllmSampler(EngineSampler):
    """``protocol.Sampler`` on its own engine."""

    def __init__(
        self,
        base: str,
        scratch: str,
        sequences: int = 128,
        context: int = 512,
        threads: int = 1,
        largest_rank: int = 64,
        slots: int = SLOTS,
        memory: int = 0,
        device: Device = "cpu",
        extra: dict[str, Any] | None = None,
        gate: Gate = nullcontext,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        """Start vLLM on the base ``base``.

        ``sequences`` conversations of up to ``context`` tokens; for others see ``VllmSettings``. Raises
        ``BaseModelError`` if vLLM is missing, too old, or does not serve the base.
        """
        import torch  # slow to import

        torch.set_num_threads(threads)
        model = load_base(base)
        try:
            settings = VllmSettings(
                path=str(model.path),
                config=model.config,
                device=device,
                sequences=min(sequences, MOST),
                context=min(context, model.config.context_length),
                largest_rank=largest_rank,
                slots=slots,
                memory=memory,
                extra=extra or {},
            )
            engine = Engine(settings)
        except ValueError as error:
            if isinstance(error, BaseModelError):
                raise
            raise BaseModelError(str(error), "Mend [rollout] in marlaas.toml.") from error
        super().__init__(model, engine, Path(scratch), gate, idle)

    def _close(self) -> None:
        super()._close()
        self.engine.close()


def limits_of(settings: VllmSettings, fitting: int) -> SamplerLimits:
    """The requested limits, or the ``fitting`` conversations."""
    if fitting >= settings.sequences:
        return SamplerLimits(settings.sequences, settings.context)
    note = f"vLLM has found memory for {fitting} conversations of {settings.context} tokens, of {settings.sequences}."
    return SamplerLimits(fitting, settings.context, note)
