"""vLLM's engine in this process. The only file of the sampler that imports vllm.

Not safe for threads: all calls must come from one. Written for vLLM 0.26 and later; run with 0.32 on a processor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base import SPARE
from ...devices import ran_out
from ...errors import AdapterError, BaseModelError
from ..sampling import WHOLE, Truncation
from ..wishes import NONE, Likeliest, Wishes
from .settings import ARCHITECTURES, INSTEAD, VllmSettings, engine_arguments, environment, require

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Ask:
    """One request for tokens that follow others."""

    name: str
    """Unique among the requests under way."""
    tokens: list[int]
    adapter: int
    """Handle of a loaded adapter."""
    max_tokens: int
    temperature: float
    seed: int
    """Below 2**63."""
    stop: tuple[int, ...] = ()
    truncation: Truncation = WHOLE
    target: int | None = None
    """A token whose log-probability as the next token is wanted in place of the sampled one's."""
    whole: bool = False
    """Whether the log-probabilities of all ``tokens`` themselves are wanted, at temperature 1."""
    wishes: Wishes = NONE
    """Without a schema; those for the prompt are ``whole``."""


@dataclass(frozen=True)
class Progress:
    """What a request has got since its last progress."""

    name: str
    tokens: list[int]
    logprobs: list[float]
    """Log-probabilities of the tokens, or of the target where one was asked for."""
    scored: list[float] | None
    """Log-probabilities of the request's own tokens but the first, where asked for; with the first token alone."""
    finish: str | None
    """vLLM's reason: stop, length, abort or error; None while it goes on."""
    cached: int
    """How many of its tokens had their keys and values in the cache."""
    likeliest: Likeliest | None = None
    """In the places of the tokens, where any were asked for."""
    prompt_likeliest: Likeliest | None = None
    """In the places of the request's own tokens but the first."""


class Engine:
    """A running vLLM."""

    def __init__(self, settings: VllmSettings) -> None:
        """Start it. Raises ``BaseModelError`` where vLLM is missing, too old, or cannot serve the base."""
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
        """How many of the likeliest tokens a request wants, by its name."""
        cache = self.llm.vllm_config.cache_config
        self.tokens: int = max(0, cache.num_gpu_blocks - SPARE) * cache.block_size
        """How many tokens' keys and values fit into the memory that vLLM has really taken."""

    @property
    def model(self) -> torch.nn.Module:
        """The network, with its weights as vLLM keeps them."""
        network: torch.nn.Module = self.llm.apply_model(lambda model: model)[0]
        return network

    def add_adapter(self, handle: int, folder: Path) -> None:
        """Read an adapter in PEFT's format and keep it in memory. Raises ``AdapterError``; the engine then lives on."""
        request = self._lora_request(str(handle), handle, str(folder))
        try:
            self.llm.add_lora(request)
        except Exception as error:
            if ran_out(error):
                raise
            raise AdapterError(f"vLLM refuses the adapter in {folder}: {_first_line(error)}") from error
        self._adapters[handle] = request

    def remove_adapter(self, handle: int) -> None:
        """Forget an adapter that no request under way uses."""
        del self._adapters[handle]
        self.llm.remove_lora(handle)

    def holds(self, handle: int) -> bool:
        """Whether vLLM has an adapter in memory; any other it would look for on the disk, and die of that."""
        return handle in self._adapters and handle in self.llm.list_loras()

    def add(self, ask: Ask) -> None:
        """Add a request. Raises ``ValueError`` where it can never be served."""
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
        """Drop requests, whether they wait or run; unknown names are ignored."""
        self.llm.abort_request(list(names))
        for name in names:
            self._likeliest.pop(name, None)

    def step(self) -> list[Progress]:
        """Compute once for all requests that fit. After an error the engine cannot be used any more."""
        return [self._progress(output) for output in self.llm.step()]

    def close(self) -> None:
        """Free the memory."""
        shutdown = getattr(self.llm.engine_core, "shutdown", None)
        if shutdown is not None:
            shutdown()

    def _progress(self, output: Any) -> Progress:
        (completion,) = output.outputs
        name, count = output.request_id, self._likeliest.get(output.request_id, 0)
        if completion.finish_reason is not None:
            self._likeliest.pop(name, None)
        last = -1 - count  # before the likeliest, which are behind what was asked for
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
    """From ``vllm.logprobs.FlatLogprobs``, where the entries of each position begin and end; the first token of a
    prompt has none."""
    pairs = zip(flat.start_indices, flat.end_indices, strict=True)
    return [(begin, end) for begin, end in pairs if end > begin]


def _one_of_each(flat: Any, place: int) -> list[float]:
    """The entry at ``place`` of each position, counted from its end: the last is the sampled token's, or the target's,
    unless the likeliest are behind it."""
    return [] if flat is None else [flat.logprobs[end + place] for _, end in _places(flat)]


def _likeliest(flat: Any, count: int) -> Likeliest:
    places = [] if flat is None else _places(flat)
    tokens = [list(flat.token_ids[end - count : end]) for _, end in places]
    logprobs = [list(flat.logprobs[end - count : end]) for _, end in places]
    shape = len(places), count
    return Likeliest(np.array(tokens, np.int32).reshape(shape), np.array(logprobs, np.float32).reshape(shape))


def _named_architecture(settings: VllmSettings) -> dict[str, Any]:
    """The architecture, where the base's configuration names none."""
    config = json.loads(Path(settings.path, "config.json").read_text("utf-8"))
    known = ARCHITECTURES.get(settings.config.architecture)
    return {} if config.get("architectures") or not known else {"hf_overrides": {"architectures": [known]}}


def _first_line(error: Exception) -> str:
    """The first line of vLLM's exception, to be a part of a sentence."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if line.endswith(".") else f"{line}."
