"""Cards in words."""

from __future__ import annotations

import pytest

from marlaas.app.words.machine import card, held, rates
from marlaas.engine.devices.machine import Gpu, Holder, Rates

GB = 1_000_000_000


def test_rates() -> None:
    assert rates(Rates(7.2e10, 4.5e9)) == "72 Gflop/s, 4.5 GB/s"
    assert rates(Rates(1.5e11, 1.2e10, 1.1e12)) == "150 Gflop/s (1.1 Tflop/s in bfloat16), 12.0 GB/s"
    assert rates(Rates(7.8e14, 4e12)) == "780.0 Tflop/s, 4.0 TB/s" and rates(None) == ""


@pytest.mark.parametrize(
    ("holders", "told"),
    [
        ((), ""),
        ((Holder(1, "me", GB), Holder(2, "me", GB)), "you 2.0 GB"),
        ((Holder(1, "me", GB, ours=True), Holder(2, "gdm", GB, screen=True)), "this engine 1.0 GB, the screen 1.0 GB"),
        ((Holder(0, "", GB), Holder(3, "an\x1b[2Jna", 0)), "somebody unseen 1.0 GB, anna"),
        (tuple(Holder(n, f"a{n}", GB) for n in range(5)), "a0 1.0 GB, a1 1.0 GB, a2 1.0 GB, 2 more"),
    ],
)
def test_holders(holders: tuple[Holder, ...], told: str) -> None:
    assert held(holders, "me") == told


def test_a_card() -> None:
    found = Gpu(0, "GPU-0", "H\x1b[2J", "cuda", 80 * GB, 79 * GB, mode="exclusive", rates=Rates(1e15, 1e12))
    assert card(found, "me") == "H · 79.0 GB of 80.0 GB free · 1000.0 Tflop/s, 1.0 TB/s · one process at a time"
