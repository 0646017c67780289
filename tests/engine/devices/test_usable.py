"""What marlaas may take: tables of imaginary machines and rules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch.cuda as torch_cuda
from hypothesis import given, strategies as st

from marlaas.engine.devices.machine import Cpu, Gpu, Holder, Inventory, Kind, Machine
from marlaas.engine.devices.usable import (
    NOTHING,
    Ours,
    ResourceSettings,
    UsableResources,
    ambiguous,
    changes,
    claimed,
    environment,
    find,
    llama_devices,
    masked,
    share_of,
    usable_resources,
)

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


def look_at(*gpus: Gpu, reason: str = "", notes: tuple[str, ...] = ()) -> Inventory:
    return Inventory(Machine(Cpu((), 1, 1), gpus), "580", "13.0", reason, notes)


def taken_by(gpu: Gpu, *holders: Holder) -> Gpu:
    return replace(gpu, holders=holders, free=gpu.memory - sum(holder.memory for holder in holders))


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
    for reason in found.left_out.values():
        assert f"CUDA_VISIBLE_DEVICES={environment['CUDA_VISIBLE_DEVICES']} leaves it out" in reason
    chosen = usable(resources=replace(FREE, gpus=(0, 1)), environment=environment)
    assert set(indices(chosen)) == {0, 1} & set(left), "settings cannot take what it hides"


def test_numbers_of_unequal_cards_mean_what_cuda_says() -> None:
    cards = (replace(CARDS[0], name="slow"), CARDS[1])
    assert indices(usable(cards, environment={"CUDA_VISIBLE_DEVICES": "0"}, order=("GPU-11", "GPU-00"))) == [1]
    found = usable(cards, environment={"CUDA_VISIBLE_DEVICES": "0"})
    assert indices(found) == [] and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in found.notes[0]
    by_bus = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert indices(usable(cards, environment=by_bus)) == [0]
    assert ambiguous("0", "FASTEST_FIRST", cards) and not ambiguous("GPU-x", None, cards)


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
    assert all("`gpus` under [resources] leaves it out" in reason for reason in found.left_out.values())


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
    cards = (CARDS[0], taken_by(CARDS[1], *holders))
    found = usable(cards)
    assert (indices(found) == [0]) == bool(reason) and reason in found.left_out.get("GPU-11", "")
    assert indices(usable(cards, replace(FREE, shared_gpus=True))) == [0, 1]


def test_a_driver_without_cuda_and_a_prohibited_card() -> None:
    found = usable_resources(Inventory(Machine(CPU, CARDS[:1]), "580.1"), FREE, {}, "me")
    assert "has no CUDA" in found.left_out["GPU-00"] and found.machine.gpus == ()
    found = usable((replace(CARDS[0], mode="prohibited"), replace(CARDS[1], mode="exclusive")))
    assert indices(found) == [1] and "nvidia-smi -c DEFAULT" in found.left_out.get("GPU-00", "")


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


UNSEEN, ANNA = Holder(0, "", 60 * GB), Holder(7, "anna", GB)


FIRST = Gpu(0, "GPU-0", "H", "cuda", 80 * GB, 80 * GB)


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
    after = claimed(look_at(taken_by(FIRST, *holders)), ours)
    usable = usable_resources(after, FREE, {}, "me")
    assert [gpu.free for gpu in usable.machine.gpus] == ([] if free is None else [free * GB])
    assert bool(changes(look_at(FIRST), after, "me")) == (free is None), "what is told of it"


A, B = (Gpu(n, f"GPU-{n}", "H", "cuda", 80 * GB, 80 * GB) for n in range(2))
LOST = "gpu 1 cannot be used: GPU is lost; restarting the machine may bring it back."


ANNA_HOLDS, MORE = Holder(7, "anna", 12 * GB), Holder(7, "anna", 13 * GB)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (look_at(A, B), look_at(A, B), ()),
        (look_at(A, B), look_at(A), ("gpu 1 (H) has disappeared.",)),
        (look_at(A, B), look_at(A, notes=(LOST,)), (LOST,)),
        (look_at(A, notes=(LOST,)), look_at(A, notes=(LOST,)), ()),
        (look_at(A), look_at(A, B), ("gpu 1 (H) is there.",)),
        (
            look_at(A, B),
            look_at(reason="the driver does not answer"),
            ("The cards can no longer be looked at: the driver does not answer.",),
        ),
        (look_at(reason="no driver"), look_at(reason="no driver"), ()),
        (
            look_at(A),
            look_at(taken_by(A, ANNA_HOLDS)),
            ("anna took memory of gpu 0: 12.0 GB are theirs, 68.0 GB are free.",),
        ),
        (
            look_at(taken_by(A, ANNA_HOLDS)),
            look_at(A),
            ("Others gave back memory of gpu 0: 80.0 GB are free.",),
        ),
        (look_at(taken_by(A, ANNA_HOLDS)), look_at(taken_by(A, MORE)), ()),
        (look_at(A), look_at(taken_by(A, Holder(8, "me", 9 * GB))), ()),
        (look_at(A), look_at(taken_by(A, Holder(8, "root", 9 * GB, ours=True))), ()),
        (
            look_at(A),
            look_at(taken_by(A, Holder(0, "", 9 * GB))),
            ("somebody unseen took memory of gpu 0: 9.0 GB are theirs, 71.0 GB are free.",),
        ),
    ],
)
def test_what_is_told(before: Inventory, after: Inventory, told: tuple[str, ...]) -> None:
    assert changes(before, after, "me") == told


IDS = ("GPU-aaaa-1", "GPU-aabb-2", "GPU-bbbb-3")
MASKED = tuple(Gpu(place, uuid, "one", "cuda", 80, 80) for place, uuid in enumerate(IDS))
A_ID, AB_ID, B_ID = IDS


@pytest.mark.parametrize(
    ("value", "uuids", "note"),
    [
        (None, IDS, ""),
        ("  ", (), ""),
        ("-1", (), ""),
        ("none", (), "'none'"),
        (" 2 , 0 ", (B_ID, A_ID), ""),
        ("0,-1,1", (A_ID,), ""),
        ("0,7,1", (A_ID,), "'7'"),
        ("1,1", (), "twice"),
        ("0,,1", (A_ID,), "''"),
        ("GPU-aabb,GPU-bbbb-3", (AB_ID, B_ID), ""),
        ("GPU-aa", (), "'GPU-aa'"),
        ("GPU-bbbb,0", (B_ID,), "'0'"),
        ("0,GPU-bbbb", (A_ID,), "'GPU-bbbb'"),
        ("MIG-1", (), "'MIG-1'"),
    ],
)
def test_what_a_value_leaves(value: str | None, uuids: tuple[str, ...], note: str) -> None:
    mask = masked(value, MASKED)
    assert mask.uuids == uuids
    assert note in mask.note and bool(note) == bool(mask.note)


def test_numbers_count_in_the_order_of_cuda() -> None:
    assert masked("0", MASKED, (B_ID, A_ID, AB_ID)).uuids == (B_ID,)
    assert masked("3", MASKED, (B_ID, A_ID, AB_ID)).uuids == ()
    assert masked("GPU-aaaa", MASKED, (B_ID, A_ID, AB_ID)).uuids == (A_ID,)
    assert find("GPU-aaa", MASKED) == A_ID and find("GPU-aa", MASKED) is None and find("x", MASKED) is None


def test_parts_of_a_divided_card() -> None:
    parts = tuple(Gpu(1, f"MIG-{n}", "one", "cuda", 10, 10, part=n) for n in range(2))
    cards = (MASKED[0], *parts)
    assert masked("1", cards).uuids == ("MIG-0",)
    assert masked("MIG-1", cards).uuids == ("MIG-1",)
    assert masked("MIG-1,GPU-aaaa", cards).uuids == ("MIG-1",)


entries = st.one_of(
    st.integers(-2, 4).map(str),
    st.sampled_from([*IDS, "GPU-", "GPU-a", "GPU-aa", "GPU-aab", "GPU-b", "MIG-0", "", " 1", "2x", "all"]),
)


@given(st.lists(entries, max_size=5).map(",".join))
def test_torch_counts_the_same(value: str) -> None:
    """Its own reading of the variable, where it has names apart from numbers; it takes ids as they stand."""
    with patch.dict(os.environ, CUDA_VISIBLE_DEVICES=value):
        known = torch_cuda._parse_visible_devices()
    if known and isinstance(known[0], str):
        places = torch_cuda._transform_uuid_to_ordinals([str(name).strip() for name in known], list(IDS))
    else:
        numbers = [int(place) for place in known]
        places = numbers[: next((at for at, place in enumerate(numbers) if place >= len(IDS)), len(numbers))]
    assert masked(value, MASKED).uuids == tuple(IDS[place] for place in places)


@pytest.mark.parametrize(
    ("cards", "cuda", "hip", "llama"),
    [
        ((), "", "", ()),
        ((("GPU-b", "cuda"), ("GPU-a", "cuda")), "GPU-b,GPU-a", "", ("CUDA0", "CUDA1")),
        (
            (("GPU-a", "cuda"), ("ROCm0", "rocm"), ("Vulkan1", "vulkan"), ("MTL0", "metal")),
            "GPU-a",
            None,
            ("CUDA0", "ROCm0", "Vulkan1", "MTL0"),
        ),
    ],
)
def test_a_worker_sees_its_own_cards(
    cards: tuple[tuple[str, Kind], ...], cuda: str, hip: str | None, llama: tuple[str, ...]
) -> None:
    given = [Gpu(7, uuid, "card", kind, 1, 1) for uuid, kind in cards]
    variables = environment(given)
    assert (variables["CUDA_VISIBLE_DEVICES"], variables.get("HIP_VISIBLE_DEVICES")) == (cuda, hip)
    assert llama_devices(given) == llama
