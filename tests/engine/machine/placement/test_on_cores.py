"""Samplers and trainer on cores: each of its own where there are enough, and no core unused."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.devices.machine import SamplerKind
from marlaas.engine.machine.placement.choices import on_cores

ONE: tuple[SamplerKind, ...] = ("torch",)
BOTH: tuple[SamplerKind, ...] = ("llama.cpp", "torch")


@pytest.mark.parametrize(
    ("kinds", "count", "samplers", "trainer"),
    [
        (ONE, 0, [()], ()),
        (ONE, 1, [()], ()),
        (ONE, 2, [(0,)], (1,)),
        (ONE, 5, [(0, 1)], (2, 3, 4)),
        (BOTH, 1, [(), ()], ()),
        (BOTH, 2, [(0,), (1,)], ()),
        (BOTH, 3, [(0,), (1,)], (2,)),
        (BOTH, 8, [(0, 1), (2, 3)], (4, 5, 6, 7)),
        (("torch",) * 3, 2, [(0,), (1,), (0,)], ()),
    ],
)
def test_who_gets_what(
    kinds: tuple[SamplerKind, ...], count: int, samplers: list[tuple[int, ...]], trainer: tuple[int, ...]
) -> None:
    placement = on_cores(kinds, range(count))
    assert [assignment.place.cores for assignment in placement.samplers] == samplers
    assert placement.trainer.place.cores == trainer
    assert [assignment.kind for assignment in placement.samplers] == list(kinds)


@given(st.lists(st.sampled_from(BOTH), min_size=1, max_size=5), st.integers(0, 64))
def test_no_core_is_given_twice_where_there_are_enough(kinds: list[SamplerKind], count: int) -> None:
    placement = on_cores(kinds, range(count))
    places = [*(assignment.place.cores for assignment in placement.samplers), placement.trainer.place.cores]
    if count > len(kinds):
        assert sorted(core for cores in places for core in cores) == list(range(count)) and all(places)
    assert [assignment.name for assignment in placement.samplers][:2] == ["rollout", "rollout-2"][: len(kinds)]
