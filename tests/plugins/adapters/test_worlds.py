"""Worlds of Gymnasium, OpenEnv and TextArena as environments."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import pytest

from marlaas.plugins import Invalid, Message, Reply
from marlaas.plugins.adapters import gymnasium, openenv, textarena
from marlaas.plugins.adapters.declaring import OwnRandom, last_line, own_random, swapped, whole
from marlaas.plugins.adapters.gymnasium_worlds import action_of, allowed
from marlaas.plugins.adapters.openenv_worlds import action_class, action_of as openenv_action, shown
from marlaas.plugins.adapters.verifiers_rollouts import FullHistory
from marlaas.plugins.episode import Episode
from marlaas.plugins.messages import Ask, Fork
from marlaas.plugins.rewards import Member, Transcript

from .playing import Model, episode, played


class Discrete:
    """As ``gymnasium.spaces.Discrete``."""

    def __init__(self, n: int, start: int = 0) -> None:
        self.n, self.start = n, start

    def __contains__(self, action: object) -> bool:
        return isinstance(action, int) and self.start <= action < self.start + self.n


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


class Array:
    """What ``MultiDiscrete``, ``MultiBinary`` and ``Box`` have in common: arrays of a shape between two bounds."""

    def __init__(self, shape: tuple[int, ...], low: float, high: float, dtype: str) -> None:
        self.shape, self.low, self.high, self.dtype = shape, low, high, dtype

    def from_jsonable(self, samples: list[Any]) -> list[Any]:
        return [np.asarray(sample, dtype=self.dtype) for sample in samples]

    def __contains__(self, action: Any) -> bool:
        within = np.all(action >= self.low) and np.all(action <= self.high)
        return bool(action.shape == self.shape and within and np.can_cast(action.dtype, self.dtype))


class Box(Array):
    """Numbers."""


class MultiDiscrete(Array):
    """Whole numbers."""


class NumpyDiscrete:
    """As ``gymnasium.spaces.Discrete``."""

    start, n = 0, 3

    def __contains__(self, action: object) -> bool:
        return isinstance(action, int | np.integer) and 0 <= int(action) < 3

    def from_jsonable(self, samples: list[int]) -> list[Any]:
        return [np.int64(sample) for sample in samples]


class Nested:
    """As the spaces that are made of others: a type check, then each part in its own space."""

    def from_jsonable(self, samples: list[Any]) -> list[Any]:
        raise AssertionError("its parts are read one by one")


class Tuple(Nested):
    """A fixed number of parts."""

    spaces: ClassVar[Any] = (NumpyDiscrete(), Box((2,), -1, 1, "float32"))

    def __contains__(self, action: Any) -> bool:
        return type(action) is tuple and all(part in space for part, space in zip(action, self.spaces, strict=True))


class Dict(Nested):
    """Parts by name."""

    spaces: ClassVar[Any] = {"way": NumpyDiscrete(), "pull": MultiDiscrete((2,), 0, 4, "int64")}

    def __contains__(self, action: Any) -> bool:
        return action.keys() == self.spaces.keys() and all(action[name] in space for name, space in self.spaces.items())


class Sequence(Nested):
    """Any number of actions of one space."""

    stack, feature_space = False, NumpyDiscrete()

    def __contains__(self, action: Any) -> bool:
        return type(action) is tuple and all(part in self.feature_space for part in action)


class OneOf(Nested):
    """An action of one of several spaces."""

    spaces = Tuple.spaces

    def __contains__(self, action: Any) -> bool:
        return action[1] in self.spaces[action[0]]


class Graph:
    """Nodes, and edges between them."""

    def from_jsonable(self, samples: list[Any]) -> list[Any]:
        parts = ("nodes", "edges", "edge_links")
        found = {name: np.asarray(samples[0][name][0] if name != "edge_links" else samples[0][name]) for name in parts}
        return [SimpleNamespace(_asdict=lambda: found, nodes=found["nodes"])]

    def __contains__(self, action: Any) -> bool:
        return bool(np.all(action.nodes < 3))


SPACES: dict[str, Any] = {
    "multi": MultiDiscrete((2,), 0, 2, "int64"),
    "bytes": Box((2,), 0, 255, "uint8"),
    "box": Box((2,), -1, 1, "float32"),
    "one": Box((1,), -np.inf, np.inf, "float32"),
    "tuple": Tuple(),
    "dict": Dict(),
    "sequence": Sequence(),
    "oneof": OneOf(),
    "graph": Graph(),
}

TAKEN: dict[str, dict[str, Any]] = {
    "multi": {"[1, 2]": [1, 2]},
    "bytes": {"[0,255]": [0, 255]},
    "box": {"[0.5, -1]": [0.5, -1.0]},
    "one": {"0.5": [0.5], "[2]": [2.0]},
    "tuple": {"[2, [0, 1]]": (2, [0.0, 1.0])},
    "dict": {'{"way": 0, "pull": [4, 0]}': {"way": 0, "pull": [4, 0]}},
    "sequence": {"[2, 0]": (2, 0), "[]": ()},
    "oneof": {"[1, [0, 0]]": (1, [0.0, 0.0])},
    "graph": {'{"nodes": [1, 2], "edges": [0], "edge_links": [[0, 1]]}': {"nodes": [1, 2]}},
}

REFUSED = {
    "multi": ("[1, 3]", "[1.5, 0]", "[1]", "1", "{}", "[[1, 2]]"),
    "bytes": ("[0, 256]", "[0, -1]", "[0.5, 1]"),
    "box": ("[0.5, 2]", "[NaN, 0]", "[1e999, 0]", "0.5"),
    "one": ("1e999", "Infinity", "[1, 2]", '"1"x'),
    "tuple": ("[2]", "[3, [0, 1]]", "[2, [0, 1], 0]", "null"),
    "dict": ('{"way": 0}', '{"way": 3, "pull": [0, 0]}', '{"way": 0, "pull": [0, 0], "x": 1}', "[]"),
    "sequence": ("[3]", "5"),
    "oneof": ("[0, [0, 0]]", "[2, 0]", "[true, [0, 0]]", "[-1, [0, 0]]", "[0.5, 0]"),
    "graph": ('{"nodes": [3], "edges": [0], "edge_links": [[0, 0]]}', "{}", "[]"),
}

NOBODY = ("", "left", "[" * 5000, "9" * 5000, "\x00", "²")


def plain(action: Any) -> Any:
    """An action without arrays."""
    if isinstance(action, tuple):
        return tuple(map(plain, action))
    if isinstance(action, dict):
        return {name: plain(part) for name, part in action.items()}
    if hasattr(action, "nodes"):
        return {"nodes": action.nodes.tolist()}
    return action.tolist() if hasattr(action, "tolist") else action


@pytest.mark.parametrize("kind", SPACES)
def test_replies_that_mean_an_action(kind: str) -> None:
    for reply, action in TAKEN[kind].items():
        assert plain(action_of(SPACES[kind], reply)) == action


@pytest.mark.parametrize("kind", SPACES)
def test_replies_that_mean_none(kind: str) -> None:
    for reply in (*REFUSED[kind], *NOBODY):
        with pytest.raises(ValueError, match="an action is JSON that fits"):
            action_of(SPACES[kind], reply)


def test_an_action_of_the_authors_own_is_looked_at() -> None:
    class Raising:
        def __contains__(self, action: Any) -> bool:
            raise KeyError(action)

    assert allowed(NumpyDiscrete(), 2) == 2 and allowed(None, "anything") == "anything"
    for space, action in ((NumpyDiscrete(), 45), (NumpyDiscrete(), "left"), (Raising(), 1)):
        with pytest.raises(ValueError, match=f"the world does not take the action {action!r}"):
            allowed(space, action)


@dataclass
class Field:
    """As pydantic describes a field."""

    annotation: Any
    required: bool = True

    def is_required(self) -> bool:
        return self.required


class ActionModel:
    """As much of a pydantic model as is looked at."""

    model_fields: ClassVar[dict[str, Field]]

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            field = self.model_fields[name]
            setattr(self, name, field.annotation(value) if field.annotation in (int, float) else value)

    @classmethod
    def model_validate_json(cls, text: str) -> ActionModel:
        return cls(**json.loads(text))

    def model_dump(self) -> dict[str, Any]:
        return dict(vars(self))


class Guess(ActionModel):
    number: int
    model_fields: ClassVar = {"number": Field(int), "metadata": Field(dict, required=False)}


class Move(ActionModel):
    model_fields: ClassVar = {"x": Field(int), "y": Field(int)}


class Heard(ActionModel):
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


async def test_ask_and_step_until_it_is_over() -> None:
    closed = Secret.closed
    secret = openenv(Secret)
    _, ep, _ = await played(secret, lambda ask: "3", index=1)
    numbers = iter(range(10))
    result, ep, model = await played(secret, lambda ask: f" {next(numbers)} ")
    assert model.heard[0] == "guess" and set(model.heard[1:]) <= {"no"}
    assert result == 1.0 - 0.25 * (len(model.asks) - 1) and ep.logged["steps"] == len(model.asks)
    assert Secret.closed == closed + 2


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
    move = openenv_action(Move, '{"x": 1, "y": 2}')
    assert vars(move) == {"x": 1, "y": 2}
    with pytest.raises(ValueError):
        openenv_action(Move, "up")


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


@pytest.mark.parametrize(
    ("reply", "all_of_it", "last"),
    [
        (" 8\n", "8", "8"),
        ("4 + 4\nis\n8 \n\n", "4 + 4\nis\n8", "8"),
        ("first <answer>7</answer>, no: <answer> 8 </answer>.", "8", "8"),
        ("<answer>1 2\n3 4</answer>", "1 2\n3 4", "3 4"),
        ("<answer>8", "8", "8"),
        ("</answer>8", "</answer>8", "</answer>8"),
        ("", "", ""),
    ],
)
def test_extracts(reply: str, all_of_it: str, last: str) -> None:
    assert (whole(reply), last_line(reply)) == (all_of_it, last)


class Count:
    """Players say the next number in turn; a wrong one is told off once, then loses. As ``-raw`` games, it hands out
    new messages only, the player's own among them, and seeds the process."""

    def __init__(self, last: int = 4) -> None:
        self.last = last

    def reset(self, num_players: int, seed: int | None = None) -> None:
        random.seed(seed)
        self.number, self.player, self.warned = random.randrange(100), 0, False
        self.end = self.number + self.last
        self.rewards: dict[int, float] | None = None
        self.unseen = {pid: [(-1, f"You are player {pid}. After {self.number}?", "prompt")] for pid in (0, 1)}
        self.invalid = {0: False, 1: False}

    def get_observation(self) -> tuple[int, list[tuple[int, str, str]]]:
        new, self.unseen[self.player] = self.unseen[self.player], []
        return self.player, new

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        for unseen in self.unseen.values():
            unseen.append((self.player, action, "action"))
        if action != str(self.number + 1):
            if self.warned:
                self.invalid[self.player] = True
                self.rewards = {self.player: -1, 1 - self.player: 1}
                return True, {}
            self.warned = True
            self.unseen[self.player].append((-1, "Wrong.", "admin"))
            return False, {}
        self.number, self.player, self.warned = self.number + 1, 1 - self.player, False
        if self.number == self.end:
            self.rewards = {0: 0, 1: 0}
        return self.number == self.end, {}

    def close(self) -> tuple[dict[int, float] | None, dict[int, dict[str, Any]]]:
        return self.rewards, {pid: {"invalid_move": invalid} for pid, invalid in self.invalid.items()}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []

    def make(game: str, **options: Any) -> Count:
        made.append(game)
        return Count(**options)

    library = ModuleType("textarena")
    library.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "textarena", library)
    return made


