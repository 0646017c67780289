"""Who plays, in training and while a policy is measured; and what is held meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest

from marlaas.engine.spec.task import AgentMap, NamedPolicySpec
from marlaas.engine.train.selfplay import Opponents, Participants

TWO = {"first": "player", "second": "rival"}


class PublishedVersions:
    """Notes what is held."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def now(self) -> Any:
        return SimpleNamespace(name=f"{self.name}-now")

    def serves(self, version: Any) -> bool:
        return str(version.name).endswith("-now")

    @contextmanager
    def hold(self, version: Any) -> Iterator[None]:
        self.log.append(version.name)
        yield

    def draw(self, number: int, attempt: int) -> Any:
        return SimpleNamespace(name=f"{self.name}-drawn")

    @asynccontextmanager
    async def lent(self, version: Any) -> AsyncIterator[None]:
        self.log.append(f"{version.name} lent")
        yield


def participants(
    agents: Mapping[str, str], log: list[str] | None = None, pools: Mapping[str, Any] = MappingProxyType({})
) -> Participants:
    policies = {name: NamedPolicySpec() for name in dict.fromkeys(agents.values())}
    published_versions: Any = {name: PublishedVersions(name, [] if log is None else log) for name in policies}
    return Participants(AgentMap(policies, agents), published_versions, Opponents(pools=pools, hosts=pools))


VERSION: Any = SimpleNamespace(name="measured")


@pytest.mark.parametrize(
    ("agents", "opponents", "turns", "speak"),
    [
        ({}, {}, 3, {}),
        (TWO, {}, 0, TWO),
        (TWO, {"second": "player@0"}, 0, {"first": "player", "second": "player@0"}),
        (TWO, {"second": "player@0"}, 1, {"first": "player@0", "second": "player"}),
        (TWO, {"second": "player@0"}, 2, {"first": "player", "second": "player@0"}),
        (dict.fromkeys(TWO, "player"), {"second": "base"}, 0, {"first": "player", "second": "base"}),
        (TWO, {"first": "base"}, 0, TWO),
        (dict.fromkeys(TWO, "player"), dict.fromkeys(TWO, "base"), 0, dict.fromkeys(TWO, "player")),
    ],
    ids=str,
)
def test_who_speaks_while_the_player_is_measured(
    agents: dict[str, str], opponents: dict[str, str], turns: int, speak: dict[str, str]
) -> None:
    match = participants(agents or {}).examination("player", VERSION, opponents, turns)
    assert match.agents == speak
    assert match.versions["player"] is VERSION


def test_its_partner_speaks_as_it_is_by_now() -> None:
    match = participants(TWO).examination("player", VERSION, {}, 0)
    assert match.versions["rival"].name == "rival-now"


async def test_what_is_served_is_held_before_a_pool_is_waited_for() -> None:
    log: list[str] = []
    pools = {name: cast(Any, PublishedVersions(name, log)) for name in ("old", "older")}
    here = participants(TWO, log, pools)
    async with here.playing(here.match(0, 0)):
        held, lent = ["player-now", "rival-now", "old-drawn", "older-drawn"], ["old-drawn lent", "older-drawn lent"]
        assert log == held + lent
