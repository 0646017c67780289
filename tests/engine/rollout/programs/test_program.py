"""What becomes of a program's calls: which conversation each goes on with, and what the episode keeps of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from marlaas.engine.environments.protocol import endpoint_of
from marlaas.engine.errors import ConfigError, WorkerDied
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.rollout.episodes import HeldOutPrompt, Rollout
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.samplers.protocol import OnTokens, SampleRequest, SampleResult
from marlaas.engine.train.held_out import Constant
from marlaas.engine.wire import Message, Refusal
from marlaas.plugins.messages import Ask, Message as Said

from .stage import (
    LOOK,
    SAMPLING,
    Addresses,
    Caller,
    Hearing,
    Line,
    Stage,
    Witness,
    heard,
    ids,
    results,
    spans,
    system,
    told,
    user,
)


async def test_a_call_that_goes_on_extends_its_trajectory() -> None:
    stage, answers = Stage(), []

    async def program(line: Line) -> None:
        messages = [system("be brief"), user("a")]
        for text in ("b", "c", "d"):
            answers.append(await line.chat(*messages))
            messages += [heard(answers[-1]), user(text)]

    played = await stage.play(program)
    assert spans(played) == [3] and told(played) == [ids(one) for one in answers]
    (trajectory,) = played.episode.trajectories
    assert (trajectory.agent, trajectory.reward) == ("agent", 1.0)
    assert [span.fork for span in trajectory.spans] == [False] * 3
    for (prompt, reply), (following, _) in zip(stage.sampler.turns, stage.sampler.turns[1:], strict=False):
        assert following[: len(prompt) + len(reply)] == prompt + reply
    assert stage.hearing is not None
    assert stage.hearing.heard[-1] == ("agent", 0, 3) and ("agent", 1, 2) in stage.hearing.heard


async def test_usage_and_log_probabilities_are_those_of_the_sampler() -> None:
    stage = Stage()

    async def program(line: Line) -> None:
        answered = await line.chat(user("a"), max_tokens=2)
        (prompt, reply), (said,) = stage.sampler.turns[0], answered.choices
        assert (answered.model, answered.prompt_tokens, answered.completion_tokens) == ("v1", len(prompt), len(reply))
        assert len(reply) <= 2 and ids(answered) == reply and all((token.logprob or 0) <= 0 for token in said.tokens)
        assert not (await line.chat(user("a"), logprobs=False)).choices[0].tokens

    await stage.play(program)


async def test_a_reply_is_known_however_a_client_writes_it() -> None:
    """Without its thought, with white space around it, or without any, and with arguments in another spelling."""
    stage = Stage()

    async def program(line: Line) -> None:
        first = heard(await line.chat(user("a")))
        second = heard(await line.chat(user("a"), replace_text(first, f" {first.content}\n"), user("b")))
        await line.chat(user("a"), first, user("b"), replace_text(second, second.content.strip()), user("c"))

    assert spans(await stage.play(program)) == [3]


def replace_text(message: Message, content: str) -> Message:
    return Message(message.role, content, message.thinking, message.tool_calls)


async def test_tools_and_their_results_go_on_with_a_conversation() -> None:
    stage = Stage(sampling=replace(SAMPLING, max_tokens=3))
    called = 0

    async def program(line: Line) -> None:
        nonlocal called
        messages = [user("a")]
        for _ in range(12):
            answered = await line.chat(*messages, tools=(LOOK,))
            said = heard(answered)
            assert answered.choices[0].finish == "tool" or not said.tool_calls
            called += len(said.tool_calls)
            messages += [said, *(results(said) or [user("go on")])]

    assert spans(await stage.play(program)) == [12] and called


@pytest.mark.parametrize("change", ["system", "text", "reply", "tools", "no tools"])
async def test_another_history_begins_another_trajectory(change: str) -> None:
    stage = Stage()

    async def program(line: Line) -> None:
        messages = [system("s"), user("a")]
        given: dict[str, Any] = {"tools": (LOOK,)}
        messages += [heard(await line.chat(*messages, **given)), user("b")]
        match change:
            case "system":
                messages[0] = system("t")
            case "text":
                messages[1] = user("a ")
            case "reply":
                messages[2] = Message("assistant", "something else")
            case "tools":
                given["tools"] = (LOOK, LOOK)
            case _:
                given["tool_choice"] = "none"
        await line.chat(*messages, **given)

    assert spans(await stage.play(program)) == [1, 1]


async def test_the_longest_history_counts_and_a_shorter_one_forks() -> None:
    stage = Stage()

    async def program(line: Line) -> None:
        begun = [user("a"), heard(await line.chat(user("a")))]
        await line.chat(*begun, user("b"))
        await line.chat(*begun, user("c"))

    played = await stage.play(program)
    assert spans(played) == [2, 1]
    first, _, third = stage.sampler.turns
    assert third[0][: len(first[0] + first[1])] == first[0] + first[1]


async def test_equal_requests_at_once_have_branches_of_their_own() -> None:
    stage = Stage(Witness(sequences=8))

    async def program(line: Line) -> None:
        begun = [user("a"), heard(await line.chat(user("a"))), user("b")]
        both = await asyncio.gather(*(line.chat(*begun) for _ in range(3)))
        assert len({tuple(ids(one)) for one in both}) > 1
        for one in both:
            await line.chat(*begun, heard(one), user("c"))

    assert sorted(spans(await stage.play(program))) == [2, 2, 3]


async def test_choices_share_their_history() -> None:
    stage = Stage(Witness(sequences=8))

    async def program(line: Line) -> None:
        begun = [user("a"), heard(await line.chat(user("a"))), user("b")]
        answered = await line.chat(*begun, n=3)
        assert [choice.choice for choice in answered.choices] == [0, 1, 2]
        assert answered.completion_tokens == sum(len(ids(answered, place)) for place in range(3))
        await line.chat(*begun, heard(answered, 2), user("c"))
        assert len((await line.chat(user("x"), n=2)).choices) == 2

    assert spans(await stage.play(program)) == [1, 1, 1, 2, 1, 1]


async def test_plain_prompts_go_on_token_for_token() -> None:
    """Unless the model ended its turn: a prompt has no place for that."""
    stage = Stage()
    stage.renderer.stop_ids = ()  # type: ignore[assignment]

    async def program(line: Line) -> None:
        first = await line.complete("once")
        text = f"once{first.choices[0].text}"
        second = await line.complete(f"{text} upon", n=2)
        third = await line.complete(f"{text} upon{second.choices[1].text} a")
        assert third.prompt_tokens == len(ids(first)) + len(ids(second, 1)) + len("once upon a")
        stage.renderer.stop_ids = tuple(range(50))  # type: ignore[assignment]
        last = await line.complete("x", "y")
        assert [choice.choice for choice in last.choices] == [0, 1] and last.prompt_tokens == 2
        await line.complete(f"x{last.choices[0].text}, and")

    assert spans(await stage.play(program)) == [1, 1, 2, 1, 1, 1]


async def test_agents_of_the_path_are_agents_of_the_episode() -> None:
    async def program(line: Line) -> None:
        await asyncio.gather(line.chat(user("a"), agent="planner"), line.chat(user("a")))
        refusal = await line.refused(user("a"), agent="x" * 65)
        assert refusal.code == "episode_limit"

    played = await Stage().play(program, ("agent", "planner"))
    assert [(t.agent, t.reward) for t in played.episode.trajectories] == [("agent", 1.0), ("planner", 1.0)]


async def test_only_declared_agents_speak() -> None:
    async def program(line: Line) -> None:
        assert (await line.refused(user("a"))).status == 404
        await line.chat(user("a"), agent="planner")

    await Stage(agents=("planner", "worker")).play(program)


async def test_programs_and_environments_have_their_own_conversations() -> None:
    async def program(line: Line) -> None:
        await line.ask(Ask("agent", (Said("user", "a"),)))
        begun = [user("a"), heard(await line.chat(user("a"))), user("b")]
        await line.ask(Ask("agent", (Said("user", "b"),)))
        await line.chat(*begun)

    played = await Stage().play(program)
    assert [[span.fork for span in t.spans] for t in played.episode.trajectories] == [[False] * 2, [True] * 2]


class Held(Witness):
    """Says nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__(sequences=8)
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        self.begun.set()
        await self.go.wait()
        return await super().generate(request, stream_to=stream_to)


