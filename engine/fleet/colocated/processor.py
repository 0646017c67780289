"""Undoes what vLLM's CPU builds do to the process that they run in.

There vLLM rewrites each matrix for its own products and frees the original, which leaves nothing to share
(``model_executor/layers/utils.py: dispatch_cpu_unquantized_gemm``), and takes ``torch.set_num_threads`` away from
everybody (``v1/worker/cpu_worker.py: init_device``); read in 0.32. On cards it does neither.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...rollout import environment


@contextmanager
def considerate_vllm() -> Iterator[None]:
    """Within, vLLM keeps the matrices of an engine as they were loaded, and torch multiplies with them; after the block
    ``torch.set_num_threads`` works again."""
    os.environ.update(environment("cpu"))  # read when vllm is imported
    from vllm.model_executor.layers import utils

    rewrite, set_num_threads = utils.dispatch_cpu_unquantized_gemm, torch.set_num_threads
    utils.dispatch_cpu_unquantized_gemm = _plain
    try:
        yield
    finally:
        utils.dispatch_cpu_unquantized_gemm = rewrite
        torch.set_num_threads = set_num_threads


def _plain(layer: Any, remove_weight: bool) -> None:
    """Multiply by torch; the matrix stays, whatever ``remove_weight`` says."""
    layer.cpu_linear = torch.nn.functional.linear
