"""What the benchmark of routing compares: arms that differ in nothing but where tasks go."""

from __future__ import annotations

from benchmarks.sampler.other_ways import sampler_of
from benchmarks.sampler.routing import READERS, READS, WRITERS, WRITES, _even, _work, _wrong
from marlaas.engine.fleet.routing.router import under_way


def test_groups_spread_evenly_are_half_at_each_sampler() -> None:
    went = [sampler_of(_even(0), group) for group in range(16)]
    assert 7 <= went.count("rollout-1") <= 9


def test_the_wrong_way_round_is_the_right_one_turned() -> None:
    assert [_wrong(task)[0].sampler for task in range(READERS + WRITERS)] == ["rollout-1"] * 2 + ["rollout-2"] * 2


def test_readers_mostly_read_and_writers_mostly_write() -> None:
    assert READS[0] > 10 * READS[1] and WRITES[1] > 10 * WRITES[0]
    assert under_way(_work("reads", *READS, groups=4, steps=1).spec) == 16