async def test_a_call_that_nobody_waits_for_leaves_no_reply() -> None:
    sampler = Held()

    async def program(line: Line) -> None:
        call = asyncio.ensure_future(line.chat(user("a")))
        await sampler.begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        sampler.go.set()
        begun = [user("a"), heard(await line.chat(user("a"))), user("b")]
        sampler.go.clear()
        sampler.begun.clear()
        call = asyncio.ensure_future(line.chat(*begun))
        await sampler.begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        sampler.go.set()
        assert ids(await line.chat(*begun)) and line.hearing.heard[-1][1] == 0

    played = await Stage(sampler).play(program)
    assert spans(played) == [1, 1] and played.episode.status == "ok"


async def test_after_its_episode_a_program_is_refused() -> None:
    sampler = Held()
    stage = Stage(sampler)
    lines: list[Line] = []
    late: list[asyncio.Future[Refusal]] = []

    async def program(line: Line) -> None:
        lines.append(line)
        late.append(asyncio.ensure_future(line.refused(user("a"))))
        await sampler.begun.wait()

    played = await stage.play(program)
    assert (await late[0]).status == 410 and (await lines[0].refused(user("b"))).status == 410
    assert not any(t.spans for t in played.episode.trajectories)
    assert stage.addresses is not None and not stage.addresses.open_now


