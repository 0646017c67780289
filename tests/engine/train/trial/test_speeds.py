"""A base's speed is kept by all that it depends on; a file that makes no sense has none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from marlaas.engine.models.memory import BaseSpeed
from marlaas.engine.train.trial import TASK, Trial, read_speed, speed_key, speed_of, write_speed

KEY = speed_key("abc", "torch", 2)


def test_the_speed_of_a_step() -> None:
    trial = Trial(prompt_tokens=10, sampling=2.0, training=4.0, gap_mean=0.0, gap_max=0.0)
    assert speed_of(trial) == BaseSpeed(1024.0, (2048 + 10 * TASK.group_episodes) / 4.0)


def test_each_is_kept_beside_the_others(tmp_path: Path) -> None:
    path = tmp_path / "speeds.json"
    assert read_speed(path, KEY) is None
    write_speed(path, KEY, BaseSpeed(1000.0, 500.0))
    write_speed(path, speed_key("abc", "llama.cpp", 2), BaseSpeed(10.0, 5.0))
    assert read_speed(path, KEY) == BaseSpeed(1000.0, 500.0)
    assert read_speed(path, speed_key("abc", "torch", 4)) is None
    write_speed(path, KEY, BaseSpeed(9.0, 9.0), until=time.time() - 1)
    assert read_speed(path, KEY) is None, "the machine was busy then"
    write_speed(path, KEY, BaseSpeed(9.0, 9.0), until=time.time() + 1000)
    assert read_speed(path, KEY) == BaseSpeed(9.0, 9.0)
    write_speed(tmp_path / "nowhere" / "speeds.json", KEY, BaseSpeed(1.0, 1.0))


@pytest.mark.parametrize(
    "text",
    ["", "[]", f'{{"{KEY}": 3}}', f'{{"{KEY}": {{"sampled": 1}}}}', f'{{"{KEY}": {{"sampled": 0, "trained": 1}}}}'],
)
def test_what_makes_no_sense_is_measured_again(tmp_path: Path, text: str) -> None:
    path = tmp_path / "speeds.json"
    path.write_text(text)
    assert read_speed(path, KEY) is None
    write_speed(path, KEY, BaseSpeed(2.0, 3.0))
    assert read_speed(path, KEY) == BaseSpeed(2.0, 3.0)
