"""Environments that are classes: what they must offer, and that their names still stand for them."""

from __future__ import annotations

from typing import Any

import pytest

from marlaas.plugins import BlockingEpisode, Environment, Episode, env

from .scripted import Model, play


class Counting:
    """Counts the episodes that it played."""

    def __init__(self) -> None:
        self.played = 0

    async def setup(self) -> None:
        self.played = 100

    async def play(self, ep: Episode, task: str, step: int = 1) -> float:
        """Plays."""
        self.played += step
        return self.played + (await ep.ask(task)).turn


counting: Environment = env(name="counting", data=lambda split: [split])(Counting)
"""As the decorator does it; type checkers disagree about decorators of classes."""


async def test_a_class_is_described_as_a_function_is() -> None:
    assert (counting.name, counting.description) == ("counting", "Counts the episodes that it played.")
    assert [parameter.name for parameter in counting.parameters] == ["step"]
    assert counting.takes_task and not counting.blocking and counting.form is not None
    assert (await play(counting, lambda ask: ask.messages[0].content, step=3)).reward == 103.0


async def test_the_name_still_makes_instances() -> None:
    instance = counting()
    assert await instance.play(Episode(Model("a")), "train") == 1.0


async def test_a_class_whose_play_is_a_plain_method() -> None:
    class Plain:
        def play(self, ep: BlockingEpisode) -> bool:
            """Says hello."""
            return ep.ask("hello").text == "hello"

    plain = env(Plain)
    assert plain.blocking and plain.description == "Says hello."
    assert (await play(plain, lambda ask: ask.messages[0].content)).reward == 1.0


class Idle:
    pass


class Odd:
    play = "chess"


class Deaf:
    def play(self) -> float:
        return 1.0


class Needy:
    def __init__(self, path: str) -> None: ...

    def play(self, ep: Any) -> float:
        return 1.0


class Asking:
    def setup(self, path: str) -> None: ...

    def play(self, ep: Any) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (Idle, r"the class Idle needs a method that plays: async def play\(self, ep, …\)"),
        (Odd, "the class Odd needs a method that plays"),
        (Deaf, r"Deaf must take the episode as its first parameter: def play\(self, ep, …\)"),
        (Needy, "the class Needy is made without arguments"),
        (Asking, r"Asking\.setup takes nothing but self: def setup\(self\)"),
    ],
)
def test_what_a_class_must_offer(form: type, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        env(form)
