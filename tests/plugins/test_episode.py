"""The author API without a process: a scripted model answers."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, Literal

import pytest

from marlaas.plugins import BlockingEpisode, Environment, Episode, Invalid, Message, Reply, Score, ToolCall, env
from marlaas.plugins.adapters.declaring import own_random
from marlaas.plugins.agent import MOST_AGENTS
from marlaas.plugins.episode import Settle
from marlaas.plugins.host.meter import in_thread
from marlaas.plugins.messages import Ask, Fork
from marlaas.plugins.rewards import rewards_of
from marlaas.plugins.tools import schema_of

from .scripted import Model, play


def calling(name: str, **arguments: Any) -> Reply:
    return Reply("", "tool", 0, (ToolCall(name, arguments),))


def price(item: str, currency: Literal["eur", "usd"] = "eur", counts: list[int] | None = None) -> int:
    """Price of an item."""
    if item == "gold":
        raise Invalid("hands off", reward=-1.0)
    return {"ink": 3}[item]


async def test_only_what_is_new_goes_out() -> None:
    model = Model("a", "b")
    agent = Episode(model).agent("solver", system="Be brief.")
    await agent.ask("one", stop="\n", max_tokens=4)
    await agent.ask([Message("user", "two")])
    assert model.asks == [
        Ask("solver", (Message("system", "Be brief."), Message("user", "one")), (), 4, ("\n",)),
        Ask("solver", (Message("user", "two"),)),
    ]


async def test_what_an_agent_refuses() -> None:
    episode = Episode(Model("a"))
    agent = episode.agent(system="x")
    with pytest.raises(ValueError, match="is set once"):
        await agent.ask([Message("system", "y")])
    with pytest.raises(TypeError, match="text or messages"):
        await agent.ask([1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="are fixed"):
        episode.agent(system="y")
    assert episode.agent() is agent
    with pytest.raises(ValueError, match="at most 64"):
        episode.agent("a" * 65)


def test_the_schema_of_a_tool() -> None:
    def lookup(word: str, n: int = 1, kind: Literal["noun", "verb"] = "noun", ids: list[int] = []) -> str:  # noqa: B006
        """Find a word."""
        return word

    assert schema_of(lookup)["function"] == {
        "name": "lookup",
        "description": "Find a word.",
        "parameters": {
            "type": "object",
            "properties": {
                "word": {"type": "string"},
                "n": {"type": "integer"},
                "kind": {"enum": ["noun", "verb"]},
                "ids": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["word"],
        },
    }


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (calling("cost", item="ink"), "error: there is no tool 'cost'; there are: price"),
        (calling("price"), "error: the argument 'item' is missing"),
        (calling("price", item=3), "error: the argument 'item' must be of type string"),
        (calling("price", item="ink", n=1), "error: there is no argument 'n'; there are: item, currency"),
        (calling("price", item="ink", currency="yen"), "error: the argument 'currency' must be one of ['eur', 'usd']"),
        (calling("price", item="pen"), "error: KeyError: 'pen'"),
        (calling("price", item="ink"), "3"),
    ],
)
async def test_mistakes_in_calls_are_told_to_the_model(call: Reply, told: str) -> None:
    model = Model(call, "done")

    def price(item: str, currency: Literal["eur", "usd"] = "eur") -> int:
        return {"ink": 3}[item]

    reply = await Episode(model).agent(tools=[price]).act("go")
    assert reply.text == "done"
    assert model.asks[1].messages == (Message("tool", told, name=call.tool_calls[0].name),)


async def test_the_tool_loop_ends() -> None:
    async def look() -> str:
        return "nothing"

    model = Model(*(calling("look") for _ in range(3)))
    assert (await Episode(model).agent(tools=[look]).act("go", max_turns=3)).finish == "tool"
    with pytest.raises(ValueError, match="at least 1"):
        await Episode(model).agent(tools=[look]).act("go", max_turns=0)

    def forbidden() -> None:
        raise Invalid("no", reward=-1)

    with pytest.raises(Invalid):
        await Episode(Model(calling("forbidden"))).agent(tools=[forbidden]).act("go")


@pytest.mark.parametrize(
    ("result", "agents", "earned", "expected"),
    [
        (True, (), {}, {"agent": 1.0}),
        (2, ("solver",), {}, {"solver": 2.0}),
        (0.5, ("a", "b"), {}, {"a": 0.5, "b": 0.5}),
        ({"a": 1, "b": Score(-1)}, ("a", "b"), {}, {"a": 1.0, "b": -1.0}),
        ({"a": 1}, ("a", "b"), {"b": 0.5}, {"a": 1.0, "b": 0.5}),
        (None, ("a",), {"a": 0.5}, {"a": 0.5}),
        (None, ("a", "b"), {"": 0.5, "b": 1.0}, {"a": 0.5, "b": 1.5}),
        (0.5, (), {"": 0.5}, {"agent": 1.0}),
    ],
)
def test_rewards(result: object, agents: tuple[str, ...], earned: dict[str, float], expected: dict[str, float]) -> None:
    assert rewards_of(result, agents, earned).by_agent == expected


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "returned None"),
        ("1", "must be a number, not str '1'"),
        (float("inf"), "must be finite"),
        pytest.param(10**400, "the reward must lie between -1e\\+09 and 1e\\+09", id="beyond every float"),
        (1e10, "the reward must lie between -1e\\+09 and 1e\\+09"),
        ({"c": 1}, "names 'c', but the agents are a, b"),
        ({}, "empty dict"),
        (Score(1, part=float("nan")), "the part 'part' of the reward must be finite"),
    ],
)
def test_what_is_no_reward(result: object, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        rewards_of(result, ("a", "b"), {})


async def paid_early(*, settle: Settle | None = None, waiting: bool = False) -> Episode:
    """Two agents, the first of which is done; ``waiting``: it was asked something just before."""
    replied = asyncio.Event()

    async def answer(ask: Ask) -> Reply:
        await replied.wait()
        return Reply("x", "stop", 0)

    episode = Episode(answer, declared=("a", "b"), settle=settle)
    asked = asyncio.ensure_future(episode.agent("a").ask("go"))
    await asyncio.sleep(0)
    if not waiting:
        replied.set()
        await asked
    try:
        episode.reward(0.25)
        episode.reward(0.5, agent="a", final=True)
    finally:
        asked.cancel()
    return episode


async def test_an_agent_may_be_paid_for_the_last_time() -> None:
    told: list[tuple[str, float]] = []
    episode = await paid_early(settle=lambda *final: told.append(final))
    assert told == [("a", 0.75)] and episode.final == {"a": 0.75}
    episode.reward(1.0)
    assert [one["agent"] for one in episode.paid] == ["a", "a"], "later payments are the others'"
    for result in (2.0, {"b": 2.0}):
        found = rewards_of(result, episode.payees, episode.earned, episode.final).by_agent
        assert found == {"a": 0.75, "b": 3.25}
    with pytest.raises(ValueError, match="the reward of 'a' is final already"):
        episode.reward(1.0, agent="a")
    with pytest.raises(ValueError, match="'a' is final already, so it cannot be returned"):
        rewards_of({"a": 1.0}, episode.payees, episode.earned, episode.final)
    with pytest.raises(RuntimeError, match="agent 'a' was asked although its reward is final"):
        await episode.agent("a").ask("again")
    with pytest.raises(RuntimeError, match="agent 'a' was asked although its reward is final"):
        await episode.agent("a").fork().ask("again")


@pytest.mark.parametrize("result", [None, 1.0])
def test_where_all_agents_are_done_nothing_else_counts(result: object) -> None:
    assert rewards_of(result, ("a", "b"), {"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}).by_agent == {"a": 1.0, "b": 2.0}


async def test_who_cannot_be_paid_for_the_last_time() -> None:
    with pytest.raises(ValueError, match="where a score function or a ranking gives the rewards"):
        await paid_early(settle=None)
    with pytest.raises(RuntimeError, match="was paid for the last time before it had replied"):
        await paid_early(settle=lambda agent, reward: None, waiting=True)
    episode = Episode(Model(), declared=("a", "b"))
    for agent in ("", "c"):
        with pytest.raises(ValueError, match=r"a final reward names one of the agents \(a, b\)"):
            episode.reward(1.0, agent=agent, final=True)
    assert episode.earned == {} and episode.final == {}


async def test_rewards_for_turns_are_summed_and_logged_by_their_name() -> None:
    @env
    async def walk(ep: Episode, steps: int = 3) -> None:
        for _ in range(steps):
            await ep.agent("walker").ask("go")
            ep.reward(0.25, name="progress")
        ep.reward(1)
        ep.reward(1, "walker", name="arrived")

    played = await play(walk, lambda ask: "", steps=3)
    assert played.rewards.by_agent == {"walker": 2.75}
    assert played.episode.logged == {"progress": 0.75, "arrived": 1.0}
    assert [(paid["turns"], paid["amount"], paid["name"]) for paid in played.episode.paid] == [
        (1, 0.25, "progress"), (2, 0.25, "progress"), (3, 0.25, "progress"), (3, 1.0, ""), (3, 1.0, "arrived")
    ]  # fmt: skip
    assert {paid["agent"] for paid in played.episode.paid} == {"walker"}
    for _ in range(2000):
        played.episode.reward(1)
    assert len(played.episode.paid) == 1000 and played.episode.earned[""] > 2000
    with pytest.raises(ValueError, match="a reward must be finite"):
        played.episode.reward(float("inf"))


@pytest.mark.parametrize("content", [42, None, {"role": "user"}, Message("user", "x"), [42]])
async def test_what_is_no_question(content: Any) -> None:
    with pytest.raises(TypeError, match=r"ask takes a text or (a list of )?messages, not \w+"):
        await Episode(Model("2")).ask(content)


async def test_an_environment_is_still_a_function() -> None:
    @env(name="sum", timeout=5)
    async def addition(ep: Episode, digits: int = 1) -> bool:
        """Adds."""
        return (await ep.ask("1+1=")).text == "2"

    assert (addition.name, addition.timeout, addition.description) == ("sum", 5.0, "Adds.")
    assert await addition(Episode(Model("2")))


def test_each_split_draws_instances_of_its_own() -> None:
    def drawn(split: str, seed: int) -> float:
        return Episode(Model(), split=split, seed=seed).rng.random()

    assert len({drawn(split, 1) for split in ("train", "eval", "test")}) == 3
    assert drawn("train", 1) != drawn("train", 2)
    assert drawn("eval", 1) == drawn("eval", 2) and drawn("test", 1) == drawn("test", 2), "for every run the same"


class Debate:
    """The class form."""

    async def play(self, ep: Episode) -> dict[str, float]:
        said = await ep.agent("proposer").ask("Say something.")
        return {"proposer": 1.0, "critic": 0.0} if said.text == "enough" else {"proposer": 0.0, "critic": 1.0}


def debate(ep: Any) -> dict[str, float]:
    said = ep.agent("proposer").ask("Say something.")
    return {"proposer": float(said.text == "enough"), "critic": float(said.text != "enough")}


@pytest.mark.parametrize("target", [Debate, debate])
async def test_agents_of_both_forms_are_paid_even_if_they_never_spoke(
    target: Callable[..., Any],
) -> None:
    declared: Environment = env(agents=["proposer", "critic"])(target)
    assert declared.agents == ("proposer", "critic")
    played = await play(declared, lambda ask: "enough")
    assert played.rewards.by_agent == {"proposer": 1.0, "critic": 0.0} and set(played.episode.agents) == {"proposer"}


@pytest.mark.parametrize(
    ("agents", "says"),
    [
        ("ab", "must be a list of names, not 'ab'"),
        ({"a", "b"}, "must be a list of names"),
        (("a", "a"), "must have different names, not a, a"),
        (("a", ""), "at most 64 characters, not ''"),
        (("x" * 10_000,), r"at most 64 characters, not 'xxxx"),
        ((["a"],), "an agent's name is a text"),
        ([f"a{n}" for n in range(MOST_AGENTS + 1)], "talk declares 257 agents; an episode has at most 256"),
    ],
)
def test_what_cannot_be_declared_is_said_at_import(agents: Any, says: str) -> None:
    async def talk(ep: Episode) -> float:
        return 1.0

    with pytest.raises((TypeError, ValueError), match=says) as caught:
        env(agents=agents)(talk)
    assert len(str(caught.value)) < 300


async def test_nobody_else_speaks_not_even_a_fork() -> None:
    episode = Episode(Model("a"), declared=("proposer", "critic"))
    proposer = episode.agent("proposer")
    await proposer.ask("go")
    with pytest.raises(ValueError, match="no agent 'judge': @env declares proposer, critic"):
        episode.agent("judge")
    with pytest.raises(ValueError, match="no agent 'judge': @env declares proposer, critic"):
        proposer.fork("judge")
    assert proposer.fork("critic").name == "critic" and proposer.fork().name == "proposer"
    with pytest.raises(ValueError, match="no agent 'agent'"):
        await episode.ask("go")


def test_an_episode_has_room_for_so_many() -> None:
    episode = Episode(Model())
    for number in range(MOST_AGENTS):
        episode.agent(f"a{number}")
    with pytest.raises(ValueError, match="at most 256 agents"):
        episode.agent("one more")
    with pytest.raises(ValueError, match="at most 256 agents"):
        episode.agent("a0").fork("one more")
    assert episode.agent("a0").name == "a0"


def turned(*texts: str) -> Model:
    """A model whose replies are numbered as the engine numbers those of one conversation."""
    return Model(*(Reply(text, "stop", turn) for turn, text in enumerate(texts)))


def said(text: str) -> tuple[Message, ...]:
    return (Message("user", text),)


async def test_a_fork_says_only_what_is_new_and_whose_history_it_has() -> None:
    model = turned("a", "b", "c")
    agent = Episode(model).agent("solver", system="Be brief.")
    await agent.ask("one")
    fork = agent.fork()
    await agent.ask("two")
    await fork.ask("other")
    assert model.asks[1:] == [
        Ask("solver", said("two")),
        Ask("solver", said("other"), branch=1, fork=Fork("solver", 0, 1)),
    ]
    model.replies.append(Reply("d", "stop", 2))
    await fork.ask("more")
    assert model.asks[3] == Ask("solver", said("more"), branch=1)


async def test_forks_of_forks() -> None:
    model = Model(*(Reply("", "stop", turn) for turn in (0, 1, 1, 2)))
    agent = Episode(model).agent()
    await agent.ask()
    first = agent.fork()
    second = first.fork()  # the first has not spoken: both leave the agent
    await first.ask()
    third = first.fork()
    await second.ask()
    await third.ask()
    assert [ask.fork for ask in model.asks] == [
        None,
        Fork("agent", 0, 1),
        Fork("agent", 0, 1),
        Fork("agent", 1, 2),
    ]
    assert [ask.branch for ask in model.asks] == [0, 1, 2, 3]


async def test_a_fork_with_a_name_is_an_agent_of_its_own() -> None:
    model = turned("a", "b", "c")
    episode = Episode(model)
    agent = episode.agent("solver")
    await agent.ask("one")
    critic = agent.fork("critic")
    assert list(episode.agents) == ["solver", "critic"] and episode.agent("critic") is critic
    await critic.ask("two")
    await critic.fork().ask("three")
    assert model.asks[1:] == [
        Ask("critic", said("two"), fork=Fork("solver", 0, 1)),
        Ask("critic", said("three"), branch=1, fork=Fork("critic", 0, 2)),
    ]
    with pytest.raises(ValueError, match="there is an agent 'critic' already"):
        agent.fork("critic")
    with pytest.raises(ValueError, match="at most 64"):
        agent.fork("")


async def test_an_agent_that_has_not_replied_cannot_be_forked() -> None:
    async def never(ask: Ask) -> Reply:
        return await asyncio.Future()

    agent = Episode(never).agent()
    asking = asyncio.create_task(agent.ask("x"))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="forked before it had replied"):
        agent.fork()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    with pytest.raises(RuntimeError, match="forked before it had replied"):
        agent.fork()


async def test_a_fork_with_a_name_is_paid_by_its_own_replies() -> None:
    """Its history is another agent's: what is paid after its first reply belongs to that, not to a third one."""
    episode = Episode(turned("a", "b", "c"))
    root = episode.agent("root")
    await root.ask("one")
    await root.ask("two")
    branch = root.fork("branch")
    await branch.ask("three")
    episode.reward(1.0)
    assert branch.turns == 3
    assert [(paid["agent"], paid["turns"]) for paid in episode.paid] == [("root", 2), ("branch", 1)]


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


