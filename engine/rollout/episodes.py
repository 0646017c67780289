"""Runs one episode.

Environment failures are results; a worker's death is raised.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np

from marlaas.plugins.messages import Answer, Ask, Endpoint, Reply

from ..clock import monotonic
from ..environments.protocol import (
    Answering,
    EpisodeOutcome,
    EpisodeSpec,
    FinalReward,
    FinishedEpisode,
    Listener,
    Threads,
)
from ..errors import BaseModelError, ConfigError, MarlaasError
from ..fairness.line import NOBODY, Ledger, Payer
from ..samplers.seeds import noise_seed
from ..store.rows import SIDE_CALL
from ..trajectories import (
    Episode,
    Failure,
    Timing,
    Trajectory,
    Transcript,
    Transcripts,
    Turn,
    TurnReward,
)
from ..wire import Endpoints
from .conversation import Allowance, Conversation, Order, Sampled, SamplingParameters, Thread, Unplayable, overfull
from .demonstrations import parts_of, prompt_of, turns_of
from .programs import FIRST, Program, ProgramAsk, canned
from .renderer import Renderer, Rendering, TooLong, characters
from .sampler_client import SamplerClient
from .slots import Backpressure, Replicas, SamplerEndpoint

PromptHash = bytes


CONVERSATIONS = 256
"""Per episode, with forks: endless branching would fill memory."""
EPISODES = 256
"""Per payer: more than slots, since most may wait for environments."""


class HeldOutPrompt(MarlaasError):
    """Another instance replaces a held-out prompt in training."""


@dataclass(frozen=True)
class Role:
    """An agent's version and samplers."""

    sampling: SamplingParameters
    replicas: Replicas
    """The same within a group."""
    policy: str = ""


Roles = Callable[[str], Role]
"""Raises ``ConfigError`` for an agent without a policy."""


RunEnvironment = Callable[[EpisodeSpec, Answer], Awaitable[EpisodeOutcome]]
"""``EnvironmentService.play`` bound to one lease."""


class EpisodeListener:
    """A running episode's events; ignored by default."""

    keeps_final_rewards = False
    """Even when the episode fails."""

    def refuses(self, prompt: PromptHash) -> bool:
        """True: the episode ends with ``HeldOutPrompt``."""
        return False

    def on_agent_done(self, agent: FinishedAgent) -> None:
        """Its reward is final while the episode continues."""

    def on_last_turn(self) -> None:
        """No further asks, no slot: the episode ended or is scored."""

    def on_cancelled(self, episode: FinishedEpisode) -> None:
        """``episode`` is the partial result."""


SILENT = EpisodeListener()


@dataclass(frozen=True)
class FinishedAgent:
    """Finished before its episode."""

    member: int
    agent: str
    trajectories: tuple[Trajectory, ...]
    """With the final reward; none if never asked."""
    transcripts: Transcripts
    paid: tuple[TurnReward, ...]


