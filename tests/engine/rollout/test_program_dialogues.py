"""Whatever programs do, what they were told is what is trained on: each token once, behind its context."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.environments.protocol import FinishedEpisode
from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.wire import Answered, Message

from ...examples import examples
from .fake import Witness
from .stage import LOOK, SAMPLING, Line, Stage, heard, ids, program_stage, results, spans, system, user
from .talking import Parrot, contains, letters


@dataclass(frozen=True)
class Dialogue:
    """A history as a client holds it, which ends with a reply."""

    messages: tuple[Message, ...]
    agent: str
    tools: bool
    context: tuple[int, ...]
    """The tokens up to the reply's end."""


STEPS = ("begin", "go on", "go on", "go on", "again", "rewrite", "redate", "summary", "at once", "choices", "cancel")

steps = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 30), st.sampled_from(("", "helper")), st.booleans()),
    min_size=1,
    max_size=14,
)


class Client:
    """Does what a script says, and keeps what it was told."""

    def __init__(self, line: Line, stage: Stage) -> None:
        self.line, self.stage = line, stage
        self.told: Counter[tuple[str, tuple[int, ...], tuple[int, ...]]] = Counter()
        """By agent, the tokens before a reply and the reply."""
        self.dialogues: list[Dialogue] = []
        self.unheard = 0
        """Calls that were cancelled: by then the reply may have been complete, too."""
        self.strict = not stage.renderer.rewrites

    async def run(self, script: list[tuple[str, int, str, bool]]) -> None:
        for number, (step, which, agent, tools) in enumerate(script):
            if step == "begin" or not self.dialogues:
                opening = [system(f"s{which}")] if which % 2 else []
                await self.call([*opening, user(f"begin {which}")], agent, tools)
                continue
            dialogue = self.dialogues[which % len(self.dialogues)]
            said = list(dialogue.messages)
            new = results(said[-1]) or [user(f"turn {number}")]
            match step:
                case "again":
                    await self.call(said[:-1], dialogue.agent, dialogue.tools)
                case "rewrite":
                    place = which % len(said)
                    changed = Message(said[place].role, "other", tool_calls=said[place].tool_calls)
                    await self.call([*said[:place], changed, *said[place + 1 :], *new], dialogue.agent, dialogue.tools)
                case "redate":
                    redated = [system(f"s{which}") if one.role == "system" else one for one in said]
                    await self.call([*redated, *new], dialogue.agent, dialogue.tools)
                case "summary":
                    await self.call([user(f"so far: {said[-1].content}")], dialogue.agent, dialogue.tools)
                case "at once":
                    await asyncio.gather(*(self.go_on(dialogue, new) for _ in range(1 + which % 3)))
                case "choices":
                    await self.go_on(dialogue, new, 1 + which % 3)
                case "cancel":
                    await self.cancel([*said, *new], dialogue, which)
                case _:
                    await self.go_on(dialogue, new)

    async def go_on(self, dialogue: Dialogue, new: list[Message], n: int = 1) -> None:
        """Extends a history that the engine knows: its tokens are not made anew."""
        answered = await self.call([*dialogue.messages, *new], dialogue.agent, dialogue.tools, n)
        if self.strict:
            expected = [*dialogue.context, *(t for one in new for t in tokens_of(self.stage, one))]
            assert answered.prompt_tokens == len(expected)
            for choice in range(n):
                assert self.told[dialogue.agent or "agent", tuple(expected), tuple(ids(answered, choice))]

    async def call(self, messages: list[Message], agent: str, tools: bool, n: int = 1) -> Answered:
        answered = await self.line.chat(*messages, agent=agent, tools=(LOOK,) if tools else (), n=n)
        self.keep(answered, messages, agent, tools)
        return answered

    def keep(self, answered: Answered, messages: list[Message], agent: str, tools: bool) -> None:
        for choice in range(len(answered.choices)):
            reply = tuple(ids(answered, choice))
            prompt = self.prompt(reply, answered.prompt_tokens)
            self.told[agent or "agent", prompt, reply] += 1
            said = (*messages, heard(answered, choice))
            self.dialogues.append(Dialogue(said, agent, tools, (*prompt, *reply)))

    async def cancel(self, messages: list[Message], dialogue: Dialogue, rounds: int) -> None:
        tools = (LOOK,) if dialogue.tools else ()
        call = asyncio.ensure_future(self.line.chat(*messages, agent=dialogue.agent, tools=tools))
        for _ in range(rounds):
            await asyncio.sleep(0)
        call.cancel()
        (done,) = await asyncio.gather(call, return_exceptions=True)
        if isinstance(done, Answered):  # it was over by then
            self.keep(done, messages, dialogue.agent, dialogue.tools)
        else:
            self.unheard += 1

    def prompt(self, reply: tuple[int, ...], length: int) -> tuple[int, ...]:
        """The tokens after which a reply was sampled."""
        for prompt, said in reversed(self.stage.sampler.turns):
            if tuple(said) == reply and len(prompt) == length and not self.taken((tuple(prompt), reply)):
                return tuple(prompt)
        raise AssertionError(f"nobody sampled {reply}")

    def taken(self, turn: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
        sampled = sum((tuple(prompt), tuple(said)) == turn for prompt, said in self.stage.sampler.turns)
        return sum(times for (_, *known), times in self.told.items() if tuple(known) == turn) >= sampled


def tokens_of(stage: Stage, message: Message) -> list[int]:
    tokens: list[int] = stage.renderer.open([message])
    return tokens


def trained(played: FinishedEpisode) -> Counter[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """What trajectories mark as sampled: by agent, the tokens before a reply and the reply."""
    marked: Counter[tuple[str, tuple[int, ...], tuple[int, ...]]] = Counter()
    for trajectory in played.episode.trajectories:
        tokens = trajectory.tokens.tolist()
        assert int(trajectory.mask.sum()) == sum(span.stop - span.start for span in trajectory.spans)
        for span in trajectory.spans:
            marked[trajectory.agent, tuple(tokens[: span.start]), tuple(tokens[span.start : span.stop])] += 1
    return marked


@settings(max_examples=examples(25), deadline=None)
@given(steps, st.booleans(), st.integers(1, 4))
def test_what_is_trained_on_is_what_clients_were_told(
    script: list[tuple[str, int, str, bool]], rewrites: bool, sequences: int
) -> None:
    stage = program_stage(Witness(sequences, context=100_000), sampling=SAMPLING)
    stage.renderer.rewrites = rewrites
    clients: list[Client] = []

    async def program(line: Line) -> None:
        clients.append(Client(line, stage))
        await clients[0].run(script)

    async def play() -> FinishedEpisode:
        return await asyncio.wait_for(stage.run_program(program, ("agent", "helper")), 60)

    played = asyncio.run(play())
    marked, told = trained(played), clients[0].told
    assert played.episode.status == "ok" and not told - marked
    assert (marked - told).total() <= clients[0].unheard
    assert all(trajectory.reward == 1.0 for trajectory in played.episode.trajectories)


LONG = SamplingParameters("v1", 1, 1.0, max_tokens=400, max_episode_tokens=10_000, seed=7)


def told(line: Line, choice: int = 0) -> str:
    return "".join(piece.text for piece in line.pieces if piece.choice == choice)


LOOKING = {"name": "look", "arguments": {"at": [1, 2], "by": "x"}}


def stage_of(renderer: Renderer) -> tuple[Stage, Parrot]:
    parrot = Parrot(context=20_000)
    return program_stage(parrot, renderer=renderer, sampling=LONG), parrot


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3"])
async def test_calls_of_tools_go_on_as_they_were_written(families: dict[str, Renderer], family: str) -> None:
    """They are no part of the text that is streamed."""
    renderer = families[family]
    stage, parrot = stage_of(renderer)
    written = f"Well.\n<tool_call>\n{json.dumps(LOOKING, indent=2)}\n</tool_call>"
    thought = "<think>\nhm\n</think>\n\n" if renderer.thinks else ""

    async def program(line: Line) -> None:
        begun = [user("x")]
        for _ in range(2):  # also if the tools were on offer before
            line.pieces.clear()
            parrot.saying = [*renderer.vocabulary.encode(thought + written), renderer.stop_ids[-1]]
            (choice,) = (answered := await line.chat(*begun, stream=True, tools=(LOOK,))).choices
            (call,) = choice.tool_calls
            assert (call.name, json.loads(call.arguments)) == ("look", LOOKING["arguments"])
            assert (choice.finish, choice.thinking, told(line)) == ("tool", thought[8:10], "Well.")
            reply = heard(answered)
            begun += [Message("assistant", reply.content.strip(), tool_calls=reply.tool_calls), *results(reply)]
        prompt = parrot.requests[-1].tokens.tolist()
        assert contains(prompt, renderer.vocabulary.encode(written)) and "seen" in renderer.vocabulary.decode(prompt)
        line.pieces.clear()
        await line.chat(user("Hi"), stream=True)
        assert "look" in told(line), "without tools it is a text"

    assert spans(await stage.run_program(program)) == [2, 1]


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "llama3"])
async def test_a_forced_call_is_read_as_the_template_writes_calls(families: dict[str, Renderer], family: str) -> None:
    """The model writes bare JSON, and what follows reads a call; both are conversations of their own."""
    renderer = families[family]
    stage, parrot = stage_of(renderer)
    stage.split = "eval"

    async def program(line: Line) -> None:
        parrot.saying = letters(renderer, "well")
        messages = [user("x")]
        messages += [heard(await line.chat(*messages, tools=(LOOK,))), user("now")]
        parrot.saying = [*renderer.vocabulary.encode(json.dumps(LOOKING)), renderer.stop_ids[-1]]
        answered = await line.chat(*messages, tools=(LOOK,), tool_choice="required")
        (choice,) = answered.choices
        assert (choice.text, choice.thinking, choice.finish) == ("", "", "tool")
        (call,) = choice.tool_calls
        assert call.name == "look" and json.loads(call.arguments) == LOOKING["arguments"]
        said = heard(answered)
        parrot.saying = letters(renderer, "done")
        await line.chat(*messages, said, *results(said), tools=(LOOK,))
        parrot.saying = [*renderer.vocabulary.encode(json.dumps(LOOKING)[:-2])]
        answered = await line.chat(*messages, tools=(LOOK,), tool_choice="tool:look")
        (call,) = answered.choices[0].tool_calls
        assert (answered.choices[0].finish, call.name) == ("length", "look")
        assert call.arguments == json.dumps(LOOKING["arguments"])[:-1], "cut off, its arguments are no JSON"

    played = await stage.run_program(program)
    assert played.episode.status == "ok"
    first, forced, following, _ = parrot.requests
    assert first.wishes is None and forced.wishes is not None and "look" in forced.wishes.schema
    assert following.wishes is None
    shown = renderer.vocabulary.decode(following.tokens.tolist())
    assert shown.count('"look"') == 1 + renderer.vocabulary.decode(forced.tokens.tolist()).count('"look"')
    if family != "llama3":
        assert "<tool_call>" in shown[shown.index("now") :]
