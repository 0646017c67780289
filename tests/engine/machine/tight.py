"""A real sampler without memory for its first step."""

from __future__ import annotations

import sys
from typing import Any

from marlaas.engine.samplers.torch.sampler import TorchSampler

ROOM = 50


class TightSampler(TorchSampler):
    """Runs out of memory with more than ``ROOM`` conversations."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if kwargs["sequences"] > ROOM:
            self._batches.step = lambda: bytearray(sys.maxsize)  # type: ignore[method-assign, assignment]
