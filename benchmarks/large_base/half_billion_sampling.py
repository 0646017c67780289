"""The sampler on a large base: a base, a precision and a number of conversations flow in, tokens a second flow out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from marlaas.engine.adapters.statefile import PolicyState, StateHeader, write_state
from marlaas.engine.base.memory import weight_bytes
from marlaas.engine.base.model import BaseModel
from marlaas.engine.base.modules import linear_shapes
from marlaas.engine.base.precision import BFLOAT16
from marlaas.engine.base.soundness import parameters
from marlaas.engine.rollout.batching.sampler import BatchingSampler
from marlaas.engine.rollout.llama.model import LlamaSampler, ensure_base_gguf
from marlaas.engine.rollout.protocol import SampleRequest
from marlaas.engine.rollout.torch_sampler.sampler import TorchSampler
from marlaas.engine.trajectories import Tokens

WEIGHTS = ("f32", "f16", "q8_0", BFLOAT16)
"""bfloat16 is the torch sampler's, the others are llama.cpp's."""
PROMPT, TOKENS, RANK = 32, 12, 16


@dataclass(frozen=True)
class Sampled:
    """One precision and number of conversations."""

    weights: str
    conversations: int
    tokens_per_second: tuple[float, ...]
    weight_bytes: int
    """Read for every call."""
    operations: float
    """Of matrix products, for one token."""


def sample(base: BaseModel, folder: Path, weights: str, conversations: int, repetitions: int) -> Sampled:
    """Decode ``conversations`` together, ``repetitions`` times, with last bits that may depend on one another."""
    state = folder / "adapter.state"
    if not state.exists():
        write_adapter(base, state)
    sampler, size = _opened(base, folder, weights, conversations)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(sampler.load("v", str(state)))
        loop.run_until_complete(_decode(sampler, base, conversations, "warm", 2))
        speeds = tuple(
            loop.run_until_complete(_decode(sampler, base, conversations, str(number), TOKENS))
            for number in range(repetitions)
        )
        loop.run_until_complete(sampler.close())
    finally:
        loop.close()
    shapes = linear_shapes(base.config)
    products = sum(out * into for module, (out, into) in shapes.items() if module != "lm_head")
    adapters = sum(RANK * (out + into) for module, (out, into) in shapes.items() if module != "lm_head")
    head = base.config.vocab_size * base.config.hidden_size
    return Sampled(weights, conversations, speeds, size, 2.0 * (products + adapters + head))


def _opened(base: BaseModel, folder: Path, weights: str, conversations: int) -> tuple[BatchingSampler, int]:
    """The sampler and the bytes of its weights."""
    if weights == BFLOAT16:
        size = weight_bytes(base.config, parameters(base), weights)
        return TorchSampler(str(base.path), conversations, 256, weights="bf16"), size
    size = ensure_base_gguf(base, folder, weights).stat().st_size
    return LlamaSampler(str(base.path), str(folder), conversations, 256, weights=weights, exact=False), size


async def _decode(sampler: BatchingSampler, base: BaseModel, conversations: int, name: str, tokens: int) -> float:
    """Tokens a second of the second turn: the first computes the prompt and one token."""
    random = np.random.default_rng(0)
    prompts = random.integers(0, base.config.vocab_size, (conversations, PROMPT)).astype(np.int32)

    async def turn(number: int, context: Tokens, most: int) -> Tokens:
        request = SampleRequest(f"{name}/{number}", "v", context, most, 1.0, (), number, alike=False)
        return np.concatenate([context, (await sampler.generate(request)).tokens])

    begun = await asyncio.gather(*(turn(number, prompt, 1) for number, prompt in enumerate(prompts)))
    started = perf_counter()
    await asyncio.gather(*(turn(number, context, tokens) for number, context in enumerate(begun)))
    seconds = perf_counter() - started
    for number in range(conversations):
        await sampler.release(f"{name}/{number}")
    return conversations * tokens / seconds


def write_adapter(base: BaseModel, path: Path) -> None:
    """A random adapter on all linear layers, as a trainer would leave it."""
    random = np.random.default_rng(0)
    adapter = {}
    for module, (out, into) in linear_shapes(base.config).items():
        if module != "lm_head":
            adapter[f"{module}.lora_A"] = (random.normal(size=(RANK, into)) / np.sqrt(into)).astype(np.float32)
            adapter[f"{module}.lora_B"] = (random.normal(size=(out, RANK)) * 0.02).astype(np.float32)
    write_state(path, PolicyState(StateHeader(RANK, 2.0 * RANK, 0, base.fingerprint), adapter), sync=False)
