"""Worlds with reset and a five-part step, written by hand: Gymnasium itself is needed only for its own ids."""

from __future__ import annotations

import random
from typing import Any

import pytest

from marlaas.plugins import Invalid
from marlaas.plugins.adapters import gymnasium
from marlaas.plugins.rewards import Member, Transcript

from .playing import Model, episode, played


class Discrete:
    """As ``gymnasium.spaces.Discrete``."""

    def __init__(self, n: int, start: int = 0) -> None:
        self.n, self.start = n, start

    def __contains__(self, action: object) -> bool:
        return isinstance(action, int) and self.start <= action < self.start + self.n


class Sounds:
    """A space that Gymnasium does not have: no reply means one of its actions."""

    def __contains__(self, action: object) -> bool:
        return action == "loud"


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
async def test_a_reply_that_is_no_action_pays_less(reply: str) -> None:
    with pytest.raises(Invalid, match="whole number from 0 to 1") as caught:
        await played(gymnasium(Corridor), ["1", reply])
    assert caught.value.reward == -1.1
    with pytest.raises(Invalid) as caught:
        await played(gymnasium(Corridor, unreadable=-5), ["1", reply])
    assert caught.value.reward == -5


@pytest.mark.parametrize("act", [int, {"left": 0, "far": 45}.__getitem__, lambda text: None, lambda text: [1]])
async def test_an_action_outside_of_the_space_never_gets_to_the_world(act: Any) -> None:
    """What the author's ``act`` returns is looked at; CliffWalking's step would raise a ``KeyError``."""
    met: list[object] = []

    class Watched(Corridor):
        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
            met.append(action)
            return super().step(action)

    for reply in ("45", "far"):
        with pytest.raises(Invalid):
            await played(gymnasium(Watched, act=act), [reply])
    assert not met


async def test_a_group_ranks_the_unreadable_last() -> None:
    walk = gymnasium(Corridor, max_turns=30)
    members = []
    for script in (["0"] * 30, ["1", "1", "1"], ["what?"], ["0", "what?"]):
        ep = episode(Model(script))
        try:
            result = await walk(ep)
        except Invalid as error:
            result = error.reward
        members.append(Member(None, Transcript({}), {"agent": result}, logged=ep.logged))
    assert walk.ranker is not None
    assert walk.ranker(members) == pytest.approx([-3.0, 0.8, -3.0, -3.0])


async def test_an_action_space_that_no_reply_means() -> None:
    class Arm(Corridor):
        action_space = Sounds()

    with pytest.raises(TypeError, match="are a Sounds: say what a reply means with act="):
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
