"""What plugins say is rendered without holding up the event loop: counted in characters and in turns, not in time."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from marlaas.engine.rollout.conversation import Unplayable
from marlaas.engine.rollout.renderer import SHORT, PromptRuler, Renderer, Rendering, Said, TooLong
from marlaas.engine.samplers.vocabulary import Vocabulary
from marlaas.plugins.messages import Ask, Message

from .talking import Talk, letters

ROOM = 20_000


def ask(text: str) -> Ask:
    return Ask("a", (Message("user", text),))


@dataclass
class Work:
    """What is tokenised: on which thread, in which turn of the loop, how many characters."""

    done: list[tuple[bool, int, int]] = field(default_factory=list)
    turns: int = 0

    async def count(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    found, loop_thread, encode = Work(), threading.get_ident(), Vocabulary.encode

    def counted(vocabulary: Vocabulary, text: str, mark: str = "") -> list[int]:
        found.done.append((threading.get_ident() == loop_thread, found.turns, len(text)))
        return encode(vocabulary, text, mark)

    monkeypatch.setattr(Vocabulary, "encode", counted)
    return found


@pytest.fixture(scope="module")
def renderer(folders: dict[str, Path]) -> Renderer:
    """One of its own: a renderer that others use keeps first prompts that they have rendered."""
    return Renderer(folders["qwen3"])


async def test_what_cannot_fit_is_never_rendered(renderer: Renderer, work: Work) -> None:
    rendering = Rendering(renderer)
    long = "word " * 800_000
    with pytest.raises(TooLong) as raised:
        await rendering.open(ask(long), None, ROOM)
    assert raised.value.tokens == len(long) // renderer.vocabulary.longest
    history: list[Said] = [Message("user", "Hi"), renderer.parse(letters(renderer, "Ho"))]
    work.done.clear()
    with pytest.raises(TooLong):
        await rendering.follow(history, [Message("user", long)], (), None, ROOM)
    with pytest.raises(TooLong):  # nor what a template makes of what is short
        await rendering.open(ask("x" * 1000), None, 10)
    assert work.done == []


async def test_the_sentence_is_that_of_a_too_long_prompt(renderer: Renderer) -> None:
    for text, tokens in (("é☎" * 80, r"\d\d\d"), ("x" * 100_000, r"at least \d+")):
        talk = Talk(renderer, context=100)
        with pytest.raises(Unplayable, match=rf"its first prompt has {tokens} tokens; a conversation has room for 100"):
            await talk.say(text, [])


async def test_a_turn_that_is_too_long_uses_up_the_room(renderer: Renderer) -> None:
    talk = Talk(renderer, context=100)
    assert (await talk.say("Hi", letters(renderer, "Ho"))).text == "Ho"
    for text in ("x" * 100_000, "more"):
        reply = await talk.say(text, letters(renderer, "Ho"))
        assert (reply.text, reply.finish, reply.turn) == ("", "length", 1)
    assert len(talk.prompts) == 1
    (transcript,) = talk.conversation.transcripts()
    assert transcript.turns[-1] == ("user", "x" * 100 + "…")
    assert [trajectory.cut for trajectory in talk.conversation.trajectories(1.0)] == [True]


async def test_a_prompt_of_megabytes_is_not_counted_by_token(renderer: Renderer, work: Work) -> None:
    ruler = PromptRuler(renderer, 2048)
    assert 2048 < await ruler.tokens(ask("x" * (1 << 20))) <= 1 << 20
    assert work.done == []
    assert await ruler.tokens(ask("Hi")) == len(renderer.open([Message("user", "Hi")]))


async def test_long_prompts_are_rendered_beside_the_loop(renderer: Renderer, work: Work) -> None:
    """Many of them, asked at the same time by several payers."""
    payers = [Rendering(renderer) for _ in range(4)]
    asks = [ask(f"{number} {'word ' * SHORT}"[: 2 * SHORT]) for number in range(16)]
    made = await asyncio.gather(*(payers[number % 4].open(each, None, ROOM) for number, each in enumerate(asks)))
    assert len(work.done) == 16 and not any(here for here, _, _ in work.done)
    assert [list(one.tokens) for one in made] == [renderer.open(each.messages) for each in asks]


async def test_many_short_prompts_leave_others_their_turns(renderer: Renderer, work: Work) -> None:
    """In one turn of the loop, a payer's prompts have as many characters together as one may have, and one more."""
    rendering, counting = Rendering(renderer), asyncio.ensure_future(work.count())
    asks = [ask(f"{number} {'short ' * (number % 7 * 90)}") for number in range(64)]
    await asyncio.gather(*(rendering.open(each, None, ROOM) for each in asks))
    counting.cancel()
    assert len(work.done) == 64 and all(here for here, _, _ in work.done)
    by_turn: Counter[int] = Counter()
    for _, turn, size in work.done:
        by_turn[turn] += size
    assert len(by_turn) > 20 and max(by_turn.values()) <= 2 * SHORT + 100


async def test_a_turn_of_the_loop_renders_as_many_as_it_may(renderer: Renderer, work: Work) -> None:
    """Not one in each: with many tasks a turn takes long."""
    rendering, counting = Rendering(renderer), asyncio.ensure_future(work.count())
    made = await asyncio.gather(*(rendering.open(ask(f"What is {n} + 1?"), None, ROOM) for n in range(64)))
    counting.cancel()
    by_turn = Counter(turn for _, turn, _ in work.done)
    assert len(work.done) == 64 and len(by_turn) < 10
    assert [list(one.tokens) for one in made] == [renderer.open(ask(f"What is {n} + 1?").messages) for n in range(64)]


async def test_who_waits_in_line_hears_what_went_wrong_or_leaves(renderer: Renderer, work: Work) -> None:
    rendering, counting = Rendering(renderer), asyncio.ensure_future(work.count())
    asks = [Ask("a", (Message("nobody" if number == 40 else "user", f"{number}?"),)) for number in range(64)]
    waits = [asyncio.ensure_future(rendering.open(each, None, ROOM)) for each in asks]
    await asyncio.sleep(0)
    assert 0 < len(work.done) < 40
    waits[50].cancel()
    made = await asyncio.gather(*waits, return_exceptions=True)
    counting.cancel()
    assert isinstance(made[40], ValueError) and isinstance(made[50], asyncio.CancelledError)
    assert sum(isinstance(one, BaseException) for one in made) == 2 and len(work.done) == 62


async def test_both_threads_render_at_the_same_time(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts its own template's steps, and both fill one store of first prompts."""
    payers = [Rendering(renderer) for _ in range(2)]
    texts = [f"{number} {'x' * (SHORT * (number % 2))}" for number in range(40)]
    made = await asyncio.gather(*(payers[n % 2].open(ask(text), None, ROOM) for n, text in enumerate(texts)))
    monkeypatch.setattr("marlaas.engine.rollout.renderer.CACHED", 0)
    renderer.open([Message("user", "This empties the store.")])
    assert [list(one.tokens) for one in made] == [renderer.open([Message("user", text)]) for text in texts]


async def test_first_prompts_are_kept_within_bounds(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.rollout.renderer.CACHED_CHARACTERS", 10_000)
    rendering = Rendering(renderer)
    for number in range(12):
        await rendering.open(ask(f"{number:02}{'y' * 998}"), None, ROOM)
    known = [number for number in range(12) if renderer.known((Message("user", f"{number:02}{'y' * 998}"),))]
    assert known and len(known) * 1000 <= 10_000 and known == list(range(12 - len(known), 12)), "the newest"