def next_number(ask: Any) -> str:
    """Says the next number, from the last one in sight."""
    said = [int(word.rstrip("?")) for word in ask.messages[-1].content.split() if word.rstrip("?").isdigit()]
    return str(said[-1] + 1)


@pytest.mark.usefixtures("installed")
async def test_each_player_hears_what_is_new_to_it(installed: list[str]) -> None:
    result, ep, model = await played(textarena("Count-v0"), next_number)
    assert result == {"player0": 0.0, "player1": 0.0} and installed == ["Count-v0-raw"]
    assert [ask.agent for ask in model.asks] == ["player0", "player1", "player0", "player1"]
    opening, answer, third, _ = model.heard
    assert opening.startswith("You are player 0.") and "[Player" not in opening
    assert answer.splitlines()[0].startswith("You are player 1.") and "[Player 0]" in answer
    assert third.startswith("[Player 1]") and third.count("\n") == 0
    assert ep.logged == {"turns": 4.0, "invalid_moves": 0.0}


@pytest.mark.usefixtures("installed")
async def test_an_endless_game_pays_nobody() -> None:
    result, ep, _ = await played(textarena("Count-v0", max_turns=3, last=99), next_number)
    assert result == {"player0": 0.0, "player1": 0.0} and ep.logged["unfinished"] == 1.0


