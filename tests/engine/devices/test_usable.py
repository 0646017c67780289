"""What marlaas may take: tables of imaginary machines and rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from marlaas.engine.devices.machine import Cpu, Gpu, Holder, Inventory, Machine
from marlaas.engine.devices.usable import ResourceSettings, UsableResources, share_of, usable_resources

GB = 1_000_000_000
CPU = Cpu((0, 1, 2, 5), 4, 32 * GB, "A processor")
CARDS = tuple(Gpu(n, f"GPU-{n}{n}", "H", "cuda", 80 * GB, 80 * GB) for n in range(4))
FREE = ResourceSettings()


def usable(
    cards: tuple[Gpu, ...] = CARDS,
    resources: ResourceSettings = FREE,
    environment: Mapping[str, str] | None = None,
    order: tuple[str, ...] | None = None,
) -> UsableResources:
    found = Inventory(Machine(CPU, cards), "580.1", "13.0", order=order)
    return usable_resources(found, resources, environment or {}, "me")


def indices(found: UsableResources) -> list[int]:
    return [gpu.index for gpu in found.machine.gpus]


def held(*holders: Holder) -> tuple[Gpu, ...]:
    taken = sum(holder.memory for holder in holders)
    return (CARDS[0], replace(CARDS[1], holders=holders, free=80 * GB - taken))


def test_what_is_free_is_taken() -> None:
    found = usable()
    assert indices(found) == [0, 1, 2, 3] and found.left_out == () and found.notes == ()
    assert found.machine.cpu == CPU


@pytest.mark.parametrize(
    ("environment", "left"),
    [
        ({}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, [0, 2]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3"}, [3]),
    ],
)
def test_the_environment_hides_cards(environment: dict[str, str], left: list[int]) -> None:
    found = usable(environment=environment)
    assert indices(found) == left
    for out in found.left_out:
        assert f"CUDA_VISIBLE_DEVICES={environment['CUDA_VISIBLE_DEVICES']} leaves it out" in out.reason


def test_numbers_of_unequal_cards_mean_what_cuda_says() -> None:
    cards = (replace(CARDS[0], name="slow"), CARDS[1])
    assert indices(usable(cards, environment={"CUDA_VISIBLE_DEVICES": "0"}, order=("GPU-11", "GPU-00"))) == [1]
    found = usable(cards, environment={"CUDA_VISIBLE_DEVICES": "0"})
    assert indices(found) == [] and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in found.notes[0]
    by_bus = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert indices(usable(cards, environment=by_bus)) == [0]


@pytest.mark.parametrize(
    ("gpus", "left", "note"),
    [
        ("all", [0, 1, 2, 3], ""),
        ("none", [], ""),
        ((), [], ""),
        ((0, 3), [0, 3], ""),
        (("GPU-2", 1), [1, 2], ""),
        (("3",), [3], ""),
        ((0, 9), [0], "names 9,"),
        (("GPU-", 0), [0], "names 'GPU-',"),
        (("", 0), [0], "names '',"),
    ],
)
def test_settings_choose_cards(gpus: str | tuple[int | str, ...], left: list[int], note: str) -> None:
    found = usable(resources=replace(FREE, gpus=gpus))
    assert indices(found) == left and note in "".join(found.notes) and bool(note) == bool(found.notes)
    assert all("`gpus` under [resources] leaves it out" in out.reason for out in found.left_out)


def test_settings_cannot_take_what_the_environment_hides() -> None:
    assert indices(usable(resources=replace(FREE, gpus=(0, 1)), environment={"CUDA_VISIBLE_DEVICES": "1,2"})) == [1]


@pytest.mark.parametrize(
    ("holders", "reason"),
    [
        ((Holder(7, "me", 9 * GB),), ""),
        ((Holder(7, "root", 9 * GB, ours=True),), ""),
        ((Holder(7, "gdm", GB, screen=True),), ""),
        ((Holder(7, "anna", 12_300_000_000),), "account anna holds 12.3 GB of it; `shared_gpus = true`"),
        (
            (Holder(7, "bob", GB), Holder(8, "anna", GB), Holder(9, "anna", GB)),
            "account anna holds 2.0 GB; account bob holds 1.0 GB of it",
        ),
        ((Holder(0, "", 3 * GB),), "processes that cannot be seen from here hold 3.0 GB of it"),
        ((Holder(7, "anna", 0),), "account anna holds part of it"),
    ],
)
def test_cards_of_others_are_left_alone_by_default(holders: tuple[Holder, ...], reason: str) -> None:
    found = usable(held(*holders))
    assert (indices(found) == [0]) == bool(reason) and reason in found.reason("GPU-11")
    assert indices(usable(held(*holders), replace(FREE, shared_gpus=True))) == [0, 1]


def test_a_card_that_computes_for_nobody() -> None:
    found = usable((replace(CARDS[0], mode="prohibited"), replace(CARDS[1], mode="exclusive")))
    assert indices(found) == [1] and "nvidia-smi -c DEFAULT" in found.reason("GPU-00")


@pytest.mark.parametrize(("limit", "free"), [(1.0, 50), (0.5, 40), (0.25, 20), (24.0, 24), (500.0, 50)])
def test_memory_of_cards_is_limited(limit: float, free: int) -> None:
    cards = (replace(CARDS[0], free=50 * GB),)
    (gpu,) = usable(cards, replace(FREE, gpu_memory=limit)).machine.gpus
    assert gpu.free == free * GB and gpu.memory == 80 * GB
    assert share_of(80 * GB, limit) <= 80 * GB


@pytest.mark.parametrize(
    ("cpu", "resources", "left"),
    [
        (CPU, replace(FREE, cores=2, memory=8.0), Cpu((0, 1), 2, 8 * GB, "A processor")),
        (CPU, replace(FREE, cores=64, memory=640.0), CPU),
        (replace(CPU, count=3), FREE, Cpu((0, 1, 2), 3, 32 * GB, "A processor")),
        (replace(CPU, count=1), replace(FREE, cores=2), Cpu((0,), 1, 32 * GB, "A processor")),
        (Cpu((), 8, GB), replace(FREE, cores=3), Cpu((), 3, GB)),
    ],
)
def test_cores_and_memory(cpu: Cpu, resources: ResourceSettings, left: Cpu) -> None:
    assert usable_resources(Inventory(Machine(cpu)), resources, {}, "me").machine.cpu == left


def test_other_kinds_of_cards_know_nothing_of_cuda() -> None:
    metal = Gpu(0, "metal-0", "An Apple", "metal", 24 * GB, 20 * GB)
    found = usable_resources(Inventory(Machine(CPU, (metal,))), FREE, {"CUDA_VISIBLE_DEVICES": ""}, "me")
    assert found.machine.gpus == (metal,)
