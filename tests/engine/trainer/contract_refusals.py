"""What every trainer refuses, and that a refusal changes nothing: the other half of the contract."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.errors import AdapterDamaged, AdapterError, AdapterMissing
from marlaas.engine.trainer.protocol import Trainer, TrainGroup, TrainSequence

from .contract import CONFIG, NewTrainer, train
from .samples import group, sequence


class RefusalContract:
    @pytest.fixture
    def new_trainer(self, base: str) -> NewTrainer:
        """Makes a trainer over the base in the folder ``base``; each call a new one."""
        raise NotImplementedError

    @pytest.fixture
    def trainer(self, new_trainer: NewTrainer) -> Trainer:
        return new_trainer()

    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            (sequence([1, 2, 99], 1, 0.5), "from 2 to 99, the vocabulary from 0 to 31|from 1 to 99"),
            (sequence([1, 2, -1], 1, 0.5), "from -1"),
            (sequence([1, 2], 0, 0.5), "nothing precedes it"),
            (sequence([1, 2], 1, float("nan")), "advantage is nan"),
            (sequence([1, 2], 1, 0.5, logprob=float("-inf")), "not finite"),
            (sequence([1, 2], 1, 0.5, logprob=0.1), "positive"),
            (sequence([], 0, 0.5), "empty"),
            (replace(sequence([1, 2], 1, 0.5), mask=np.array([0, 2], dtype=np.uint8)), "other than 0 and 1"),
            (replace(sequence([1, 2], 1, 0.5), mask=np.array([1], dtype=np.uint8)), "shapes"),
        ],
    )
    async def test_a_bad_sequence_is_named_and_changes_nothing(
        self, trainer: Trainer, tmp_path: Path, fault: TrainSequence, message: str
    ) -> None:
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
        expected = await train(trainer, "a", (group(1),), tmp_path / "1")
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=True)
        faulty = TrainGroup(7, (*group(2).sequences, fault))
        with pytest.raises(ValueError, match=f"Sequence 4 of group 7 .*({message})"):
            await trainer.accumulate("a", (group(2), faulty))
        assert (await train(trainer, "a", (group(1),), tmp_path / "1")).checksum == expected.checksum

    async def test_a_state_that_does_not_fit_is_refused(self, trainer: Trainer, tmp_path: Path) -> None:
        path = tmp_path / "0"
        await trainer.open("a", CONFIG, str(path), resume=False)
        with pytest.raises(AdapterError, match=r"rank 4 and alpha 8, .* rank 5 and alpha 8"):
            await trainer.open("a", replace(CONFIG, rank=5), str(path), resume=True)
        with pytest.raises(AdapterMissing, match="missing: the state file is gone"):
            await trainer.open("a", CONFIG, str(tmp_path / "missing"), resume=True)
        with pytest.raises(AdapterError, match="Policy a is not open"):  # nor is what was there before
            await trainer.accumulate("a", (group(1),))
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(AdapterDamaged, match="is damaged"):
            await trainer.open("a", CONFIG, str(path), resume=True)

    async def test_a_policy_that_is_not_open_is_refused(self, trainer: Trainer, tmp_path: Path) -> None:
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
        await trainer.close("a")
        await trainer.close("never was")
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: trainer.accumulate("a", (group(1),)),
            lambda: trainer.step("a", str(tmp_path / "1")),
            lambda: trainer.score("a", np.array([1, 2], dtype=np.int32), 1, 1.0),
        ]
        for call in calls:
            with pytest.raises(AdapterError, match="Policy a is not open"):
                await call()

    @pytest.mark.parametrize(("start", "temperature"), [(0, 1.0), (4, 1.0), (1, 0.0), (1, -1.0)])
    async def test_what_cannot_be_scored_is_refused(
        self, trainer: Trainer, tmp_path: Path, start: int, temperature: float
    ) -> None:
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
        with pytest.raises(ValueError, match=r"start at 1 to 3|must be above 0"):
            await trainer.score("a", np.array([1, 2, 3], dtype=np.int32), start, temperature)

    async def test_scoring_nothing_gives_nothing(self, trainer: Trainer, tmp_path: Path) -> None:
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
        assert (await trainer.score("a", np.array([1, 2], dtype=np.int32), 2, 1.0)).shape == (0,)

    async def test_a_step_that_cannot_be_written_has_not_happened(self, trainer: Trainer, tmp_path: Path) -> None:
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
        expected = await train(trainer, "a", (group(1),), tmp_path / "1")
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=True)
        await trainer.accumulate("a", (group(1),))
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(AdapterError, match="could not be written"):
            await trainer.step("a", str(tmp_path / "file" / "1"))
        again = await trainer.step("a", str(tmp_path / "1"))
        assert (again.step, again.checksum) == (1, expected.checksum)
