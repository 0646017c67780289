"""Worlds with reset and a five-part step, written by hand: Gymnasium itself is needed only for its own ids."""

from __future__ import annotations

import random
from typing import Any

import pytest

from marlaas.plugins import Invalid
from marlaas.plugins.adapters import gymnasium

from .playing import played


class Discrete:
    """As ``gymnasium.spaces.Discrete``."""

    def __init__(self, n: int, start: int = 0) -> None:
        self.n, self.start = n, start

    def __contains__(self, action: object) -> bool:
        return isinstance(action, int) and self.start <= action < self.start + self.n


class Box:
    """As ``gymnasium.spaces.Box``: no reply means one of its actions."""


class Corridor:
    """Four squares; 1 goes right, 0 left; the right end pays 1, every step costs a tenth."""

    action_space: Any = Discrete(2)

    def __init__(self, length: int = 4) -> None:
        self.length, self.closed = length, False

    def reset(self, *, seed: int | None = None) -> tuple[int, dict[str, Any]]:
        self.square = 0
        return self.square, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.square += 1 if action else -1
        over = self.square == self.length - 1
        return self.square, 1.0 if over else -0.1, over, False, {}

    def close(self) -> None:
        self.closed = True


class Words:
    """A world of text without spaces, in GEM's manner: it seeds the process for everybody."""

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        random.seed(seed)
        self.word = "".join(random.choices("abc", k=8))
        return f"repeat {self.word}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(action == self.word), True, False, {}


async def test_the_reward_is_the_sum_of_the_steps() -> None:
    result, ep, model = await played(gymnasium(Corridor), ["1", " 1 ", "1"])
    assert result == pytest.approx(0.8)
    assert model.heard == ["0", "1", "2"] and ep.logged == {"turns": 3}


async def test_options_reach_the_world_and_hooks_say_how_it_looks() -> None:
    corridor = gymnasium(
        Corridor, length=2, describe=lambda square: f"square {square}", act=lambda text: int(text == "right")
    )
    assert (await played(corridor, ["right"]))[0] == 1.0
    with pytest.raises(TypeError, match="unexpected keyword argument 'width'"):
        await played(gymnasium(Corridor, width=2), ["right"])


@pytest.mark.parametrize("reply", ["2", "", "-1", "right", "1.0", "١", "9" * 5000])
async def test_a_non_action_ends_the_episode_with_what_was_earned(reply: str) -> None:
    with pytest.raises(Invalid, match="whole number from 0 to 1") as caught:
        await played(gymnasium(Corridor), ["1", reply])
    assert caught.value.reward == -0.1


async def test_an_action_space_that_no_reply_means() -> None:
    class Arm(Corridor):
        action_space = Box()

    with pytest.raises(TypeError, match="are a Box: say what a reply means with act="):
        await played(gymnasium(Arm), ["1"])


async def test_a_world_of_text_draws_its_instance_from_the_group() -> None:
    world = gymnasium(Words, name="words v1")
    state = random.getstate()
    result, _, model = await played(world, lambda ask: ask.messages[0].content.removeprefix("repeat "))
    assert result == 1.0 and world.name == "words_v1"
    assert (await played(world, [""], member=3))[2].heard == model.heard
    assert (await played(world, [""], index=1))[2].heard != model.heard
    assert random.getstate() == state


async def test_it_ends_after_so_many_turns_and_closes_the_world() -> None:
    made: list[Corridor] = []

    def make() -> Corridor:
        made.append(Corridor())
        return made[0]

    result, _, model = await played(gymnasium(make, name="corridor", max_turns=5), lambda ask: "0")
    assert len(model.asks) == 5 and result == pytest.approx(-0.5) and made[0].closed


def test_a_missing_library_is_one_sentence() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"this plugin needs gymnasium==[0-9.]+: add it"):
        gymnasium("FrozenLake-v1")
