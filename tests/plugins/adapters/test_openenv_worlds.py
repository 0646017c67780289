"""OpenEnv's shapes, written by hand: models with fields, an environment whose observations carry reward and end."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from marlaas.plugins import Invalid
from marlaas.plugins.adapters import openenv
from marlaas.plugins.adapters.openenv_worlds import action_class, action_of, shown

from .playing import played


@dataclass
class Field:
    """As pydantic describes a field."""

    annotation: Any
    required: bool = True

    def is_required(self) -> bool:
        return self.required


class Model:
    """As much of a pydantic model as is looked at."""

    model_fields: ClassVar[dict[str, Field]]

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            field = self.model_fields[name]
            setattr(self, name, field.annotation(value) if field.annotation in (int, float) else value)

    @classmethod
    def model_validate_json(cls, text: str) -> Model:
        return cls(**json.loads(text))

    def model_dump(self) -> dict[str, Any]:
        return dict(vars(self))


class Guess(Model):
    number: int
    model_fields: ClassVar = {"number": Field(int), "metadata": Field(dict, required=False)}


class Move(Model):
    model_fields: ClassVar = {"x": Field(int), "y": Field(int)}


class Heard(Model):
    model_fields: ClassVar = dict.fromkeys(("text", "squares", "done", "reward", "metadata"), Field(object))


A = TypeVar("A")


class Environment(Generic[A]):
    """As ``openenv.core.env_server.Environment``: the asynchronous forms only call the others."""

    __module__ = "openenv.core.env_server"

    async def reset_async(self, **given: Any) -> Any:
        return self.reset(seed=None, episode_id=None, **given)  # type: ignore[attr-defined]


class Secret(Environment[Guess]):
    """Guess a number from 0 to 9."""

    closed = 0

    def reset(self, seed: int | None = None) -> Heard:
        self.secret = random.Random(seed).randrange(10)
        return Heard(text="guess", done=False, reward=None)

    def step(self, action: Guess) -> Heard:
        right = action.number == self.secret
        return Heard(text="yes" if right else "no", done=right, reward=1.0 if right else -0.25)

    def close(self) -> None:
        Secret.closed += 1


class Forgetful(Secret):
    """Takes a seed, and draws from a generator of its own."""

    def reset(self, seed: int | None = None, **_: Any) -> Heard:
        return super().reset()


async def test_ask_and_step_until_it_is_over() -> None:
    closed = Secret.closed
    secret = openenv(Secret)
    _, ep, _ = await played(secret, lambda ask: "3", index=1)
    numbers = iter(range(10))
    result, ep, model = await played(secret, lambda ask: f" {next(numbers)} ")
    assert model.heard[0] == "guess" and set(model.heard[1:]) <= {"no"}
    assert result == 1.0 - 0.25 * (len(model.asks) - 1) and ep.logged["steps"] == len(model.asks)
    assert Secret.closed == closed + 2


async def test_members_of_a_group_have_the_same_secret() -> None:
    async def tries(**about: Any) -> int:
        numbers = iter(range(10))
        return len((await played(openenv(Secret), lambda ask: str(next(numbers)), **about))[2].asks)

    assert await tries(member=0) == await tries(member=1)
    assert len({await tries(index=index) for index in range(20)}) > 1


@pytest.mark.parametrize("reply", ["", "seven", "7.5"])
async def test_a_reply_that_is_no_action(reply: str) -> None:
    """A wrong guess costs 0.25, so 0 would be a prize for nonsense."""
    with pytest.raises(Invalid) as caught:
        await played(openenv(Secret), lambda ask: reply)
    assert caught.value.reward == -1.0
    with pytest.raises(Invalid) as caught:
        await played(openenv(Secret, unreadable=-9), lambda ask: reply)
    assert caught.value.reward == -9
    assert openenv(Secret).ranker is not None, "in its group it gets the least"


def test_actions_of_several_fields_are_json() -> None:
    move = action_of(Move, '{"x": 1, "y": 2}')
    assert vars(move) == {"x": 1, "y": 2}
    with pytest.raises(ValueError):
        action_of(Move, "up")


def test_which_action_an_environment_takes() -> None:
    class Loose(Environment[Move]):
        def step(self, action):  # type: ignore[no-untyped-def]
            ...

    class Unknown:
        def step(self, action: Any) -> None: ...

    assert action_class(Secret) is Guess and action_class(Loose) is Move
    with pytest.raises(TypeError, match="the action of Unknown is not known: say what a reply means with act="):
        openenv(Unknown)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"text": "hello", "done": True, "reward": 1.0, "metadata": {"message": "no"}}, "hello"),
        ({"text": "hello", "squares": [1, 2]}, "text: hello\nsquares: [1, 2]"),
        ({"squares": [1, 2]}, "squares: [1, 2]"),
        ({"text": "", "metadata": {"message": "ready"}}, "ready"),
        ({"metadata": None}, ""),
    ],
)
def test_observations_as_text(fields: dict[str, Any], text: str) -> None:
    assert shown(Heard(**fields)) == text


def test_an_environment_by_name() -> None:
    with pytest.raises(ValueError, match="named as module:Class, not 'guess'"):
        openenv("guess")
    with pytest.raises(ModuleNotFoundError, match="this plugin needs openenv=="):
        openenv("guess:Guess")
