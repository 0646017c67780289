"""What a trainer keeps when a policy's state moves: to the last bit what it had where it was, or a clear refusal."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.errors import AdapterError
from marlaas.engine.machine.workers.wire import Answer, pack
from marlaas.engine.trainer.memory import TrainingState
from marlaas.engine.trainer.protocol import PolicyConfig, Trainer

from ...seldom import seldom
from .contract import CONFIG, NewTrainer
from .samples import group

EPOCHS = replace(CONFIG, loss="ppo", epochs=2, schedule="cosine", warmup=2, steps=6, weight_decay=0.1)


def sent(moved: TrainingState) -> TrainingState:
    """As it arrives in another process."""
    (answer,) = pickle.loads(pack(Answer(1, moved))[8:])
    assert isinstance(answer.value, TrainingState)
    return answer.value


async def move(policy: str, source: Trainer, destination: Trainer) -> None:
    await destination.set_state(policy, sent(await source.get_state(policy)))
    await source.close(policy)


class MovingContract:
    @pytest.fixture
    def new_trainer(self, base: str) -> NewTrainer:
        """Makes a trainer over the base in the folder ``base``."""
        raise NotImplementedError

    @pytest.mark.parametrize(("config", "slots"), [seldom(CONFIG, 0), (CONFIG, 1), (EPOCHS, 0), seldom(EPOCHS, 1)])
    async def test_a_policy_that_moves_ends_as_one_that_stays(
        self, new_trainer: NewTrainer, tmp_path: Path, config: PolicyConfig, slots: int
    ) -> None:
        """It moves between two groups of a step, and between two steps; with one slot it is paged out by then."""
        home, here, there = new_trainer(), new_trainer(slots=slots), new_trainer(slots=slots)
        for trainer in (here, there):
            await trainer.open("other", CONFIG, str(tmp_path / "other"), resume=False)
        for trainer in (home, here):
            await trainer.open("a", config, str(tmp_path / "0"), resume=False)
        for step in range(3):
            for number in range(3):
                stays = await home.accumulate("a", (group(10 * step + number),))
                moves = await here.accumulate("a", (group(10 * step + number),))
                assert replace(stays, seconds=0.0) == replace(moves, seconds=0.0)
                await here.accumulate("other", (group(99),))
                await move("a", here, there)
                here, there = there, here
            await home.step("a", str(tmp_path / "stays"))
            await here.step("a", str(tmp_path / "moves"))
            assert (tmp_path / "stays").read_bytes() == (tmp_path / "moves").read_bytes()
            await move("a", here, there)
            here, there = there, here
        with pytest.raises(AdapterError, match="Policy a is not open"):
            await there.accumulate("a", (group(1),))

    async def test_a_state_is_got_while_others_compute_and_changes_nothing(
        self, new_trainer: NewTrainer, tmp_path: Path
    ) -> None:
        trainer = new_trainer()
        await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
        await trainer.accumulate("a", (group(1),))
        first, second = await trainer.get_state("a"), await trainer.get_state("a")
        assert first.gradient is not None and second.gradient is not None and first.tokens == second.tokens > 0
        assert first.gradient.any() and np.array_equal(first.gradient, second.gradient)
        await trainer.step("a", str(tmp_path / "1"))
        later = await trainer.get_state("a")
        assert later.gradient is None and later.version == 1
        with pytest.raises(AdapterError, match="Policy b is not open"):
            await trainer.get_state("b")

    async def test_a_foreign_state_is_refused(self, new_trainer: NewTrainer, tmp_path: Path) -> None:
        trainer = new_trainer()
        for policy in "ab":
            await trainer.open(policy, CONFIG, str(tmp_path / policy), resume=False)
        state = await trainer.get_state("a")
        foreign = replace(state, layout=replace(state.layout, size=state.layout.size + 16))
        with pytest.raises(AdapterError, match="The state of policy b belongs to another base"):
            await trainer.set_state("b", foreign)
        with pytest.raises(AdapterError, match="Policy b is not open"):
            await trainer.accumulate("b", (group(1),))
        await trainer.accumulate("a", (group(1),))
