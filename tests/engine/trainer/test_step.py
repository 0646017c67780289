"""Learning rates, step by step."""

import pytest

from marlaas.engine.trainer.group_pass import learning_rate
from marlaas.engine.trainer.protocol import PolicyConfig


def rates(config: PolicyConfig, count: int) -> list[float]:
    return [learning_rate(config, step) for step in range(count)]


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [8.0] * 6),
        ("constant", 2, [4.0, 8.0, 8.0, 8.0, 8.0, 8.0]),
        ("linear", 0, [8.0, 6.0, 4.0, 2.0, 0.0, 0.0]),  # of 4 steps: quarters, and 0 behind them
        ("linear", 2, [4.0, 8.0, 8.0, 4.0, 0.0, 0.0]),
        # 4·(1 + cos 0, cos 45°, cos 90°, cos 135°)
        ("cosine", 0, [8.0, 6.8284271247, 4.0, 1.1715728753, 0.0, 0.0]),
        ("cosine", 3, [8 / 3, 16 / 3, 8.0, 8.0, 0.0, 0.0]),
    ],
)
def test_schedules_by_hand(schedule: str, warmup: int, expected: list[float]) -> None:
    config = PolicyConfig(learning_rate=8.0, schedule=schedule, warmup=warmup, steps=4)
    assert rates(config, 6) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_every_step_of_a_run_moves(schedule: str) -> None:
    config = PolicyConfig(learning_rate=1e-3, schedule=schedule, warmup=7, steps=60)
    moving = rates(config, 60)
    assert all(0 < rate <= 1e-3 for rate in moving) and max(moving) == 1e-3
    assert moving[:7] == sorted(moving[:7]) and moving[7:] == sorted(moving[7:], reverse=True)
