"""Which tokens top-k, top-p and min-p keep: written once more, the slow way, for tests."""

import numpy as np

from marlaas.engine.samplers.sampling import Truncation


def kept_tokens(logits: np.ndarray, one: Truncation, temperature: float) -> list[int]:
    """The ids in order; ``logits`` (V,)."""
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
