"""Programs that call the model: which conversation a call continues, what it may ask for, what the episode keeps."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec, Threads, endpoint_of
from marlaas.engine.errors import WorkerDied
from marlaas.engine.rollout import episodes, programs as programs
from marlaas.engine.rollout.episodes import HeldOutPrompt
from marlaas.engine.rollout.renderer import TooLong
from marlaas.engine.samplers.options import Wishes
from marlaas.engine.samplers.protocol import OnTokens, SampleRequest, SampleResult
from marlaas.engine.trajectories import Failure
from marlaas.engine.wire import Answered, Message, Refusal, ToolCall
from marlaas.plugins.messages import Answer

from .fake import Witness
from .stage import (
    LOOK,
    SAMPLING,
    Caller,
    Hearing,
    Line,
    heard,
    ids,
    program_stage,
    sampled,
    spans,
    system,
    user,
)


async def test_a_reply_is_known_however_a_client_writes_it() -> None:
    """Without its thought, with white space around it, or without any, and with arguments in another spelling."""
    stage = program_stage()

    async def program(line: Line) -> None:
        first = heard(await line.chat(user("a")))
        second = heard(await line.chat(user("a"), replace_text(first, f" {first.content}\n"), user("b")))
        await line.chat(user("a"), first, user("b"), replace_text(second, second.content.strip()), user("c"))

    assert spans(await stage.run_program(program)) == [3]


def replace_text(message: Message, content: str) -> Message:
    return Message(message.role, content, message.thinking, message.tool_calls)


@pytest.mark.parametrize("change", ["system", "text", "reply", "tools", "no tools"])
async def test_another_history_begins_another_trajectory(change: str) -> None:
    stage = program_stage()

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

    assert spans(await stage.run_program(program)) == [1, 1]


DATED = (
    "You fix bugs.\nToday is Mon Nov 30 2026, 9:05 AM. Folder: /tmp/a1/work. cch=beef;",
    "You fix bugs.\nToday is Tuesday December 1 2026, 10:15 pm. Folder: /tmp/b2/work. cch=9e2a;",
)


async def test_a_dated_system_text_continues_its_conversation() -> None:
    """Each call in a segment under the prompt that it was sent with; nothing is trained on twice."""
    stage, answers, prompts = program_stage(), [], []

    async def program(line: Line) -> None:
        messages = [user("a")]
        for text, dated, tools in (("b", 0, ()), ("c", 1, ()), ("d", 1, ()), ("e", 0, (LOOK,))):
            prompts.append([system(DATED[dated]), *messages])
            answers.append(await line.chat(*prompts[-1], tools=tools))
            messages += [heard(answers[-1]), user(text)]

    played = await stage.run_program(program)
    assert spans(played) == [1, 2, 1], "the last call's tools are another thread"
    assert sampled(played) == [ids(one) for one in answers]
    for messages, (prompt, _) in zip(prompts[:3], stage.sampler.turns, strict=False):
        replies = iter(map(ids, answers))
        texts = (next(replies) if one.role == "assistant" else stage.renderer.open([one]) for one in messages)
        assert prompt == [token for text in texts for token in text]
    assert len({one.agent for one in played.episode.trajectories}) == 1


@pytest.mark.parametrize(
    ("train", "trained", "side"),
    [
        ("all", {"agent": [1, 2, 1, 1]}, {}),
        ("main", {"agent": [2, 1]}, {"make-a-title": [1], "you-fix-bugs": [1]}),
        ("longest", {"agent": [2, 1]}, {"make-a-title": [1], "you-fix-bugs": [1]}),
    ],
)
async def test_side_calls_are_shown_and_not_trained_on(
    train: Threads, trained: dict[str, list[int]], side: dict[str, list[int]]
) -> None:
    """A title that is asked for first; the main thread, which is summed up in between; a summary without tools."""
    stage = program_stage(train=train)

    async def program(line: Line) -> None:
        await line.chat(system("Make a title."), user("a"))
        messages = [system(DATED[0]), user("a")]
        messages += [heard(await line.chat(*messages, tools=(LOOK,))), user("b")]
        messages += [heard(await line.chat(*messages, tools=(LOOK,))), user("sum up")]
        summary = heard(await line.chat(*messages))
        await line.chat(system(DATED[1]), user(summary.content), tools=(LOOK,))

    played = await stage.run_program(program)
    rows: dict[str, list[int]] = {}
    for trajectory in played.episode.trajectories:
        rows.setdefault(trajectory.agent, []).append(len(trajectory.spans))
        assert trajectory.reward == (1.0 if trajectory.agent == "agent" else None)
    assert rows == trained | {f"agent, side call: {name}": replies for name, replies in side.items()}
    assert {(0, name, place) for name, replies in rows.items() for place in range(len(replies))} == set(
        played.transcripts
    )
    judged = played.judged(EpisodeOutcome("ok", {"agent": 0.5}))
    assert [t.reward for t in judged.episode.trajectories] == [
        0.5 if t.agent == "agent" else None for t in played.episode.trajectories
    ]


async def test_plain_prompts_go_on_token_for_token() -> None:
    """Unless the model ended its turn: a prompt has no place for that."""
    stage = program_stage()
    stage.renderer.stop_ids = ()

    async def program(line: Line) -> None:
        first = await line.complete("once")
        text = f"once{first.choices[0].text}"
        second = await line.complete(f"{text} upon", n=2)
        third = await line.complete(f"{text} upon{second.choices[1].text} a")
        assert third.prompt_tokens == len(ids(first)) + len(ids(second, 1)) + len("once upon a")
        stage.renderer.stop_ids = tuple(range(50))
        last = await line.complete("x", "y")
        assert [choice.choice for choice in last.choices] == [0, 1] and last.prompt_tokens == 2
        await line.complete(f"x{last.choices[0].text}, and")

    assert spans(await stage.run_program(program)) == [1, 1, 2, 1, 1, 1]


async def test_agents_of_the_path_are_agents_of_the_episode() -> None:
    async def program(line: Line) -> None:
        await asyncio.gather(line.chat(user("a"), agent="planner"), line.chat(user("a")))
        refusal = await line.refused(user("a"), agent="x" * 65)
        assert refusal.code == "episode_limit"

    played = await program_stage().run_program(program, ("agent", "planner"))
    assert [(t.agent, t.reward) for t in played.episode.trajectories] == [("agent", 1.0), ("planner", 1.0)]

    async def undeclared(line: Line) -> None:
        assert (await line.refused(user("a"))).status == 404

    await program_stage(agents=("planner", "worker")).run_program(undeclared)


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
        begun = [user("a")]
        for _ in range(2):
            sampler.go.clear()
            sampler.begun.clear()
            call = asyncio.ensure_future(line.chat(*begun))
            await sampler.begun.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            sampler.go.set()
            begun += [heard(await line.chat(*begun)), user("b")]
        assert line.hearing.heard[-1][1] == 0

    played = await program_stage(sampler).run_program(program)
    assert spans(played) == [1, 1] and played.episode.status == "ok"


async def test_after_its_episode_a_program_is_refused() -> None:
    sampler = Held()
    stage = program_stage(sampler)
    lines: list[Line] = []
    late: list[asyncio.Future[Refusal]] = []

    async def program(line: Line) -> None:
        lines.append(line)
        late.append(asyncio.ensure_future(line.refused(user("a"))))
        await sampler.begun.wait()

    played = await stage.run_program(program)
    assert (await late[0]).status == 410 and (await lines[0].refused(user("b"))).status == 410
    assert not any(t.spans for t in played.episode.trajectories)
    assert stage.addresses is not None and not stage.addresses.open_now


async def test_a_held_out_prompt_ends_the_episode() -> None:
    async def program(line: Line) -> None:
        assert (await line.refused(user("a"))).status == 410

    with pytest.raises(HeldOutPrompt):
        await program_stage().run_program(program, refuse=lambda _: True)


async def test_a_lost_sampler_is_raised_where_the_episode_is_played() -> None:
    class Lost(Witness):
        async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
            raise WorkerDied("rollout died.")

    async def program(line: Line) -> None:
        assert "rollout died" in (await line.refused(user("a"), n=2)).message

    with pytest.raises(WorkerDied):
        await program_stage(Lost()).run_program(program)


async def test_tools_that_a_template_does_not_show_are_noted() -> None:
    stage = program_stage()
    stage.renderer.shows_tools = False

    async def program(line: Line) -> None:
        first = await line.chat(user("a"), tools=(LOOK,))
        await line.chat(user("a"), heard(first), user("b"), tools=(LOOK,))

    assert spans(await stage.run_program(program)) == [2] and len(stage.notes) == 1
    assert "tools: the base model's chat template shows the model none" in stage.notes[0]


async def test_in_training_the_tasks_sampling_holds() -> None:
    stage = program_stage()

    async def program(line: Line) -> None:
        await line.chat(user("a"), temperature=0.0, top_p=0.1, seed=3)
        await line.chat(user("a"), temperature=0.5)

    await stage.run_program(program)
    assert {request.temperature for request in stage.sampler.requests} == {1.0}
    assert {request.truncation for request in stage.sampler.requests} == {SAMPLING.truncation}
    assert len(stage.notes) == 3 and "'temperature', which is ignored in training" in " ".join(stage.notes)


async def test_in_an_evaluation_the_clients_sampling_holds() -> None:
    stage = program_stage(split="eval")

    async def program(line: Line) -> None:
        first = await line.chat(user("a"), temperature=0.5, top_p=0.9, top_k=5, seed=3)
        begun = [user("a"), heard(first), user("b")]
        assert ids(await line.chat(*begun, presence_penalty=1.0))

    await stage.run_program(program)
    first, second = stage.sampler.requests
    assert first.wishes is None and second.wishes == Wishes(presence_penalty=1.0)
    assert (first.temperature, first.truncation.top_p, first.truncation.top_k) == (0.5, 0.9, 5)
    assert (second.temperature, second.truncation) == (1.0, SAMPLING.truncation) and first.seed != second.seed
    assert not stage.notes


BAD = Message("assistant", "", tool_calls=(ToolCall("1", "look", "[1]"),))


@pytest.mark.parametrize(
    ("split", "given", "where", "words"),
    [
        ("train", {"schema": "{}"}, "", "response format"),
        ("train", {"tool_choice": "required"}, "", "In training the model chooses its tools"),
        ("train", {"tool_choice": "tool:look"}, "", "tool_choice is auto or none"),
        ("train", {"top_logprobs": 3}, "", "log-probabilities"),
        ("train", {"n": 0}, "", "n is 0"),
        ("train", {"messages": ()}, "", "There are no messages."),
        ("train", {"messages": (BAD, user("a"))}, "", "no JSON object"),
        ("train", {"messages": (Message("text", "a"),)}, "", "has the role 'text'"),
        ("eval", {"tool_choice": "required"}, "tool_choice", ""),
        ("eval", {"tool_choice": "tool:add", "tools": (LOOK,)}, "tool_choice", ""),
        ("eval", {"tool_choice": "required", "tools": (LOOK,), "schema": "{}"}, "", "no tokenizer for a schema"),
        ("eval", {"tool_choice": "required", "tools": (LOOK,)}, "tools", "no tokenizer for a schema"),
        ("eval", {"schema": "{}"}, "", "no tokenizer for a schema"),
        ("eval", {"temperature": -1.0}, "", "temperature is -1"),
        ("eval", {"top_p": 2.0}, "", "top_p is 2"),
        ("eval", {"presence_penalty": 200.0}, "", "presence_penalty is 200"),
        ("eval", {"top_logprobs": 21}, "", "likeliest is 21"),
    ],
)
async def test_what_is_refused_and_in_which_words(split: str, given: dict[str, Any], where: str, words: str) -> None:
    async def program(line: Line) -> None:
        refusal = await line.refused(*messages, **wishes)
        assert refusal.status == 400 and words in refusal.message and refusal.where == (where or refusal.where)

    wishes = {"messages": (user("a"),)} | given
    messages = wishes.pop("messages")
    played = await program_stage(split=split).run_program(program)
    assert played.episode.status == "ok" and not any(t.spans for t in played.episode.trajectories)


async def test_a_full_context_is_an_error_that_clients_know() -> None:
    stage = program_stage(Witness(context=20))

    async def program(line: Line) -> None:
        refusal = await line.refused(user("x" * 30))
        assert (refusal.status, refusal.code) == (400, "context_length_exceeded")
        assert "maximum context length" in refusal.message and "30 tokens" in refusal.message
        begun = [user("a"), heard(await line.chat(user("a"))), user("b" * 30)]
        assert (await line.refused(*begun)).code == "context_length_exceeded"
        begun[-1] = user("c")
        assert ids(await line.chat(*begun)), "a shorter history goes on"

    played = await stage.run_program(program)
    assert [len(t.spans) for t in played.episode.trajectories] == [1, 1]


async def test_an_agent_whose_tokens_are_used_up_is_refused() -> None:
    """Over all its conversations; another agent has its own."""
    stage = program_stage(sampling=replace(SAMPLING, max_tokens=4, max_episode_tokens=4))

    async def program(line: Line) -> None:
        said = 0
        while said < 4:
            said += (await line.chat(user(f"a{said}"))).completion_tokens
        assert said == 4
        refusal = await line.refused(user("b"))
        assert (refusal.status, refusal.code) == (400, "context_length_exceeded")
        assert "the agent's tokens for the episode are used up" in refusal.message
        assert ids(await line.chat(user("a"), agent="helper"))

    played = await stage.run_program(program, ("agent", "helper"))
    assert sum(len(tokens) for tokens in sampled(played)) > 4


@pytest.mark.parametrize("given", [((1, 2),), ("",), ("a",) * 17])
async def test_plain_prompts_are_few_and_texts(given: tuple[Any, ...]) -> None:
    async def program(line: Line) -> None:
        with pytest.raises(Refusal) as caught:
            await line.complete(*given)
        assert caught.value.status == 400 and caught.value.where == "prompt"
        with pytest.raises(Refusal, match="repeats none"):
            await line.complete("a", echo=True)

    await program_stage().run_program(program)


async def test_limits_of_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "CALLS", 4)
    monkeypatch.setattr(programs, "AT_ONCE", 1)
    monkeypatch.setattr(episodes, "CONVERSATIONS", 2)

    async def program(line: Line) -> None:
        first, second = await asyncio.gather(line.chat(user("a")), line.refused(user("b")))
        assert isinstance(first, Answered) and (second.status, second.retry_after) == (429, 1.0)
        await line.chat(user("b"))
        assert "more than 2 conversations" in (await line.refused(user("c"))).message
        await line.chat(user("a"), heard(first), user("b"))
        assert (await line.refused(user("d"))).code == "episode_limit"

    await program_stage().run_program(program)


async def test_what_the_template_refuses_is_the_clients_error() -> None:
    class Strict(Caller):
        def open(self, messages: Any, *given: Any) -> list[int]:
            if messages[-1].role == "system":
                raise ValueError("The system prompt comes first.")
            return super().open(messages, *given)

    async def program(line: Line) -> None:
        refusal = await line.refused(user("a"), system("b"))
        assert refusal.status == 400 and "cannot be put to the base model" in refusal.message
        await line.chat(user("a"))

    assert spans(await program_stage(renderer=Strict()).run_program(program)) == [1]


@pytest.mark.parametrize("split", ["train", "eval"])
async def test_a_program_counts_the_tokens_of_a_prompt(split: str) -> None:
    async def program(line: Line) -> None:
        counted = await line.chat(user("How many?"), max_tokens=0)
        answered = await line.chat(user("How many?"))
        assert counted.prompt_tokens == answered.prompt_tokens > 0
        assert not counted.choices[0].text and answered.choices[0].text

    played = await program_stage(split=split).run_program(program)
    assert len(played.episode.trajectories) == 1


async def test_the_last_refusal_stands_in_the_failure() -> None:
    """Programs tell little: "HTTP Error 400", or nothing."""
    stage = program_stage()

    async def program(line: Line) -> None:
        await line.refused(user("a"), tool_choice="required", tools=(LOOK,))

    async def fails(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        opened = await endpoint_of(answer)(Hearing(answer, ()))
        assert stage.addresses is not None
        stage.addresses.open_now[opened.key].reject("messages is empty.")
        return EpisodeOutcome("error", failure=Failure("the program ended with exit code 1"))

    silent = await stage.run_program(program)
    assert silent.rejected == "In training the model chooses its tools: tool_choice is auto or none."
    failed = await stage.run(fails)
    words = "the program ended with exit code 1; its last refused request: messages is empty."
    assert [failed.outcome.failure, failed.episode.failure] == [Failure(words)] * 2


async def test_a_prompt_that_is_too_long_to_count_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_long(*_: object) -> None:
        raise TooLong(9000)

    async def program(line: Line) -> None:
        refusal = await line.refused(user("a"), max_tokens=0)
        assert (refusal.status, refusal.code) == (400, "context_length_exceeded") and "9,000" in refusal.message

    monkeypatch.setattr(Caller, "known", too_long)
    assert (await program_stage().run_program(program)).episode.status == "ok"
