"""How many floating-point operations matrix products come to: those that really run, by torch's count.

Work flows in and is run once; a number flows out. Torch's counter leaves out products that are added in place, and
those that go to oneDNN by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

Shape = tuple[int, ...]


def _added(sums: Shape, left: Shape, right: Shape, **unused: object) -> int:
    return 2 * left[0] * left[1] * right[1]


def _linear(left: Shape, weight: Shape, *unused: object, **also: object) -> int:
    return 2 * left[0] * left[1] * weight[0]


UNCOUNTED: dict[Any, Callable[..., int]] = {torch.ops.aten.addmm_: _added}
if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
    UNCOUNTED[torch.ops.mkldnn._linear_pointwise] = _linear


def operations(run: Callable[[], object]) -> float:
    """Of one run; a product of (m, k) and (k, n) is 2 m k n."""
    with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
        run()
    return float(counter.get_total_flops())
