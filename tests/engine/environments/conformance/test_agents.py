"""Which agents speak, beside those that are declared."""

from __future__ import annotations

from marlaas.engine.environments.conformance import checks
from marlaas.engine.environments.conformance.subject import CONSTANTS, EMPTY, Pace, Played, play, reply_junk
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.plugins import Episode

from .scripted import Scripted, judged, levels, only

ZERO = CONSTANTS[1]


async def relaying(ep: Episode) -> float:
    """The second agent hears of good replies alone."""
    said = await ep.agent("first").ask("go")
    if said.text != "yes":
        return 0.0
    return float((await ep.agent("second").ask(said.text)).text == "yes")


def heard(*names: str, times: int = checks.FEW) -> list[Played]:
    return [Played(EMPTY, index, EpisodeOutcome("ok", {"a": 1.0}), agents=frozenset(names)) for index in range(times)]


async def test_who_is_asked_is_known_of_every_episode() -> None:
    subject, pace = Scripted(relaying), Pace(60)
    yes = next(reply for reply in CONSTANTS if reply.text == "yes")
    assert (await play(subject, 0, EMPTY, pace)).agents == {"first"}
    assert (await play(subject, 0, yes, pace)).agents == {"first", "second"}


def test_an_agent_that_never_speaks_is_a_warning() -> None:
    found = only(judged(checks.check_agents, odd=heard("first"), agents=("first", "secnod")))
    assert found.level == "warning" and found.message.startswith("secnod: declared and never asked in 16 episodes")


def test_who_speaks_undeclared_is_worth_a_word() -> None:
    found = only(judged(checks.check_agents, odd=[*heard("b"), *heard("a")]))
    assert (
        found.level == "note" and '2 agents speak, and none is declared. With @env(agents=("a", "b"))' in found.message
    )
    assert judged(checks.check_agents, odd=heard("agent")) == []


def test_all_that_speak_are_named_up_to_some() -> None:
    names = tuple(f"a{number}" for number in range(40))
    found = only(judged(checks.check_agents, odd=heard(*names), agents=names))
    assert found.message == ("All 40 agents that it declares were asked: a0, a1, a2, a3, a4, a5, a6, a7 and 32 others.")


async def test_an_agent_that_is_not_declared_fails_where_it_is_asked() -> None:
    subject = Scripted(relaying)
    subject.agents = ("first",)
    odd = await reply_junk(subject, [0], False, Pace(60), 1.0)
    (finding,) = judged(checks.check_junk, odd=odd)
    assert finding.level == "error" and "env.py:3: ValueError: there is no agent 'second'" in finding.message


async def test_replies_are_counted_in_each_conversation() -> None:
    turns: list[tuple[str, int]] = []

    async def talk(ep: Episode) -> float:
        first, second = ep.agent("first"), ep.agent("second")
        turns.append(("first", (await first.ask("a")).turn))
        turns.append(("second", (await second.ask("b")).turn))
        turns.append(("first", (await first.ask("c")).turn))
        turns.append(("fork", (await first.fork().ask("d")).turn))
        turns.append(("second", (await second.ask("e")).turn))
        return 1.0

    await play(Scripted(talk), 0, EMPTY, Pace(60))
    assert turns == [("first", 0), ("second", 0), ("first", 1), ("fork", 2), ("second", 1)]


def test_rewards_that_change_hands_are_seen_to_change() -> None:
    once = Played(ZERO, 3, EpisodeOutcome("ok", {"first": 1.0, "second": 0.0}))
    again = Played(ZERO, 3, EpisodeOutcome("ok", {"first": 0.0, "second": 1.0}))
    found = judged(checks.check_rewards, odd=[once], repeated=[(once, again)])
    assert levels(found) == ["note", "warning"] and found[0].message.startswith("Canned replies earned 0 to 1, 0.5 on")
    assert "earns 1 (first), 0 (second), then 0 (first), 1 (second)" in found[1].message
