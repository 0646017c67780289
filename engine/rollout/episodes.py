"""One episode: an environment function in its process on one side, the sampler on the other.

A spec and a voice flow in, an ``Episode`` with trajectories flows out. Failures of the environment are part of the
result; the death of a worker is not, it is raised for the orchestrator to deal with.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Protocol

import numpy as np

from ..environments.protocol import Answer, Ask, EpisodeOutcome, EpisodeSpec, Reply
from ..errors import BaseModelError, MarlaasError
from ..fairness.ledger import Ledger
from ..fairness.line import NOBODY, Payer
from ..types import Episode, Failure, Trajectory, Transcripts
from .conversation import Conversation, Spent, Unplayable, Voice
from .renderer import Renderer
from .seeds import noise_seed
from .speaker import Speaker
from .station import Station

PromptHash = bytes

CONVERSATIONS = 256
"""Of one episode, forks included: an environment that never stops branching would fill the engine's memory."""
EPISODES = 256
"""Of one payer at the same time. Most of them may be waiting for their environments, so more than there are seats."""


class HeldOutPrompt(MarlaasError):
    """A training draw met a prompt of the held-out set; another instance takes its place."""


class Play(Protocol):
    """Runs an environment function: ``EnvironmentService.play`` bound to one lease."""

    async def __call__(self, spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        """See ``EnvironmentService.play``."""


@dataclass(frozen=True)
class Played:
    """An episode with what only the engine needs to know of it."""

    episode: Episode
    transcripts: Transcripts
    prompt: PromptHash | None
    """Of the first agent's first prompt; None where nothing was asked."""
    outcome: EpisodeOutcome
    """How it ended, as its environment has it."""

    def judged(self, outcome: EpisodeOutcome) -> Played:
        """The same episode under another judgement: that of its group."""
        rewards = outcome.rewards if outcome.status == "ok" else {}
        trajectories = tuple(replace(t, reward=rewards.get(t.agent)) for t in self.episode.trajectories)
        episode = replace(
            self.episode,
            status=outcome.status,
            trajectories=trajectories,
            parts=outcome.parts,
            failure=outcome.failure,
        )
        return replace(self, episode=episode, outcome=outcome)


class Rollout:
    """Plays the episodes of one payer, at most ``EPISODES`` at a time; turns are sampled as there are seats."""

    def __init__(self, renderer: Renderer, ledger: Ledger, payer: Payer = NOBODY, stays: bool = False) -> None:
        """``stays``: whether each episode keeps its seat to its end, so that what was said is computed once and has the
        same last bits in every run."""
        self._renderer = renderer
        self._ledger = ledger
        self._payer = payer
        self._stays = stays
        self._permits = asyncio.Semaphore(EPISODES)

    def of(self, payer: Payer, stays: bool) -> Rollout:
        """The same for another payer."""
        return Rollout(self._renderer, self._ledger, payer, stays)

    async def play(
        self,
        play: Play,
        spec: EpisodeSpec,
        voice: Voice,
        name: str,
        station: Station,
        refuse: Callable[[PromptHash], bool] = lambda _: False,
    ) -> Played:
        """Play one episode to its end, all its turns at ``station``, which serves the voice's version.

        ``refuse`` is asked about the first prompt; if it says yes the episode is abandoned with ``HeldOutPrompt``.
        Raises ``WorkerDied`` when the sampler is lost.
        """
        async with self._permits:
            began = monotonic()
            speaker = Speaker(station, self._ledger, self._payer, self._stays)
            run = _Run(self, spec, voice, name, refuse, speaker, station.context)
            try:
                outcome = await play(spec, run.answer)
            except Unplayable as error:
                outcome = EpisodeOutcome("error", failure=Failure(error.message))
            finally:
                speaker.leave()
                self._ledger.environment(self._payer.task, max(0.0, monotonic() - began - run.answering))
        return run.result(outcome)

    def check_thinking(self, wanted: bool | None) -> None:
        """Raise ``ConfigError`` where the base cannot think, or not think, as a task wants it."""
        self._renderer.check_thinking(wanted)

    def prompt_hash(self, ask: Ask) -> PromptHash:
        """What a first prompt is recognised by, on both sides of the held-out line. Raises ``Unplayable``."""
        try:
            return _hash(self._renderer.open(ask.messages, ask.tools))
        except (ValueError, BaseModelError) as error:
            raise Unplayable(f"its messages cannot be put to the base model: {error}") from error


class _Run:
    """The state of one episode while it is played."""

    def __init__(
        self,
        rollout: Rollout,
        spec: EpisodeSpec,
        voice: Voice,
        name: str,
        refuse: Callable[[PromptHash], bool],
        speaker: Speaker,
        context: int,
    ) -> None:
        self._rollout = rollout
        self._spec = spec
        self._voice = voice
        self._name = name
        self._refuse = refuse
        self._speaker = speaker
        self._context = context
        self._conversations: dict[tuple[str, int], Conversation] = {}
        """By agent and branch."""
        self._spent: dict[str, Spent] = {}
        self._turn = asyncio.Lock()
        self._prompt: PromptHash | None = None
        self.answering = 0.0
        """Seconds in which an agent took its turn or waited for it, one after the other."""

    async def answer(self, ask: Ask) -> Reply:
        """Let the asking agent's policy take its turn."""
        rollout = self._rollout
        if not self._conversations:
            self._prompt = rollout.prompt_hash(ask)
            if self._refuse(self._prompt):
                raise HeldOutPrompt("This prompt belongs to the held-out set.")
        conversation = self._conversations.get((ask.agent, ask.branch)) or self._begin(ask)
        async with self._turn:
            began = monotonic()
            try:
                return await conversation.answer(ask, self._speaker, rollout._renderer)
            finally:
                self.answering += monotonic() - began

    def _begin(self, ask: Ask) -> Conversation:
        """A further conversation: a new agent's, or one that leaves another."""
        place = len(self._conversations)
        if place >= CONVERSATIONS:
            raise Unplayable(f"its agents and their forks have more than {CONVERSATIONS} conversations")
        name, seed = f"{self._name}/{place}", noise_seed(self._voice.seed, place)
        spent = self._spent.setdefault(ask.agent, Spent())
        if ask.fork is None:
            begun = Conversation(name, ask.agent, self._voice, self._context, seed, spent)
        else:
            origin = self._conversations.get((ask.fork.agent, ask.fork.branch))
            if origin is None:
                raise Unplayable(f"it forked the agent {ask.fork.agent!r}, which has not spoken")
            begun = origin.fork(ask.fork.turns, name, ask.agent, seed, spent)
        self._conversations[ask.agent, ask.branch] = begun
        return begun

    def result(self, outcome: EpisodeOutcome) -> Played:
        """The episode with each agent's trajectories, those of its forks behind its own, each with its reward."""
        rewards = outcome.rewards if outcome.status == "ok" else {}
        trajectories: list[Trajectory] = []
        transcripts: Transcripts = {}
        for agent in self._spent:
            own = [conversation for (of, _), conversation in self._conversations.items() if of == agent]
            cut = any(conversation.cut for conversation in own)
            trajectories += [t for one in own for t in one.trajectories(rewards.get(agent), cut)]
            said = (transcript for one in own for transcript in one.transcripts())
            transcripts |= {(self._spec.member, agent, place): transcript for place, transcript in enumerate(said)}
        episode = Episode(
            member=self._spec.member,
            status=outcome.status,
            trajectories=tuple(trajectories),
            parts=outcome.parts,
            metrics=outcome.metrics | ({"invalid": outcome.invalid} if outcome.invalid else {}),
            failure=outcome.failure,
            seconds=outcome.seconds,
            paid=outcome.paid,
        )
        return Played(episode, transcripts, self._prompt, outcome)


def _hash(tokens: list[int]) -> PromptHash:
    return hashlib.blake2b(np.array(tokens, np.int32).tobytes(), digest_size=16).digest()