class Rollout:
    """One payer's episodes, at most ``EPISODES`` at a time."""

    def __init__(
        self,
        renderer: Renderer,
        ledger: Ledger,
        payer: Payer = NOBODY,
        anew: bool = False,
        backpressure: Backpressure | None = None,
        endpoints: Endpoints | None = None,
        tell: Callable[[int, str], None] = lambda task, sentence: None,
    ) -> None:
        """``anew``: every turn computes its whole context, for equal last bits. ``tell``: the task's log."""
        self._backpressure = backpressure or Backpressure()
        self.endpoints = endpoints
        self._tell = tell
        self._noted: set[str] = set()
        self.rendering = Rendering(renderer)
        self._ledger = ledger
        self._payer = payer
        self._anew = anew
        self._permits = asyncio.Semaphore(EPISODES)

    def of(self, payer: Payer, anew: bool) -> Rollout:
        renderer, backpressure = self.rendering.renderer, self._backpressure
        return Rollout(renderer, self._ledger, payer, anew, backpressure, self.endpoints, self._tell)

    def canned(self, answer: Answer) -> AbstractContextManager[Answering]:
        return canned(self.endpoints, answer)

    def note(self, wish: str, split: str) -> None:
        if wish not in self._noted:
            self._noted.add(wish)
            where = "in training, where the task's sampling holds" if split == "train" else "in an episode"
            self._tell(self._payer.task, f"A program asks for {wish!r}, which is ignored {where}.")

    async def run_episode(
        self,
        environment: RunEnvironment,
        spec: EpisodeSpec,
        roles: Roles,
        name: str,
        listener: EpisodeListener = SILENT,
    ) -> FinishedEpisode:
        """Raises ``HeldOutPrompt`` if the listener refuses the first prompt, and ``WorkerDied``."""
        await self._permits.acquire()
        run = LiveEpisode(self, spec, roles, name, listener)

        def end_of_asks() -> None:
            if run.over is None:
                run.leave()
                self._permits.release()
                listener.on_last_turn()

        try:
            outcome = await environment(spec, Answering(run.answer, end_of_asks, run.settle, run.endpoint))
        except Unplayable as error:
            outcome = EpisodeOutcome("error", failure=Failure(error.message))
        except asyncio.CancelledError:
            listener.on_cancelled(run.result(EpisodeOutcome("cancelled", seconds=run.seconds)))
            raise
        finally:
            end_of_asks()
            self._ledger.environment(self._payer.task, max(0.0, run.seconds - run.answering.seconds))
        return run.result(outcome)

    async def room(self, endpoints: Sequence[SamplerEndpoint], members: int) -> None:
        await self._backpressure.room(self._payer, [endpoint.slots for endpoint in endpoints], 2 * members)

    def begin(self, members: int) -> None:
        self._backpressure.begin(self._payer, members)

    def asked(self) -> None:
        self._backpressure.asked(self._payer)

    def sampler_client(self, replicas: Replicas, policy: str) -> SamplerClient:
        return SamplerClient(replicas, self._ledger, replace(self._payer, policy=policy), self._anew)

    def paid(self, tokens: int, sampler: str, policy: str) -> None:
        """A sampler has read tokens without drawing any."""
        self._ledger.rollout(self._payer.task, tokens, 0, sampler, policy)

    def check_thinking(self, wanted: bool | None) -> None:
        self.rendering.renderer.check_thinking(wanted)

    async def prompt_hash(self, ask: Ask, room: int, reply: int = 0) -> PromptHash:
        """For held-out prompts. Raises ``Unplayable``.

        ``room``: most tokens of a conversation; ``reply``: those of a turn.
        """
        try:
            opening = await self.rendering.open(prompt_of(ask) if ask.demonstrated else ask, None, room)
        except TooLong as error:
            raise overfull(error.tokens, room) from error
        except (ValueError, BaseModelError) as error:
            raise Unplayable(f"its messages cannot be put to the base model: {error}") from error
        if len(opening.tokens) >= room:
            raise overfull(len(opening.tokens), room, self.rendering.renderer.wanted, reply)
        return opening.digest