async def test_tools_run_in_the_thread_of_the_episode_and_may_ask() -> None:
    threads: set[int] = set()

    @env
    def helped(ep: BlockingEpisode) -> bool:
        threads.add(threading.get_ident())

        def consult(word: str) -> str:
            """Ask somebody else."""
            threads.add(threading.get_ident())
            return ep.agent("expert").ask(word).text

        async def look() -> str:
            """Look."""
            return "nothing"

        return ep.agent("solver", tools=[consult, look]).act("go").text == "done"

    calls = [ToolCall("consult", {"word": "why"}), ToolCall("look", {})]
    said: list[Reply | str] = [Reply("", "tool", 0, (call,)) for call in calls]

    def policy(ask: Ask) -> Reply | str:
        if ask.agent == "expert":
            return "because"
        return said.pop(0) if said else "done"

    played = await play(helped, policy)
    assert played.rewards.by_agent == {"solver": 1.0, "expert": 1.0}
    assert [ask.messages[-1].content for ask in played.asks] == ["go", "why", "because", "nothing"]
    assert len(threads) == 1 and threading.get_ident() not in threads


def model_calling(*names: str) -> Model:
    """A model that calls tools, and then is done."""
    return Model(Reply("", "tool", 0, tuple(ToolCall(name, {}) for name in names)), "done")


