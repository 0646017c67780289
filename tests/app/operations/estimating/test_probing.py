"""What a rough estimate rests on is measured for real: episodes of an environment, and the shipped base's speed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from marlaas.app.operations import estimating
from marlaas.app.operations.estimating import EPISODES, base_speed, episode_shape, key_of
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import RolloutSettings, Settings
from marlaas.engine.machine.plan import with_sampler
from marlaas.engine.models.find import load_base
from marlaas.engine.models.memory import BaseSpeed
from marlaas.engine.train.trial import read_speed, write_speed

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150), pytest.mark.torch]

BASE = load_base("tiny")


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(estimating, "_shapes", {})
    monkeypatch.setattr(estimating, "_speeds", {})
    monkeypatch.setattr(estimating, "ROOM", 0)
    yield


def test_the_shape_of_a_shipped_environment(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guessing takes several turns, of a few tokens each; it is played once a minute."""
    shape = episode_shape(home, BASE, "guess", {}, None)
    assert shape is not None and shape.episodes == EPISODES
    assert shape.asks > 1 and shape.prompt > 5 * shape.asks and 0 < shape.seconds < 60
    monkeypatch.setattr(estimating, "_played", lambda *_: pytest.fail("it was played a moment ago"))
    assert episode_shape(home, BASE, "guess", {}, None) == shape
    assert not home.root.exists()


def test_what_cannot_be_played_has_none(home: Home) -> None:
    assert episode_shape(home, BASE, "no such environment", {}, None) is None
    assert episode_shape(home, BASE, "guess", {"no such parameter": 1}, None) is None


def test_a_small_base_is_measured_once_and_kept(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.create()
    said: list[str] = []
    speed = base_speed(home, BASE, Settings(), said.append)
    assert speed is not None and speed.sampled > 1 and speed.trained > 1 and len(said) == 1
    assert read_speed(home.speeds, key_of(BASE, with_sampler(Settings(), BASE))) == speed
    monkeypatch.setattr(estimating, "_speeds", {})
    assert base_speed(home, BASE, Settings(), said.append) == speed and len(said) == 1


def test_another_one_is_known_once_base_check_has_measured_it(home: Home) -> None:
    home.create()
    settings = Settings(rollout=RolloutSettings(sampler="llama.cpp"))
    assert base_speed(home, BASE, settings) is None, "a conversion may take minutes"
    write_speed(home.speeds, key_of(BASE, settings), BaseSpeed(7.0, 3.0))
    assert base_speed(home, BASE, settings) == BaseSpeed(7.0, 3.0)
