"""CUDA_VISIBLE_DEVICES, read as the driver reads it."""

from __future__ import annotations

import os
from unittest.mock import patch

import pytest
import torch.cuda as torch_cuda
from hypothesis import given, strategies as st

from marlaas.engine.devices.machine import Gpu
from marlaas.engine.devices.usable import ambiguous, find, masked

IDS = ("GPU-aaaa-1", "GPU-aabb-2", "GPU-bbbb-3")
CARDS = tuple(Gpu(place, uuid, "one", "cuda", 80, 80) for place, uuid in enumerate(IDS))
A, AB, B = IDS


@pytest.mark.parametrize(
    ("value", "uuids", "note"),
    [
        (None, IDS, ""),
        ("", (), ""),
        ("  ", (), ""),
        ("-1", (), ""),
        ("none", (), "'none'"),
        ("0", (A,), ""),
        ("2,0", (B, A), ""),
        (" 1 , 2 ", (AB, B), ""),
        ("+1", (AB,), ""),
        ("1st,2nd", (AB, B), ""),
        ("0,-1,1", (A,), ""),
        ("0,7,1", (A,), "'7'"),
        ("1,1", (), "twice"),
        ("0,,1", (A,), "''"),
        ("GPU-b", (B,), ""),
        ("GPU-aabb,GPU-bbbb-3", (AB, B), ""),
        ("GPU-aa", (), "'GPU-aa'"),
        ("GPU-bbbb,0", (B,), "'0'"),
        ("0,GPU-bbbb", (A,), "'GPU-bbbb'"),
        ("GPU-b,GPU-bbbb", (), "twice"),
        ("MIG-1", (), "'MIG-1'"),
    ],
)
def test_what_a_value_leaves(value: str | None, uuids: tuple[str, ...], note: str) -> None:
    mask = masked(value, CARDS)
    assert mask.uuids == uuids
    assert note in mask.note and bool(note) == bool(mask.note)


def test_numbers_count_in_the_order_of_cuda() -> None:
    assert masked("0", CARDS, (B, A, AB)).uuids == (B,)
    assert masked("3", CARDS, (B, A, AB)).uuids == ()
    assert masked("GPU-aaaa", CARDS, (B, A, AB)).uuids == (A,)


def test_parts_of_a_divided_card() -> None:
    parts = tuple(Gpu(1, f"MIG-{n}", "one", "cuda", 10, 10, part=n) for n in range(2))
    cards = (CARDS[0], *parts)
    assert masked("1", cards).uuids == ("MIG-0",)
    assert masked("MIG-1", cards).uuids == ("MIG-1",)
    assert masked("MIG-1,GPU-aaaa", cards).uuids == ("MIG-1",)


def test_numbers_are_clear_for_equal_or_ordered_cards() -> None:
    unequal = (CARDS[0], Gpu(1, "GPU-x", "other", "cuda", 8, 8))
    assert ambiguous("0", None, unequal) and ambiguous("0", "FASTEST_FIRST", unequal)
    assert not ambiguous("0", "PCI_BUS_ID", unequal)
    assert (
        not ambiguous("0", None, CARDS) and not ambiguous("GPU-x", None, unequal) and not ambiguous(None, None, unequal)
    )


def test_a_name_means_one_card() -> None:
    assert find("GPU-aaa", CARDS) == A and find("GPU-aa", CARDS) is None and find("x", CARDS) is None


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
    assert masked(value, CARDS).uuids == tuple(IDS[place] for place in places)


@given(st.text(max_size=40))
def test_any_text_leaves_some_of_the_cards_once(value: str) -> None:
    mask = masked(value, CARDS)
    assert set(mask.uuids) <= set(IDS) and len(set(mask.uuids)) == len(mask.uuids)