async def told(*tools: Callable[..., Any]) -> list[str]:
    """What a model is told that calls each of some tools once."""
    model = model_calling(*(tool.__name__ for tool in tools))
    await Episode(model, apart=in_thread).agent(tools=tools).act("x")
    return [message.content for message in model.asks[1].messages]


async def test_a_plain_tool_has_a_thread_and_others_the_loop() -> None:
    def plain() -> str:
        """Plain."""
        return "the loop" if threading.current_thread() is threading.main_thread() else "a thread"

    async def awaits() -> str:
        """Awaits."""
        return plain()

    assert await told(plain, awaits) == ["a thread", "the loop"]


async def test_tools_of_one_episode_take_turns() -> None:
    under_way, most, asked = 0, 0, 0
    seen = threading.Lock()

    def counts() -> None:
        """Counts."""
        nonlocal under_way, most
        with seen:
            under_way += 1
            most = max(most, under_way)
        for _ in range(1000):
            pass
        with seen:
            under_way -= 1

    async def model(_: object) -> Reply:
        nonlocal asked
        asked += 1
        return Reply("", "tool", 0, (ToolCall("counts", {}),)) if asked <= 8 else Reply("done", "stop", 1)

    episode = Episode(model, apart=in_thread)
    await asyncio.gather(*(episode.agent(f"a{number}", tools=[counts]).act("x") for number in range(8)))
    assert most == 1


async def test_a_tool_in_the_wrong_thread_is_the_authors_error() -> None:
    base = sqlite3.connect(":memory:")

    def queries() -> Any:
        """Queries."""
        return base.execute("select 1").fetchone()

    def schedules() -> None:
        """Schedules."""
        asyncio.get_running_loop()

    for tool in (queries, schedules):
        with pytest.raises(TypeError, match=f"the tool {tool.__name__} runs in a thread of its own: make it an async"):
            await told(tool)
    base.close()


async def test_tools_that_draw_from_the_global_random_stay() -> None:
    def draws() -> float:
        """Draws."""
        return random.random()

    @own_random
    async def play(ep: Any) -> str:
        model = model_calling("draws")
        ep._answer = model
        await ep.agent(tools=[draws]).act("x")
        return model.asks[1].messages[0].content

    first, second = [await play(Episode(Model(), apart=in_thread)) for _ in range(2)]
    assert first == second
