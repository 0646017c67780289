"""Each precision is a pair of rows, of the same tokens in the same turns."""

from pathlib import Path

import pytest

from benchmarks.large_base import half_billion
from benchmarks.large_base.half_billion import rates_by_precision, training_rows
from benchmarks.large_base.half_billion_training import train
from benchmarks.trainer.cases import MEMBERS, Case
from marlaas.engine.devices import Rates
from tools.random_base.make import make_base


def test_each_precision_is_trained_and_shown(tmp_path: Path) -> None:
    case = Case("a small group", "", 8, 4, groups=1)
    both = train(make_base(tmp_path, rows=1500), 2, ("f32", "bf16"), case)
    assert [trained.precision for trained in both] == ["f32", "bf16"]
    for trained in both:
        assert trained.tokens == MEMBERS * 4 and len(trained.seconds) == 2 and min(trained.seconds) > 0
        assert trained.operations > 0
    rows = [row.what for trained in both for row in training_rows(trained, 1e9)]
    assert rows == [
        "training in float32, a small group",
        "… share of the float32 rate",
        "training in bfloat16, a small group",
        "… share of the bfloat16 rate",
    ]


@pytest.mark.parametrize(("halves", "kept"), [(700e9, ["f32", "bf16"]), (90e9, ["f32"]), (0.0, ["f32"])])
def test_bfloat16_is_measured_where_it_gains(halves: float, kept: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_billion, "measure_device", lambda kind: Rates(100e9, 10e9, halves))
    assert list(rates_by_precision()) == kept
