"""Memory that nobody who can be seen holds: ours on cards of our workers, somebody's elsewhere."""

from __future__ import annotations

import pytest

from marlaas.engine.devices.machine import Cpu, Gpu, Holder, Inventory, Machine
from marlaas.engine.devices.usable import NOTHING, Ours, ResourceSettings, changes, claimed, usable_resources

GB = 1_000_000_000
UNSEEN, ANNA = Holder(0, "", 60 * GB), Holder(7, "anna", GB)
RULES = ResourceSettings()


def found(*holders: Holder) -> Inventory:
    card = Gpu(0, "GPU-0", "H", "cuda", 80 * GB, 80 * GB - sum(holder.memory for holder in holders), holders=holders)
    return Inventory(Machine(Cpu((), 1, 1), (card,)), "580", "13.0")


@pytest.mark.parametrize(
    ("holders", "ours", "free"),
    [
        ((), NOTHING, 80),
        ((UNSEEN,), Ours(cards=("GPU-0",)), 80),
        ((UNSEEN,), Ours(cards=("GPU-1",)), None),
        ((UNSEEN,), Ours(processes=(7,)), None),
        ((UNSEEN, ANNA), Ours(cards=("GPU-0",)), None),
    ],
)
def test_what_a_plan_may_take(holders: tuple[Holder, ...], ours: Ours, free: int | None) -> None:
    usable = usable_resources(claimed(found(*holders), ours), RULES, {}, "me")
    assert [gpu.free for gpu in usable.machine.gpus] == ([] if free is None else [free * GB])


def test_what_is_told_of_a_card_of_ours() -> None:
    own = Ours(cards=("GPU-0",))
    before, after = found(), claimed(found(UNSEEN), own)
    assert changes(before, after, "me") == ()
    assert changes(after, claimed(found(UNSEEN, ANNA), own), "me") != ()
    assert changes(before, claimed(found(UNSEEN), NOTHING), "me") != ()
