"""Plain definitions that sampling is compared with."""

import numpy as np

from marlaas.engine.samplers.batching.context import Logits
from marlaas.engine.samplers.sampling import Truncation
from marlaas.engine.trajectories import Logprobs, Tokens


def logprobs_of(logits: Logits, targets: Tokens, temperature: float) -> Logprobs:
    """Of ``targets`` (n,) under ``logits`` (n, V), in float64; temperature 0 means 1."""
    scaled = logits.astype(np.float64) / (temperature or 1.0)
    scaled -= scaled.max(1, keepdims=True)
    logprobs: Logprobs = scaled[np.arange(len(targets)), targets] - np.log(np.exp(scaled).sum(1))
    return logprobs.astype(np.float32)


def kept_tokens(logits: np.ndarray, one: Truncation, temperature: float) -> list[int]:
    """The ids that top-k, top-p and min-p leave, in order, the slow way; ``logits`` (V,)."""
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    weights[weights < one.min_p] = 0.0
    order = np.argsort(-weights, kind="stable")
    if one.top_k:
        weights[weights < weights[order[: one.top_k]][-1]] = 0.0
    before, goal = 0.0, one.top_p * weights.sum()
    kept: set[int] = set()
    for place in order.tolist():
        if weights[place] == 0.0 or before >= goal:
            break
        kept.add(place)
        before += weights[place]
    least = min(weights[place] for place in kept)
    return [place for place in range(len(weights)) if weights[place] >= least]
