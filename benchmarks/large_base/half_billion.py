"""A base of the shape of Qwen2.5-0.5B on one core: tokens a second, sampled and trained, beside what the core can do.

There is no other side: the machine is the limit. Decoding one conversation reads all weights for each token, so memory
bandwidth bounds it; many conversations, prompts and training are bounded by the rate of products, in float32 or, where
the processor is faster at it, in bfloat16.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from marlaas.engine.base.kernels import product
from marlaas.engine.base.model import BaseModel
from marlaas.engine.devices import Precision
from marlaas.engine.devices.measuring import measure as measure_device
from marlaas.engine.training.torch_trainer import keep_freed_memory
from tools.random_base.make import make_base

from ..machinery.cores import all_cores, pinned
from ..report.figures import Row, Section, Series
from .half_billion_sampling import WEIGHTS, Sampled, sample
from .half_billion_training import Trained, train

CONVERSATIONS = (1, 8, 64)


def measure(quick: bool) -> Section:
    """All of it on one core; takes about 10 minutes, or 3 when quick."""
    repetitions = 1 if quick else 3
    keep_freed_memory()
    torch.set_num_threads(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name, pinned(all_cores()[:1]):
        folder = Path(name)
        base = make_base(folder / "base", "qwen2.5", "0.5b")
        for weights in WEIGHTS[-2:] if quick else WEIGHTS:
            bandwidth, rate = read_bandwidth(), product_rate()
            for conversations in CONVERSATIONS:
                rows += sampling_rows(sample(base, folder, weights, conversations, repetitions), bandwidth, rate)
        rates = rates_by_precision()
        for trained in train(base, repetitions, tuple(rates)):
            rows += training_rows(trained, rates[trained.precision])
    return Section(
        "half_billion",
        "A base of half a billion parameters",
        method(base, repetitions),
        tuple(rows),
    )


def sampling_rows(sampled: Sampled, bandwidth: float, rate: float) -> list[Row]:
    """Tokens a second, and the nearer of the two limits."""
    what = f"{sampled.weights}, {sampled.conversations} conversation{'' if sampled.conversations == 1 else 's'}"
    speeds = sampled.tokens_per_second
    read = tuple(100 * speed / sampled.conversations * sampled.weight_bytes / bandwidth for speed in speeds)
    multiplied = tuple(100 * speed * sampled.operations / rate for speed in speeds)
    return [
        Row(f"sampling, {what}", "tokens/s", Series(speeds), higher_is_better=True),
        Row(f"… share of memory bandwidth, {what}", "%", Series(read), higher_is_better=True),
        Row(f"… share of the float32 rate, {what}", "%", Series(multiplied), higher_is_better=True),
    ]


def training_rows(trained: Trained, rate: float) -> list[Row]:
    """Tokens a second, forward and backward, and the share of the rate."""
    tokens = Series(tuple(trained.tokens / seconds for seconds in trained.seconds))
    share = Series(tuple(100 * trained.operations / seconds / rate for seconds in trained.seconds))
    kept = {"f32": "float32", "bf16": "bfloat16"}[trained.precision]
    goal = {"float32": "60 %"}.get(kept, "")
    return [
        Row(f"training in {kept}, {trained.what}", "tokens/s", tokens, higher_is_better=True),
        Row(f"… share of the {kept} rate", "%", share, higher_is_better=True, goal=goal),
    ]


def rates_by_precision() -> dict[Precision, float]:
    """Operations a second of large products, in bfloat16 too where this processor gains by it: as an engine measures
    them before it places its workers."""
    found = measure_device("cpu")
    rates: dict[Precision, float] = {"f32": found.matrix}
    return rates | ({"bf16": found.bfloat16} if found.gain > 1.0 else {})


def read_bandwidth(size: int = 1 << 30) -> float:
    """Bytes a second that one core reads from main memory: the best of a few sums over a gibibyte."""
    numbers = np.ones(size // 8)
    return max(size / _seconds(numbers) for _ in range(4))


def product_rate(side: int = 1024) -> float:
    """Operations a second of a large product in float32, by the fastest kernels here: the best of a few."""
    left, right = torch.randn(side, side), torch.randn(side, side)
    best = 0.0
    for _ in range(6):
        started = perf_counter()
        product(left, right)
        best = max(best, 2 * side**3 / (perf_counter() - started))
    return best


def method(base: BaseModel, repetitions: int) -> str:
    """What ran, with which settings."""
    config = base.config
    return (
        f"A random base made by `tools.random_base`: {config.layers} layers of width {config.hidden_size}, vocabulary"
        f" {config.vocab_size:,}, tied. One core and one thread; {repetitions} repetitions. Sampling is the real"
        " sampler with a LoRA of rank 16, drawing included: in bf16 on torch, else on llama.cpp. Conversations are"
        " decoded together, each after a prompt of its own, which is not timed. Bandwidth is that of a sum over a"
        " gibibyte, the rate that of a"
        " 1024 × 1024 float32 product, both on the same core just before; the trainer's rates are those that an engine"
        " measures. Products of 8-bit weights are counted as if"
        " they were float32 ones. Training is a forward and backward pass of one group, turn by turn with the trainer's"
        " base in float32 and, where the processor multiplies it faster, in bfloat16; only products that really ran are"
        " counted."
    )


def _seconds(numbers: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    started = perf_counter()
    numbers.sum()
    return perf_counter() - started
