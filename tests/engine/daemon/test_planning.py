"""The processor's speed is measured once in a home, where the base's precision depends on it, and only there."""

import asyncio
import fcntl
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from marlaas.engine.daemon import planning
from marlaas.engine.devices import survey as calibration
from marlaas.engine.devices.machine import Cpu, Gpu, Rates
from marlaas.engine.devices.survey import OtherPrograms
from marlaas.engine.errors import ConfigError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import RolloutSettings, Settings
from marlaas.engine.machine.cluster.joining import LocalNode
from marlaas.engine.machine.placement.choices import Copy, CopySpeed
from marlaas.engine.machine.plan import precision_words, wanted_of
from marlaas.engine.models.find import SHIPPED, BaseModel, load_base
from marlaas.engine.models.memory import least_plan
from marlaas.engine.train.trial import read_copies, write_copies

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


@pytest.fixture
def large(measured: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Home, BaseModel]:
    """The shipped base, taken for a large one on a processor without fast bfloat16, and a home."""
    monkeypatch.setattr("marlaas.engine.machine.placement.choices.SMALL", 0)
    monkeypatch.setattr("marlaas.engine.machine.placement.choices.MODEST", 0)
    monkeypatch.setattr("marlaas.engine.models.memory.SMALL", 0)
    monkeypatch.setattr(calibration, "measure", lambda device: replace(RATES, bfloat16=1e9))
    return Home(tmp_path).create(), load_base(str(SHIPPED["tiny"]))


async def measure(home: Home, base: BaseModel, words: list[str]) -> bool:
    """As an engine does at its start."""
    settings = Settings()
    planner = planning.Planner(home, base, settings, None, lambda kind, text, level: words.append(text))
    plan = await asyncio.to_thread(planning.plan, home, base, settings)
    return await planner.measure(plan, words.append)


@pytest.mark.slow
async def test_copies_are_measured_once_with_real_workers(
    large: tuple[Home, BaseModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, base = large
    words: list[str] = []
    monkeypatch.setattr(OtherPrograms, "used", lambda self: 0.0)
    monkeypatch.setattr(planning, "SECONDS", 600.0)
    assert await measure(home, base, words), words
    assert words == ["The engine measures which copy of the base is best for sampling: llama.cpp f16, llama.cpp q8_0."]
    found = {str(one.copy): one for one in read_copies(home.speeds, base, 0)}
    assert list(found) == ["llama.cpp f16", "llama.cpp q8_0"]
    assert found["llama.cpp f16"].gap < 0.01 < found["llama.cpp q8_0"].gap and found["llama.cpp f16"].seconds > 0
    chosen = planning.plan(home, base, Settings())
    weights = chosen.memory[0].weights
    assert [path.name for path in home.base.glob("*.gguf")] == [f"{base.fingerprint}-{weights}.gguf"]
    gap = found[f"llama.cpp {weights}"].gap
    assert precision_words(base, Settings(), chosen) == f"samples: llama.cpp {weights}, gap {gap:.2g}; trains: float32"
    assert "was measured here" in chosen.words
    assert not await measure(home, base, words) and len(words) == 1, "known"


async def test_a_busy_machine_keeps_the_safe_copy_and_measures_later(
    large: tuple[Home, BaseModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, base = large
    words: list[str] = []
    monkeypatch.setattr(OtherPrograms, "used", lambda self: 1000.0)
    assert not await measure(home, base, words)
    assert "This machine is busy: other programs use 1000.0 of" in words[0] and "llama.cpp f16" in words[0]
    plan = planning.plan(home, base, Settings())
    assert precision_words(base, Settings(), plan) == "samples: llama.cpp f16; trains: float32"
    assert not home.speeds.exists() and not list(home.base.glob("*.gguf"))


def test_what_is_measured_decides_unless_it_has_no_room(
    large: tuple[Home, BaseModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, base = large
    speeds = [CopySpeed(Copy("llama.cpp", "f16"), 9.0, 0.001), CopySpeed(Copy("llama.cpp", "q8_0"), 5.0, 0.05)]
    write_copies(home.speeds, base, 0, speeds)
    write_copies(home.speeds, base, 0, speeds[:1])
    plan = planning.plan(home, base, Settings())
    assert plan.memory[0].weights == "q8_0" and "llama.cpp q8_0 5 s, gap 0.05" in plan.words
    named = Settings(rollout=RolloutSettings(sampler="llama.cpp", weights="q8_0", sequences=16))
    free = least_plan(wanted_of(base, named, trains=True)).total
    monkeypatch.setattr(planning, "available_memory", lambda limit: free)
    short = planning.plan(home, base, Settings())
    assert "a smaller one is used" in short.words and short.memory[0].sequences < 32


HEAD = "10.0.0.5:6379"


@pytest.mark.parametrize(
    ("is_head", "words"),
    [
        (False, r"a node of the cluster at 10\.0\.0\.5:6379, whose engine runs on its head"),
        (True, "no token of the cluster"),
    ],
)
def test_the_engine_of_a_node_or_without_a_token_is_refused(tmp_path: Path, is_head: bool, words: str) -> None:
    home, base = Home(tmp_path).create(), load_base(str(SHIPPED["tiny"]))
    assert planning.cluster_of(home, Settings(), base) is None
    home.node_lock.touch()  # of a Ray that has ended
    assert planning.cluster_of(home, Settings(), base) is None
    with open(home.node_lock, "w+") as lock:  # as the home's Ray holds it
        fcntl.flock(lock, fcntl.LOCK_EX)
        json.dump(asdict(LocalNode(1, HEAD, is_head, "ada", "10.0.0.7")), lock)
        lock.flush()
        with pytest.raises(ConfigError, match=words):
            planning.cluster_of(home, Settings(), base)