class Stopwatch:
    """Seconds in which any of its blocks ran."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = 0
        self._began = 0.0

    def __enter__(self) -> None:
        if not self._inside:
            self._began = monotonic()
        self._inside += 1

    def __exit__(self, *error: object) -> None:
        self._inside -= 1
        if not self._inside:
            self.seconds += monotonic() - self._began


@dataclass(frozen=True)
class _OpenConversation:
    """Turns are taken one after the other."""

    conversation: Conversation
    client: SamplerClient
    lock: asyncio.Lock


class LiveEpisode:
    """A running episode."""

    def __init__(self, rollout: Rollout, spec: EpisodeSpec, roles: Roles, name: str, listener: EpisodeListener) -> None:
        self._rollout = rollout
        self._began = monotonic()
        self._times: list[Turn] = []
        self.over: float | None = None
        """Seconds after which there were no further asks."""
        self._spec = spec
        self._roles = roles
        self._known: dict[str, Role] = {}
        self._name = name
        self._listener = listener
        self._finished: dict[str, FinishedAgent] = {}
        self._open: dict[tuple[str, int], _OpenConversation] = {}
        self._begun = 0
        self._program: Program | None = None
        self._rejected = ""
        """The last refusal that its program heard."""
        self._train: Threads = "all"
        self._allowances: dict[str, Allowance] = {}
        self._order = Order()
        self._prompt: PromptHash | None = None
        self._held_out = False
        self._opening: asyncio.Event | None = None
        """Set once the first prompt is known; None before an agent opens the episode."""
        self.answering = Stopwatch()
        """Runs while any agent takes its turn or waits for it."""

    @property
    def seconds(self) -> float:
        return monotonic() - self._began

    @property
    def shows_tools(self) -> bool:
        return self._rollout.rendering.renderer.shows_tools

    def settle(self, final: FinalReward) -> None:
        if not self._listener.keeps_final_rewards:
            return
        for (agent, _), one in self._open.items():
            if agent == final.agent:
                one.client.leave()
        trajectories, transcripts = self._texts(final.agent, final.reward)
        finished = FinishedAgent(self._spec.member, final.agent, trajectories, transcripts, final.paid)
        self._finished[final.agent] = finished
        self._listener.on_agent_done(finished)

    async def answer(self, ask: Ask) -> Reply:
        if ask.agent in self._finished:
            raise Unplayable(f"it asked the agent {ask.agent!r}, whose reward is final")
        await self._open_with(ask)
        if ask.demonstrated:
            return await self._demonstrate(ask)
        one = self._open.get((ask.agent, ask.branch)) or self._begin(ask)
        asked, rendering = self.seconds, self._rollout.rendering
        with self.answering:
            async with one.lock:
                if isinstance(ask, ProgramAsk):
                    self._adjust(one.conversation, ask)
                    answered = one.conversation.answer(ask, one.client, rendering, ask.on_part, ask.restated)
                else:
                    answered = one.conversation.answer(ask, one.client, rendering)
                reply = await answered
        self._times.append(Turn(ask.agent, asked, self.seconds))
        return reply

    async def _open_with(self, ask: Ask) -> None:
        """Raises ``HeldOutPrompt`` if the episode's first prompt is refused."""
        while self._prompt is None:
            if self._opening is not None:  # the first ask stays first, and the others continue together
                await self._opening.wait()
                continue
            self._opening = opened = asyncio.Event()
            try:
                role = self._role(ask.agent)
                room, most = role.replicas.context, role.sampling.max_tokens
                self._prompt = await self._rollout.prompt_hash(ask, room, most)
                self._rollout.asked()
                self._held_out = self._listener.refuses(self._prompt)
            finally:
                self._opening = None
                opened.set()
        if self._held_out:  # also for asks that came at the same time
            raise HeldOutPrompt("This prompt belongs to the held-out set.")

    async def _demonstrate(self, ask: Ask) -> Reply:
        """Take a conversation with its replies; in evaluations also measure how likely they are."""
        role, rendering = self._role(ask.agent), self._rollout.rendering
        try:
            make = partial(turns_of, rendering.renderer, ask.messages, ask.tools, role.sampling.thinking)
            turns = await rendering.made(characters(ask.messages, ask.tools), make)
        except (ValueError, BaseModelError) as error:
            raise Unplayable(f"its messages cannot be put to the base model: {error}") from error
        one = self._begin(ask)
        parts = parts_of(turns, role.sampling.number, self._order)
        longest, room = max(len(part.tokens) for part in parts), role.replicas.context
        if longest > room:
            self._open.pop((ask.agent, ask.branch))
            return Reply(f"the conversation has {longest:,} tokens; the context is {room:,}", "length", 0)
        one.conversation.show(parts)
        scored = None if self._spec.split == "train" else await self._likelihood(one.conversation, role)
        return Reply("", "stop", len(turns) - 1, logprob=scored)

    async def _likelihood(self, conversation: Conversation, role: Role) -> float:
        """Mean log-probability of a given token, by the sampler that has the least to do."""
        logprobs: list[float] = []
        for shown in conversation.trajectories(None):
            endpoint, _ = role.replicas.choose(shown.tokens, 0, None, 0)
            start = int(np.argmax(shown.mask))
            with endpoint.backlog.turn(len(shown.tokens), 0):
                scores = await endpoint.sampler.score(role.sampling.version, shown.tokens, start, 1.0)
            self._rollout.paid(len(shown.tokens), endpoint.name, role.policy)
            logprobs += scores[shown.mask[start:] != 0].tolist()
        return fmean(logprobs)

    async def prompt_tokens(self, ask: Ask) -> int:
        """Of a new conversation. Raises ``ValueError`` and ``BaseModelError`` as the renderer, ``Overfull``."""
        role = self._role(ask.agent)
        try:
            opening = await self._rollout.rendering.open(ask, role.sampling.thinking, role.replicas.context)
        except TooLong as error:
            raise overfull(error.tokens, role.replicas.context) from error
        return len(opening.tokens)

    async def endpoint(self, listener: Listener) -> Endpoint:
        if self.over is not None:
            raise ConfigError("The episode is over.")
        self._train = listener.train
        if self._program is None:
            rollout, split = self._rollout, self._spec.split
            self._program = Program(self, rollout.endpoints, split == "train", partial(rollout.note, split=split))
        return await self._program.open(listener)

    def sampled(self, agent: str, branch: int, turn: int) -> Sampled | None:
        """None: no room for a reply."""
        one = self._open.get((agent, branch))
        if one is None:  # the environment's program answered in the agent's place
            return Sampled("", 0)
        return one.conversation.sampled(turn)

    def rest(self, agent: str, branch: int, drop: bool = False) -> None:
        """An ended conversation need not be cached; ``drop``: forget all its turns."""
        if one := self._open.get((agent, branch)):
            one.client.leave()
        if drop:
            self._open.pop((agent, branch), None)

    def text(self, token: int) -> str:
        return self._rollout.rendering.renderer.vocabulary.decode([token])

    def leave(self) -> None:
        self.over = self.seconds
        program, self._program = self._program, None  # a cycle would keep it until a garbage collection
        if program is not None:
            self._rejected = program.rejected
            program.close()
        for one in self._open.values():
            one.client.leave()

    def result(self, outcome: EpisodeOutcome) -> FinishedEpisode:
        """Agents by name: first turns depend on timing."""
        if self._rejected and (failure := outcome.failure) is not None:
            words = f"{failure.message}; its last refused request: {self._rejected}"
            outcome = replace(outcome, failure=replace(failure, message=words))
        rewards = outcome.rewards if outcome.status == "ok" else {}
        trajectories: list[Trajectory] = []
        transcripts: Transcripts = {}
        for agent in sorted(self._allowances):
            done = self._finished.get(agent)
            texts = (done.trajectories, done.transcripts) if done else self._texts(agent, rewards.get(agent))
            trajectories += texts[0]
            transcripts |= texts[1]
        seconds = self.seconds
        episode = Episode(
            member=self._spec.member,
            status=outcome.status,
            trajectories=tuple(trajectories),
            parts=outcome.parts,
            metrics=outcome.metrics | ({"invalid": outcome.invalid} if outcome.invalid else {}),
            failure=outcome.failure,
            seconds=outcome.seconds,
            paid=outcome.paid,
            timing=Timing(
                tuple(sorted(self._times, key=lambda turn: turn.asked)),
                seconds if self.over is None else self.over,
                seconds,
            ),
        )
        return FinishedEpisode(episode, transcripts, self._prompt, outcome, seconds, rejected=self._rejected)

    def _adjust(self, conversation: Conversation, ask: ProgramAsk) -> None:
        if ask.options is not None:
            sampling, seed = self._role(ask.agent).sampling, ask.options.seed
            conversation.sampling, conversation.wishes = ask.options.sampling(sampling), ask.options.wishes
            key = (sampling.seed, ask.agent) if seed is None else ("client", seed)
            conversation.seed = noise_seed(*key, ask.branch)

    def _begin(self, ask: Ask) -> _OpenConversation:
        if len(self._open) >= CONVERSATIONS:
            raise Unplayable(f"its agents and their forks have more than {CONVERSATIONS} conversations")
        role = self._role(ask.agent)
        name, seed = f"{self._name}/{self._begun}", noise_seed(role.sampling.seed, ask.agent, ask.branch)
        allowance = self._allowances.setdefault(ask.agent, Allowance(role.sampling.max_episode_tokens))
        if ask.fork is None:
            context = role.replicas.context
            begun = Conversation(name, ask.agent, role.sampling, context, seed, allowance, order=self._order)
            begun.thread = ask.thread if isinstance(ask, ProgramAsk) else None
        else:
            origin = self._open.get((ask.fork.agent, ask.fork.branch))
            if origin is None:
                raise Unplayable(f"it forked the agent {ask.fork.agent!r}, which has not spoken")
            begun = origin.conversation.fork(ask.fork.turns, name, ask.agent, role.sampling, seed, allowance)
        begun.branch = ask.branch != 0 and (ask.branch != FIRST or (ask.agent, 0) in self._open)
        self._begun += 1
        one = _OpenConversation(begun, self._rollout.sampler_client(role.replicas, role.policy), asyncio.Lock())
        self._open[ask.agent, ask.branch] = one
        return one

    def _role(self, agent: str) -> Role:
        if agent not in self._known:
            try:
                self._known[agent] = self._roles(agent)
            except ConfigError as error:
                raise Unplayable(error.message) from error
        return self._known[agent]

    def _texts(self, agent: str, reward: float | None) -> tuple[tuple[Trajectory, ...], Transcripts]:
        """An agent's conversations; those of other threads than the trained one as side calls, without a reward."""
        conversations = [self._open[key].conversation for key in sorted(self._open) if key[0] == agent]
        side = side_threads(conversations, self._train)
        own = [one for one in conversations if one.thread not in side]
        cut = any(one.cut for one in own)
        trajectories = [t for one in own for t in one.trajectories(reward, cut)]
        texts: dict[str, list[Transcript]] = {agent: [text for one in own for text in one.transcripts()]}
        for thread in sorted(side, key=lambda thread: thread.name):
            name = f"{agent}{SIDE_CALL}{thread.name}"
            calls = [one for one in conversations if one.thread == thread]
            trajectories += [t for one in calls for t in one.trajectories(None, agent=name)]
            texts.setdefault(name, []).extend(text for one in calls for text in one.transcripts())
        member = self._spec.member
        return tuple(trajectories), {
            (member, name, place): text for name, rows in texts.items() for place, text in enumerate(rows)
        }


def side_threads(conversations: Sequence[Conversation], train: Threads) -> set[Thread]:
    """Threads that are not trained on.

    The *main* thread is the first that has tools, else the first; the *longest* has the most sampled tokens.
    """
    tokens: Counter[Thread] = Counter()
    for one in conversations:
        if one.thread is not None:
            tokens[one.thread] += one.sampled_tokens
    if train == "all" or not tokens:
        return set()
    main = next((thread for thread in tokens if thread.tools), next(iter(tokens)))
    return tokens.keys() - {max(tokens, key=tokens.__getitem__) if train == "longest" else main}