SYSTEM = Message("system", "Be brief.")

FIRST = Message("user", "2+2?")

NO = Message("user", "no")


def said(text: str) -> Message:
    return Message("assistant", text)


class Turns(Model):
    """Counts the replies of each conversation, as the engine does."""

    async def __call__(self, ask: Ask) -> Reply:
        reply = await super().__call__(ask)
        earlier = sum(each.branch == ask.branch for each in self.asks[:-1])
        return Reply(reply.text, reply.finish, earlier, reply.tool_calls)


async def asked(model: Model, *histories: list[Message]) -> list[Ask]:
    history = FullHistory(episode(model))
    for each in histories:
        await history.ask(each, list)
    return model.asks


async def test_only_what_is_new_is_said() -> None:
    first, second, third = await asked(
        Turns(["5", "3", "4"]),
        [SYSTEM, FIRST],
        [SYSTEM, FIRST, said("5"), NO],
        [SYSTEM, FIRST, said("5"), NO, said("3"), NO],
    )
    assert first.messages == (SYSTEM, FIRST)
    assert second.messages == third.messages == (NO,)
    assert {each.branch for each in (first, second, third)} == {0}


async def test_a_history_that_comes_back_goes_on_from_there() -> None:
    *_, again = await asked(
        Turns(["5", "3", "4"]),
        [SYSTEM, FIRST],
        [SYSTEM, FIRST, said("5"), NO],
        [SYSTEM, FIRST, said("5"), Message("user", "think")],
    )
    assert again.messages == (Message("user", "think"),)
    assert again.branch > 0 and again.fork == Fork("agent", 0, 1)


