"""How many floating-point operations matrix products come to: those that really run, by torch's count.

Work flows in and is run once; a number flows out. Torch's counter leaves out products that are added in place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

Shape = tuple[int, ...]


def _added(sums: Shape, left: Shape, right: Shape, **unused: object) -> int:
    return 2 * left[0] * left[1] * right[1]


IN_PLACE = {torch.ops.aten.addmm_: _added}


def operations(run: Callable[[], object]) -> float:
    """Of one run; a product of (m, k) and (k, n) is 2 m k n."""
    with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter:
        run()
    return float(counter.get_total_flops())