async def test_a_held_out_prompt_ends_the_episode() -> None:
    async def program(line: Line) -> None:
        assert (await line.refused(user("a"))).status == 410

    with pytest.raises(HeldOutPrompt):
        await Stage(refuse=lambda _: True).play(program)


async def test_a_lost_sampler_is_raised_where_the_episode_is_played() -> None:
    class Lost(Witness):
        async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
            raise WorkerDied("rollout died.")

    async def program(line: Line) -> None:
        assert "rollout died" in (await line.refused(user("a"), n=2)).message

    with pytest.raises(WorkerDied):
        await Stage(Lost()).play(program)


async def test_without_endpoints_an_episode_has_none() -> None:
    async def program(line: Line) -> None:
        raise AssertionError

    with pytest.raises(ConfigError, match="serves no endpoint"):
        await Stage(addresses=None).play(program)


async def test_an_episode_has_one_address() -> None:
    stage = Stage()

    async def program(line: Line) -> None:
        assert line.endpoint.url == "http://127.0.0.1:1/v1" and line.endpoint.key == "key-1"
        assert [model.id for model in await line.answerer.models("key-1")] == ["policy"]

        assert await endpoint_of(line.ask)(line.hearing) == line.endpoint

    await stage.play(program)
    assert stage.addresses is not None and stage.addresses.given == 1


async def test_constant_answers_reach_programs_too() -> None:
    addresses = Addresses()
    rollout = Rollout(cast(Renderer, Caller()), Ledger(), endpoints=addresses)
    with rollout.canned(Constant("yes")) as answering:
        opened = await answering.endpoint(Hearing(answering))
        line = Line(opened, addresses.open_now[opened.key], Hearing(answering), answering)
        answered = await line.chat(user("a"))
        assert answered.choices[0].text == "yes" and not answered.choices[0].tokens
        assert (await line.chat(user("a"), heard(answered), user("b"))).choices[0].text == "yes"
    assert not addresses.open_now
