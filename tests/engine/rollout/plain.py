"""Plain definitions that sampling is compared with."""

import numpy as np

from marlaas.engine.samplers.batching.context import Logits
from marlaas.engine.trajectories import Logprobs, Tokens


def logprobs_of(logits: Logits, targets: Tokens, temperature: float) -> Logprobs:
    """Of ``targets`` (n,) under ``logits`` (n, V), in float64; temperature 0 means 1."""
    scaled = logits.astype(np.float64) / (temperature or 1.0)
    scaled -= scaled.max(1, keepdims=True)
    logprobs: Logprobs = scaled[np.arange(len(targets)), targets] - np.log(np.exp(scaled).sum(1))
    return logprobs.astype(np.float32)
