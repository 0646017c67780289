"""The processor's speed is measured once in a home, where the base's precision depends on it, and only there."""

from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.base.find import SHIPPED
from marlaas.engine.base.model import load_base
from marlaas.engine.daemon import planning
from marlaas.engine.devices import calibration
from marlaas.engine.devices.machine import Cpu, Gpu, Rates
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import Settings

RATES = Rates(150e9, 12e9, 1.1e12)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices that were measured; the machine has no cards."""
    devices: list[str] = []

    def measure(device: Cpu | Gpu) -> Rates:
        devices.append(device.name)
        return RATES

    monkeypatch.setattr(calibration, "measure", measure)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return devices


@pytest.mark.parametrize(
    ("parameters", "precision", "weights", "count"),
    [
        (500_000_000, "auto", "auto", 1),
        (500_000_000, "f32", "auto", 1),
        (500_000_000, "auto", "q8_0", 1),
        (500_000_000, "f32", "q8_0", 0),
        (500_000_000, "f32", "bf16", 0),
        (800_000, "auto", "auto", 0),
    ],
)
def test_a_large_base_has_the_processor_measured_once(
    measured: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    parameters: int,
    precision: str,
    weights: str,
    count: int,
) -> None:
    monkeypatch.setattr(planning, "parameters", lambda base: parameters)
    home, base, settings = Home(tmp_path).create(), load_base(str(SHIPPED["tiny"])), Settings()
    settings = replace(settings, training=replace(settings.training, precision=precision))
    settings = replace(settings, rollout=replace(settings.rollout, weights=weights))
    for _ in range(2):
        planning.plan(home, base, settings)
    assert len(measured) == count and home.rates.exists() == bool(count)


def test_nodes_that_settings_name_are_planned_for_later(measured: list[str], tmp_path: Path) -> None:
    """The first plan is made before the cluster was asked: a device of another node is no mistake then."""
    home, base, own = Home(tmp_path).create(), load_base("tiny"), Settings()
    named = replace(own, rollout=replace(own.rollout, devices=("ada",)))
    with pytest.raises(ConfigError, match="no device that may be used here"):
        planning.plan(home, base, planning.without_nodes(home, named))
    joined = replace(named, cluster=replace(named.cluster, address="10.0.0.1:6379"))
    assert planning.plan(home, base, planning.without_nodes(home, joined)).placement.samplers
