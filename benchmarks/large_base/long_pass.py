"""One pass over one long sequence in a process of its own: processor seconds, and the most memory that it took.

``python -m benchmarks.large_base.long_pass FOLDER STAGE WEIGHTS TOKENS WAY`` prints both as JSON. The stage is
``training`` or ``sampling``; the way ``tiles``, or ``square``, which holds every score: attention for short sequences.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import process_time
from typing import Literal, cast
from unittest.mock import patch

import numpy as np
import psutil
import torch

from marlaas.engine.base import BaseModel, load_base
from marlaas.engine.devices import Precision
from marlaas.engine.rollout.torch_sampler import blocks
from marlaas.engine.rollout.torch_sampler.context import TorchContext, TorchWeights
from marlaas.engine.training.decoder.attention import AttentionPlan, FusedAttention
from marlaas.engine.training.decoder.decoder import Decoder, compute_on
from marlaas.engine.training.group_pass import add_gradient
from marlaas.engine.training.inputs import PolicyConfig, TrainGroup, TrainSequence
from marlaas.engine.training.memory.policy_memory import PolicyMemory, fresh

Stage = Literal["training", "sampling"]
Way = Literal["tiles", "square"]
CONFIG = PolicyConfig(rank=16, alpha=32.0, denominator=64.0)
MEGABYTE = 10**6


@dataclass(frozen=True)
class Pass:
    """What one pass took."""

    seconds: float
    """Of one thread's processor time."""
    megabytes: float
    """The most memory during the pass, beyond what the base took before it."""


def measured(folder: Path, stage: Stage, weights: Precision, tokens: int, way: Way) -> Pass:
    """One pass in a new process. Raises ``CalledProcessError`` where it fails, for want of memory above all."""
    words = [str(folder), stage, weights, str(tokens), way]
    done = subprocess.run([sys.executable, "-m", __name__, *words], check=True, capture_output=True, text=True)
    return Pass(**json.loads(done.stdout))


def run(folder: Path, stage: Stage, weights: Precision, tokens: int, way: Way) -> Pass:
    """One pass in this process, which should have done nothing before: ``sampling`` reads a prompt, ``training`` goes
    forward and backward over a prompt and an answer of half the tokens each."""
    torch.set_num_threads(1)
    base = load_base(str(folder))
    compute = (_trained if stage == "training" else _prompted)(base, weights, tokens, way)
    before = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts anew
    began = process_time()
    compute()
    return Pass(process_time() - began, (_peak() - before) / MEGABYTE)


def _trained(base: BaseModel, weights: Precision, tokens: int, way: Way) -> Callable[[], object]:
    compute = compute_on("cpu", weights)
    if way == "square":
        short = AttentionPlan.of if weights == "f32" else partial(FusedAttention.of, dtype=torch.bfloat16)
        compute = replace(compute, attention=short)
    model = Decoder.of(base, compute)
    layout = model.layout(CONFIG.rank)
    memory = PolicyMemory.of(CONFIG, layout, fresh(CONFIG, layout))
    drawn = np.random.default_rng(0).integers(0, model.vocabulary, tokens).astype(np.int32)
    mask = (np.arange(tokens) >= tokens // 2).astype(np.uint8)
    group = TrainGroup(0, (TrainSequence(drawn, mask, np.where(mask, np.float32(-2), np.float32(0)), 1.0),))
    return lambda: add_gradient(model, memory, [group])


def _prompted(base: BaseModel, weights: Precision, tokens: int, way: Way) -> Callable[[], object]:
    opened = TorchContext(base, 2, tokens, cast(TorchWeights, weights))
    drawn = np.random.default_rng(0).integers(0, opened.vocabulary, tokens).astype(np.int32)
    places, outputs = np.arange(tokens, dtype=np.int32), np.zeros(tokens, np.int8)
    outputs[-2:] = 1

    def compute() -> None:
        with patch.object(blocks, "tiles", lambda: way == "tiles"):
            opened.decode(drawn, places, np.zeros(tokens, np.int32), outputs)

    return compute


def _peak() -> int:
    """Bytes of resident memory at their most."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM"):
            return 1024 * int(line.split()[1])
    raise OSError("/proc/self/status has no VmHWM.")


def main() -> None:
    """See above."""
    folder, stage, weights, tokens, way = sys.argv[1:]
    found = run(Path(folder), cast(Stage, stage), cast(Precision, weights), int(tokens), cast(Way, way))
    print(json.dumps({"seconds": found.seconds, "megabytes": found.megabytes}))


if __name__ == "__main__":
    main()
