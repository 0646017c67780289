"""The arms of the section on tenants do what its rows say; a policy that moves is compared with one that stays.

Those with real trainers are slow: ``tests/engine/fleet/test_two_trainers.py`` shows daily that a move changes no bit.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.machinery.cores import all_cores
from benchmarks.report.figures import Series
from benchmarks.trainer.cases import Case
from benchmarks.trainer.tenants import _rows
from benchmarks.trainer.tenants_stage import TENANTS, moving_rows, through_line, trainer
from marlaas.engine.adapters.statefile import read_state

CASE = Case("small", "tiny", 3, 2, groups=1)
ARMS = (
    *("one tenant", "in turn", "fused", "line", "line, fusing"),
    *("few slots", "two trainers", "PEFT"),
)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.torch
async def test_every_tenant_makes_a_step_at_either_trainer(tmp_path: Path) -> None:
    core = all_cores()[:1]
    groups = tuple(CASE.draw(50))
    async with trainer("one", tmp_path, core, slots=3) as one, trainer("two", tmp_path, core) as two:
        arm = await through_line(groups, tmp_path, [one, two])
        assert [await arm() for _ in range(2)] == [TENANTS] * 2
    steps = [read_state(tmp_path / f"{tenant}.safetensors").header.step for tenant in range(TENANTS)]
    assert steps == [2] * TENANTS


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.torch
async def test_a_move_is_timed_and_changes_no_bit(tmp_path: Path) -> None:
    (row,) = await moving_rows(tmp_path, all_cores()[:1], 2)
    assert len(row.ours.values) == 2 and row.ours.low > 0


def test_every_arm_has_a_row() -> None:
    rows = _rows(CASE, {arm: Series((1.0, 2.0)) for arm in ARMS})
    assert len({(row.what, row.other, row.unit) for row in rows}) == len(rows) == 8
    assert {row.ratio.middle for row in rows if row.ratio} == {1.0}
