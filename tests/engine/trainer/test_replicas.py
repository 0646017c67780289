"""Two copies of the base give the update of one, and one that fails leaves nothing behind."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marlaas.engine.adapters.statefile import read_state
from marlaas.engine.errors import AdapterError
from marlaas.engine.trainer import torch_trainer
from marlaas.engine.trainer.decoder.decoder import Decoder
from marlaas.engine.trainer.protocol import Job, PolicyConfig, TrainGroup
from marlaas.engine.trainer.torch_trainer import TorchTrainer, shares

from ...seldom import often
from .contract import CONFIG, POLICIES, LossContract, NewTrainer, TrainerContract, train
from .random_models import random_groups
from .samples import group

GROUPS = tuple(group(number) for number in range(1, 5))


@pytest.fixture(autouse=True)
def everything_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_trainer, "WORTH", 0)


@pytest.fixture
def new_pair(base: str, tmp_path: Path) -> Iterator[NewTrainer]:
    made: list[TorchTrainer] = []

    def new(slots: int = 0, devices: tuple[str, ...] = ("cpu", "cpu")) -> TorchTrainer:
        scratch = str(tmp_path / "scratch")
        made.append(TorchTrainer(base, "tiny", sync=False, devices=devices, slots=slots, scratch=scratch))
        return made[-1]

    yield new
    for trainer in made:
        trainer.shutdown()


@pytest.mark.slow
class TestContract(TrainerContract):
    """Every day the updates below are compared with those of one device, whose steps are those of plain PEFT."""

    @pytest.fixture
    def new_trainer(self, new_pair: NewTrainer) -> NewTrainer:
        return new_pair


@pytest.mark.slow
class TestLosses(LossContract):
    """Every day each mean is met in the updates below, and each loss in ``test_torch_trainer``."""

    @pytest.fixture
    def new_trainer(self, new_pair: NewTrainer) -> NewTrainer:
        return new_pair


@pytest.mark.usefixtures("main_library")
@pytest.mark.parametrize("name", often(("epochs", "other loss", "other rank"), sorted(POLICIES)))
async def test_the_update_and_its_statistics_are_those_of_one_device(
    new_pair: NewTrainer, tmp_path: Path, name: str
) -> None:
    config, moments, found = POLICIES[name], [], []
    for number in (1, 2, 3):
        trainer = new_pair(devices=("cpu",) * number)
        await trainer.open("a", config, str(tmp_path / "0"), resume=False)
        stats = await trainer.accumulate("a", GROUPS)
        await trainer.step("a", str(tmp_path / f"{number}"))
        moments.append(read_state(tmp_path / f"{number}").moment1)
        found.append(stats)
    for other, stats in zip(moments[1:], found[1:], strict=True):
        scale = max(float(np.abs(moment).max()) for moment in moments[0].values())
        assert all(np.allclose(other[key], moments[0][key], atol=1e-4 * scale) for key in other)
        assert (stats.tokens, stats.measured, stats.clipped) == (found[0].tokens, found[0].measured, found[0].clipped)
        for what in ("loss", "entropy", "gap_sum", "gap_max", "kl"):
            assert getattr(stats, what) == pytest.approx(getattr(found[0], what), rel=1e-4, abs=1e-5), what
        assert stats.weights.keys() == found[0].weights.keys() == {one.number for one in GROUPS}
        for number, weights in found[0].weights.items():
            np.testing.assert_allclose(stats.weights[number], weights, atol=2e-3)


@pytest.mark.usefixtures("main_library")
async def test_the_same_call_gives_the_same_bits(new_pair: NewTrainer, tmp_path: Path) -> None:
    checksums = set()
    for _ in range(2):
        trainer = new_pair()
        for policy, config in (("a", CONFIG), ("b", PolicyConfig(rank=2, kl=0.2))):
            await trainer.open(policy, config, str(tmp_path / "0"), resume=False)
        await trainer.accumulate_together((Job("a", GROUPS), Job("b", GROUPS[:2])))
        checksums.add(tuple([(await trainer.step(policy, str(tmp_path / "1"))).checksum for policy in "ab"]))
    assert len(checksums) == 1


async def test_a_failed_replica_is_raised_when_all_have_ended(
    new_pair: NewTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = new_pair()
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
    expected = (await train(trainer, "a", GROUPS, tmp_path / "1")).checksum
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=True)
    differentiate = Decoder.differentiate

    def fail_elsewhere(model: Decoder, *given: Any) -> None:
        if threading.current_thread().name.startswith("trainer on"):
            raise OSError("broken")
        differentiate(model, *given)

    with monkeypatch.context() as patch, pytest.raises(AdapterError, match="broken"):
        patch.setattr(Decoder, "differentiate", fail_elsewhere)
        await trainer.accumulate("a", GROUPS)
    assert (await train(trainer, "a", GROUPS, tmp_path / "1")).checksum == expected, "its gradient is as it was"


calls = st.lists(st.tuples(st.integers(0, 999), st.integers(0, 4), st.integers(1, 8)), min_size=1, max_size=4)


def tokens(groups: list[TrainGroup]) -> int:
    return sum(len(sequence.tokens) for each in groups for sequence in each.sequences)


@given(calls, st.integers(1, 5))
def test_every_group_has_one_replica(calls: list[tuple[int, int, int]], replicas: int) -> None:
    work = [random_groups(seed, groups, members, 9) for seed, groups, members in calls]
    found = shares(work, replicas)
    assert len(found) == replicas and all(len(share) == len(work) for share in found)
    assert found == shares(work, replicas)
    for policy, groups in enumerate(work):
        for each in groups:
            assert [other for share in found for other in share[policy] if other.number == each.number] == [each]


@given(calls, st.integers(2, 4))
def test_no_replica_has_much_more_than_another(calls: list[tuple[int, int, int]], replicas: int) -> None:
    work = [random_groups(seed, groups, members, 9) for seed, groups, members in calls]
    loads = [sum(tokens(list(groups)) for groups in share) for share in shares(work, replicas)]
    assert max(loads) - min(loads) <= max((tokens([each]) for groups in work for each in groups), default=0)


def test_a_small_call_stays_on_the_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_trainer, "WORTH", 1_000)
    work = [random_groups(0, 3, 4, 9)]
    first, second = shares(work, 2)
    assert list(first[0]) == work[0] and second == [()]
