"""Every way in which an environment may fail to bear what a model says."""

from __future__ import annotations

from marlaas.engine.environments.conformance import checks
from marlaas.engine.environments.conformance.finding import Finding
from marlaas.engine.environments.conformance.subject import JUNK, MOST_TURNS, Canned, Pace, Played, reply_junk
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.trajectories import Failure
from marlaas.plugins import Episode, Invalid
from marlaas.plugins.messages import Ask, Message

from .scripted import Play, Scripted, judged, levels, only


async def found(function: Play, tools: bool = False) -> list[Finding]:
    subject = Scripted(function)
    return judged(checks.check_junk, odd=await reply_junk(subject, [0, 1], tools, Pace(60), 1.0))


async def test_an_environment_that_bears_all() -> None:
    async def play(ep: Episode) -> float:
        if not (await ep.ask("x")).text:
            raise Invalid("empty", reward=-1)
        return 0.0

    finding = only(await found(play))
    assert (finding.level, finding.message) == ("note", f"{len(JUNK)} odd replies ended in time, and with a reward.")


async def test_many_replies_with_one_failure_are_one_finding() -> None:
    async def play(ep: Episode) -> float:
        assert (await ep.ask("x")).text in ("right", "A"), "not right"
        return 1.0

    finding = only(await found(play))
    assert finding.message.startswith(
        f"Given the empty reply, the answer '0', the answer '1' or {len(JUNK) - 4} others, it fails: env.py:3:"
    )


ALARM = Failure("ValueError: signal only works in main thread of the main interpreter", "env.py", 4)


def paid(failure: Failure | None, *replies: Canned) -> list[Played]:
    return [Played(reply, 0, EpisodeOutcome("ok", {"agent": 0.0}, failure=failure)) for reply in replies]


def test_what_fails_whatever_is_said_is_told_though_it_is_paid() -> None:
    finding = only(judged(checks.check_junk, odd=paid(Failure("KeyError: 'gold'", "env.py", 4), *JUNK)))
    assert finding.level == "warning" and "`on_error` pays all of them alike" in finding.message
    assert f"fails for each of the {len(JUNK)} replies that were tried: env.py:4: KeyError: 'gold'" in finding.message
    some = [*paid(Failure("KeyError: 'gold'", "env.py", 4), *JUNK[:3]), *paid(None, *JUNK[3:])]
    assert only(judged(checks.check_junk, odd=some)).level == "note"


def test_alarms_belong_into_the_score_function() -> None:
    lost = [Played(reply, 0, EpisodeOutcome("error", failure=ALARM)) for reply in JUNK]
    for played in (lost, paid(ALARM, *JUNK)):
        finding = only(judged(checks.check_junk, odd=played, name="quiz"))
        assert finding.level == "error" and "under @quiz.score" in finding.message


async def test_an_endless_game() -> None:
    async def play(ep: Episode) -> float:
        while (await ep.ask("again")).text != "0":
            pass
        return 0.0

    finding = only(await found(play))
    assert finding.level == "error" and f"it asks more than {MOST_TURNS:,} times" in finding.message
    assert "the answer '0'" not in finding.message


async def test_what_fails_is_not_tried_again() -> None:
    async def play(ep: Episode) -> float:
        await ep.ask("x")
        raise TimeoutError

    subject = Scripted(play)
    await reply_junk(subject, [0, 1, 2], False, Pace(60), 1.0)
    assert subject.played == len(JUNK)


async def test_a_wrong_call_goes_to_environments_with_tools_only() -> None:
    calls: list[str] = []

    async def play(ep: Episode) -> float:
        def price(item: str) -> int:
            "Price of an item."
            raise AssertionError("it is never called with such arguments")

        reply = await ep.agent(tools=[price]).act("buy", max_turns=2)
        calls.extend(call.name for call in reply.tool_calls)
        return 0.0

    assert levels(await found(play, tools=True)) == ["note"] and set(calls) == {"tool"}
    calls.clear()
    await found(play)
    assert not calls


def test_a_reply_keeps_to_what_was_asked() -> None:
    ask = Ask("agent", (Message("user", "x"),), (), 2, ("9",))
    assert Canned("", "a" * 50).reply(ask, 3).text == "a" * 16
    assert Canned("", "a" * 50).reply(ask, 3).finish == "length"
    stopped = Canned("", "12 9 12").reply(ask, 0)
    assert (stopped.text, stopped.finish, stopped.turn) == ("12 ", "stop", 0)


async def test_words_that_quote_the_reply_are_one_failure() -> None:
    async def play(ep: Episode) -> float:
        return float((await ep.ask("x")).text) and 0.0

    findings = await found(play)
    assert levels(findings) == ["error"]
    assert "others, it fails: env.py:3: ValueError: could not convert string to float: ''." in findings[0].message
