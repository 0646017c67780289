"""Environments of the real OpenEnv: a folder with an ``openenv.yaml``, dropped as it is, and one of MCP tools."""

from __future__ import annotations

from typing import Any

import pytest

from marlaas.plugins.messages import Ask

from .conftest import PATIENCE, PublishedVersions, calling

pytestmark = [pytest.mark.libraries, pytest.mark.processes, pytest.mark.timeout(PATIENCE)]

FILES = {
    "openenv.yaml": "spec_version: 1\nname: guess\ntype: space\nruntime: fastapi\napp: server.app:app\nport: 8000\n",
    "pyproject.toml": '[project]\nname = "openenv-guess"\nversion = "0.1"\ndependencies = ["openenv==0.10.0"]\n',
    "__init__.py": "from .models import GuessAction, GuessObservation\n",
    "models.py": """
from openenv.core.env_server.types import Action, Observation


class GuessAction(Action):
    number: int


class GuessObservation(Observation):
    text: str = ""
""",
    "server/__init__.py": "",
    "server/app.py": """
from openenv.core.env_server.http_server import create_app

from ..models import GuessAction, GuessObservation
from .guess_environment import GuessEnvironment

app = create_app(GuessEnvironment, GuessAction, GuessObservation, env_name="guess")
""",
    "server/guess_environment.py": """
import random

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State

try:
    from ..models import GuessAction, GuessObservation
except ImportError:
    from models import GuessAction, GuessObservation


class GuessEnvironment(Environment):
    def __init__(self):
        super().__init__()
        self._state = State(episode_id="guess", step_count=0)

    def reset(self, seed=None, episode_id=None, **kwargs) -> GuessObservation:
        self._number = random.Random(seed).randint(1, 9)
        return GuessObservation(text="Guess a number from 1 to 9.")

    def step(self, action: GuessAction, timeout_s=None, **kwargs) -> GuessObservation:
        self._state.step_count += 1
        right = action.number == self._number
        hint = "higher" if action.number < self._number else "lower"
        return GuessObservation(text="yes" if right else hint, reward=1.0 if right else -0.1, done=right)

    @property
    def state(self) -> State:
        return self._state
""",
}
TOOLS = """
# /// script
# dependencies = ["openenv==0.10.0"]
# ///
import random

from fastmcp import FastMCP
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Observation, State


class Shop(MCPEnvironment):
    def __init__(self):
        mcp = FastMCP("shop")

        @mcp.tool
        def price(item: str) -> int:
            "Price of an item."
            return self._prices[item]

        @mcp.tool
        def buy(item: str) -> str:
            "Buy an item."
            self._bought = item
            return "bought"

        super().__init__(mcp)
        self._state = State(episode_id="shop", step_count=0)

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._prices = {item: random.randint(1, 9) for item in ("ink", "pen")}
        self._bought = None
        return Observation(metadata={"message": "Buy the pen."})

    def step(self, action, timeout_s=None, **kwargs):
        observation = super().step(action, timeout_s=timeout_s, **kwargs)
        return self._paid(observation)

    async def step_async(self, action, timeout_s=None, **kwargs):
        observation = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        return self._paid(observation)

    def _paid(self, observation):
        observation.reward = 1.0 if self._bought == "pen" and not observation.done else 0.0
        observation.done = self._bought is not None
        return observation

    def _step_impl(self, action, timeout_s=None, **kwargs):
        raise NotImplementedError

    @property
    def state(self):
        return self._state
"""


def halving() -> Any:
    """Finds a number from 1 to 9 in at most four guesses."""
    low, high, guess = 1, 9, 0

    def says(ask: Ask) -> str:
        nonlocal low, high, guess
        heard = ask.messages[-1].content
        low, high = (guess + 1 if heard == "higher" else low), (guess - 1 if heard == "lower" else high)
        guess = (low + high) // 2
        return str(guess)

    return says


async def test_environments(published: PublishedVersions) -> None:
    folder = published.scratch.parent / "guess"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    folder.rename(published.folder / "guess")
    published.save("shop.py", TOOLS)
    assert set((await published.start()).values()) == {None}

    name = "guess/GuessEnvironment"
    outcomes = [await published.episode(name, halving(), index=index) for index in range(8)]
    assert {outcome.status for outcome in outcomes} == {"ok"}, outcomes
    steps = [float(outcome.metrics["steps"]) for outcome in outcomes]
    assert [outcome.rewards["agent"] for outcome in outcomes] == [pytest.approx(1.1 - each / 10) for each in steps]
    assert len(set(steps)) > 1
    again = await published.episode(name, halving(), index=3, member=5)
    assert again.metrics == outcomes[3].metrics
    outcome = await published.episode(name, lambda ask: "seven")
    assert outcome.status == "ok" and outcome.invalid and outcome.rewards == {"agent": -1.0}, "a wrong guess costs 0.1"

    asks: list[Ask] = []

    def buys(ask: Ask) -> Any:
        asks.append(ask)
        return [calling("price", item="pen"), calling("buy", item="pen"), "done"][len(asks) - 1]

    outcome = await published.episode("shop/Shop", buys)
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": 1.0}), outcome.failure
    assert outcome.metrics["steps"] == 2
    assert {tool["function"]["name"] for tool in asks[0].tools} == {"price", "buy"}
    assert asks[0].messages[-1].content == "Buy the pen."
    price = asks[1].messages[-1].content
    assert price.isdigit() and asks[2].messages[-1].content == "bought"
    outcome = await published.episode("shop/Shop", lambda ask: "I would like a pen.")
    assert outcome.invalid == "the reply calls none of the tools" and outcome.rewards == {"agent": -1.0}
    asks.clear()
    await published.episode("shop/Shop", buys, member=3)
    assert asks[1].messages[-1].content == price, "what it draws from the global generator is the same for a group"
