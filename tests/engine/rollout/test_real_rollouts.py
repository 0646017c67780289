"""A template that rewrites earlier turns, for real: llama.cpp samples, torch trains, and both see the same tokens.

The base is random, so its replies are noise: if one of them were tokenised again the trainer would find other
log-probabilities than the sampler had.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.environments.protocol import EpisodeOutcome, EpisodeSpec, FinishedEpisode
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.models.find import load_base
from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.episodes import Rollout
from marlaas.engine.rollout.renderer import Renderer
from marlaas.engine.samplers.llama.model import LlamaSampler
from marlaas.engine.trainer.advantages import ClosedGroup, close_group, train_group
from marlaas.engine.trainer.protocol import PolicyConfig
from marlaas.engine.trainer.torch_trainer import TorchTrainer
from marlaas.engine.trajectories import Group
from marlaas.plugins.messages import Answer, Ask, Message
from tools.random_base.make import make_base

from .endpoints import alike, endpoint
from .talking import DEEP, write_template

CONTEXT, CLOSE = 1024, 2e-4
CONFIG = PolicyConfig(rank=4, alpha=8.0, learning_rate=0.02, denominator=100.0)
SAMPLING = SamplingParameters("0", 0, 1.0, max_tokens=40, max_episode_tokens=400, seed=3)


async def three_questions(spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
    for number in range(3):
        await answer(Ask("agent", (Message("user", f"What is {number}+{spec.member}?"),)))
    return EpisodeOutcome("ok", {"agent": float(spec.member)})


@pytest.fixture(params=["qwen3, not thinking", "prompts that begin a thought"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, bool | None]:
    folder = make_base(tmp_path / "base", "qwen3", rows=400).path
    if request.param == "qwen3, not thinking":  # every prompt has an empty thought, which later ones leave out
        return folder, False
    write_template(folder, DEEP, bos_token="<|endoftext|>")
    return folder, None


@pytest.fixture
async def sampler(case: tuple[Path, bool | None], tmp_path: Path) -> AsyncIterator[LlamaSampler]:
    llama = LlamaSampler(str(case[0]), str(tmp_path / "cache"), sequences=4, context=CONTEXT, exact=True)
    yield llama
    await llama.close()


async def test_the_trainer_reproduces_three_rewritten_turns(
    case: tuple[Path, bool | None], sampler: LlamaSampler, tmp_path: Path
) -> None:
    folder, thinking = case
    renderer = Renderer(folder)
    trainer = TorchTrainer(str(folder), load_base(folder).fingerprint, sync=False)
    rollout, place = Rollout(renderer, Ledger()), endpoint(sampler, 4, CONTEXT)
    await trainer.open("a", CONFIG, str(tmp_path / "0"), resume=False)
    for version in range(2):  # the second with an adapter that has been trained on such an episode
        await sampler.load(str(version), str(tmp_path / str(version)))
        sampling = replace(SAMPLING, version=str(version), number=version, thinking=thinking)
        specs = [EpisodeSpec("train", version, 0, member) for member in range(2)]
        played = [
            await rollout.run_episode(three_questions, spec, alike(sampling, place), f"v{version}.{spec.member}")
            for spec in specs
        ]
        odd = sum(check(one, renderer) for one in played)
        assert odd or thinking is None, "a tokenizer writes these replies as the model did: nothing would be noticed"
        group = Group(version, version, version, "env", tuple(one.episode for one in played))
        closed = close_group(group)
        assert isinstance(closed, ClosedGroup) and closed.rewards.count == 2
        given = train_group(closed.group)
        assert [sequence.advantage for sequence in given.sequences] == [-0.5] * 3 + [0.5] * 3
        stats = await trainer.accumulate("a", (given,))
        sampled = sum(int(t.mask.sum()) for one in played for t in one.episode.trajectories)
        assert stats.measured == stats.tokens == sampled >= 12
        assert stats.gap_max < CLOSE
        stepped = await trainer.step("a", str(tmp_path / str(version + 1)))
        assert stepped.grad_norm > 0
    assert not (await sampler.stats()).active
    trainer.shutdown()


def check(one: FinishedEpisode, renderer: Renderer) -> int:
    """Each later prompt holds what it keeps of the earlier replies, as they were sampled.

    Returns how many of those would have been other tokens if their text had been tokenised.
    """
    parts = one.episode.trajectories
    assert len(parts) == 3 and all(len(part.spans) == 1 for part in parts)
    replies = [part.tokens[part.mask == 1].tolist() for part in parts]
    prompts = [part.tokens[part.mask == 0].tolist() for part in parts]
    odd = 0
    for number in range(2):
        spoken = renderer.parse(replies[number], prompts[number])
        kept = [] if spoken.cut else replies[number][spoken.thought or 0 :]
        kept = kept[:-1] if spoken.ended else kept
        for prompt in prompts[number + 1 :]:
            assert any(prompt[place : place + len(kept)] == kept for place in range(len(prompt)))
        odd += renderer.vocabulary.encode(renderer.vocabulary.decode(kept)) != kept
    return odd