async def test_a_rewritten_history_is_a_conversation_of_its_own() -> None:
    summary = Message("user", "So far: 5 is wrong.")
    _, second, third = await asked(
        Turns(["5", "3", "4"]), [SYSTEM, FIRST], [SYSTEM, summary], [SYSTEM, summary, said("3"), NO]
    )
    assert second.messages == (SYSTEM, summary) and second.fork is None and second.branch > 0
    assert third.messages == (NO,) and third.branch == second.branch


@pytest.mark.parametrize(
    ("history", "says"),
    [
        ([FIRST, said("5"), NO], "the system prompt changes"),
        ([SYSTEM, FIRST, said("5")], "nothing to ask"),
    ],
)
async def test_what_cannot_be_asked(history: list[Message], says: str) -> None:
    with pytest.raises(RuntimeError, match=says):
        await asked(Turns(["5", "3"]), [SYSTEM, FIRST], history)


@own_random
async def dice(ep: Episode, throws: int = 5) -> tuple[list[int], list[int]]:
    """A game that uses both global generators, and lets others go on between its throws."""
    thrown, drawn = [], []
    for _ in range(throws):
        thrown.append(random.randint(1, 1000))
        drawn.append(int(np.random.randint(1000)))
        await asyncio.sleep(0)
    return thrown, drawn


async def games(number: int) -> list[tuple[list[int], list[int]]]:
    model = Model([])
    return await asyncio.gather(*(dice(Episode(model, index=index)) for index in range(number)))


async def test_twelve_at_once_are_twelve_one_by_one() -> None:
    model = Model([])
    one_by_one = [await dice(Episode(model, index=index)) for index in range(12)]
    assert await games(12) == one_by_one
    assert len({str(game) for game in one_by_one}) == 12


async def test_nobody_else_notices() -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    await games(3)
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]


async def test_a_cancellation_reaches_the_episode_with_its_own_state() -> None:
    seen: list[float] = []

    async def waits() -> None:
        random.seed(5)
        try:
            await asyncio.Future()
        finally:
            seen.append(random.random())

    task = asyncio.ensure_future(_run(waits()))
    await asyncio.sleep(0)
    random.seed(99)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [random.Random(5).random()]


async def test_what_it_raises_is_raised() -> None:
    async def fails() -> None:
        raise LookupError("here")

    before = random.getstate()
    with pytest.raises(LookupError, match="here"):
        await swapped(fails(), OwnRandom(1))
    assert random.getstate() == before


async def _run(coroutine: object) -> None:
    await swapped(coroutine, OwnRandom(1))  # type: ignore[arg-type]
