"""What is told of cards between two looks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marlaas.engine.devices.machine import Cpu, Gpu, Holder, Inventory, Machine
from marlaas.engine.devices.usable import changes

GB = 1_000_000_000
A, B = (Gpu(n, f"GPU-{n}", "H", "cuda", 80 * GB, 80 * GB) for n in range(2))
LOST = "gpu 1 cannot be used: GPU is lost; restarting the machine may bring it back."


def found(*gpus: Gpu, reason: str = "", notes: tuple[str, ...] = ()) -> Inventory:
    return Inventory(Machine(Cpu((), 1, 1), gpus), "580", "13.0", reason, notes)


def held(gpu: Gpu, *holders: Holder) -> Gpu:
    return replace(gpu, holders=holders, free=gpu.memory - sum(holder.memory for holder in holders))


ANNA, MORE = Holder(7, "anna", 12 * GB), Holder(7, "anna", 13 * GB)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (found(A, B), found(A, B), ()),
        (found(A, B), found(A), ("gpu 1 (H) has disappeared.",)),
        (found(A, B), found(A, notes=(LOST,)), (LOST,)),
        (found(A, notes=(LOST,)), found(A, notes=(LOST,)), ()),
        (found(A), found(A, B), ("gpu 1 (H) is there.",)),
        (
            found(A, B),
            found(reason="the driver does not answer"),
            ("The cards can no longer be looked at: the driver does not answer.",),
        ),
        (found(reason="no driver"), found(reason="no driver"), ()),
        (found(A), found(held(A, ANNA)), ("anna took memory of gpu 0: 12.0 GB are theirs, 68.0 GB are free.",)),
        (found(held(A, ANNA)), found(A), ("Others gave back memory of gpu 0: 80.0 GB are free.",)),
        (found(held(A, ANNA)), found(held(A, MORE)), ()),
        (found(A), found(held(A, Holder(8, "me", 9 * GB))), ()),
        (found(A), found(held(A, Holder(8, "root", 9 * GB, ours=True))), ()),
        (
            found(A),
            found(held(A, Holder(0, "", 9 * GB))),
            ("somebody unseen took memory of gpu 0: 9.0 GB are theirs, 71.0 GB are free.",),
        ),
    ],
)
def test_what_is_told(before: Inventory, after: Inventory, told: tuple[str, ...]) -> None:
    assert changes(before, after, "me") == told
