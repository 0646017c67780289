"""Zeros that nobody has written take no memory; what is written takes its own pages only."""

from __future__ import annotations

import psutil
import pytest
import torch

from marlaas.engine.samplers.torch.cache import untouched

MEGABYTE = 1 << 20


def resident() -> float:
    return psutil.Process().memory_info().rss / MEGABYTE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_comes_with_the_first_write(dtype: torch.dtype) -> None:
    rows, long = 256, MEGABYTE // dtype.itemsize
    before = resident()
    zeros = untouched(rows, long, dtype=dtype)
    assert zeros.shape == (rows, long) and zeros.dtype == dtype and zeros.data_ptr() % 64 == 0
    assert resident() - before < rows / 8  # other threads of the test's process may take a little
    assert not zeros[7].any()
    zeros[3:5] = 1
    assert resident() - before < rows / 8 and float(zeros[3, -1]) == 1 and not zeros[5].any()
