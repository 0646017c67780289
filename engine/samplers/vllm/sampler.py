"""The sampler on vLLM, which batches turns and scores by itself: what is in progress, and the worker class.

The scheduler runs on one thread and never waits. The tokens of conversations are kept here; vLLM's prefix cache finds
their keys and values. vLLM seeds requests, not positions, so noise does not follow the protocol's rule.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...devices.limits import end_process
from ...errors import AdapterError, BaseModelError, CallFailed, ConfigError
from ...home.guard import PrivateFolder
from ...models.find import BaseModel, load_base
from ...models.memory import SLOTS, Device, whole_blocks
from ...trajectories import Logprobs, Tokens
from ..batching.requests import Answer, Version, Versions
from ..batching.sampler import Gate, ThreadedSampler
from ..batching.scheduler import Pressed
from ..batching.turn import check
from ..options import NONE, Extras, Likeliest, Wishes, join
from ..protocol import Finish, NewTokens, OnTokens, SampleRequest, SampleResult, SamplerLimits, SamplerStats
from ..seeds import noise_seed
from .engine import Ask, Engine, FolderAdapters, Progress, VllmSettings

log = logging.getLogger(__name__)
PREFIX = "vllm-"
MOST = 1024
"""Most concurrent conversations."""
LEAST_TEMPERATURE = 0.01
"""Least temperature above 0: vLLM raises smaller ones."""
LOGITS = 1 << 26
"""Most logits of one score, a quarter of a gigabyte, which vLLM's own planning does not include."""


@dataclass
class Conversation:
    """A name and the tokens seen so far."""

    name: str
    tokens: Tokens = field(default_factory=lambda: np.empty(0, np.int32))
    turn: Turn | None = None


@dataclass
class Turn:
    """One running request, and its sampled tokens."""

    name: str
    """Name of its request in vLLM."""
    request: SampleRequest
    conversation: Conversation
    version: Version
    answer: Answer[SampleResult]
    room: int
    """Most tokens to sample; 0 if only the prompt is scored."""
    stream_to: OnTokens | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prefilled: int = 0
    likeliest: list[Likeliest] = field(default_factory=list)
    prompt: tuple[Logprobs, Likeliest] | None = None
    """The requested results of the prompt's tokens."""

    def take(self, progress: Progress) -> None:
        tokens, logprobs, wishes = progress.tokens, progress.logprobs, self.request.wishes
        if progress.scored is not None and wishes is not None:
            beside = progress.prompt_likeliest or _none(len(progress.scored))
            self.prompt = np.array(progress.scored, np.float32), beside
        if not self.room:  # vLLM samples at least one
            return
        self.tokens += tokens
        self.logprobs += logprobs
        news = np.array(tokens, np.int32), np.array(logprobs, np.float32)
        extras = None
        if wishes is not None:
            beside = progress.likeliest or _none(len(tokens))
            self.likeliest.append(beside)
            extras = Extras(news[1], beside)
        if self.stream_to is not None and tokens:
            self.answer.stream(self.stream_to, NewTokens(*news, extras))

    def result(self, finish: Finish) -> SampleResult:
        wishes, logprobs = self.request.wishes, np.array(self.logprobs, np.float32)
        return SampleResult(
            tokens=np.array(self.tokens, np.int32),
            logprobs=logprobs,
            finish=finish,
            version=self.version.name,
            checksum=self.version.checksum,
            prefilled=self.prefilled,
            extras=Extras(logprobs, join(self.likeliest, wishes.likeliest), *self.prompt or ()) if wishes else None,
        )


@dataclass
class Score:
    """Log-probabilities in progress, from one request or one for each token."""

    version: Version
    answer: Answer[Logprobs]
    values: Logprobs
    missing: int
    """Number of unanswered requests."""


class VllmScheduler:
    """All conversations of one engine; ``length`` tokens fit in each."""

    def __init__(self, engine: Engine, versions: Versions, length: int) -> None:
        self._engine = engine
        self._versions = versions
        self._length = length
        self._vocabulary = engine.settings.config.vocab_size
        self._conversations: dict[str, Conversation] = {}
        self._waiting: dict[str, Callable[[Progress], None]] = {}
        """The receiver of a request's progress, by its name."""
        self._scores: dict[str, Score] = {}
        self._numbers = itertools.count()
        self._sampled = self._prefilled = self._passes = 0
        self._seconds = 0.0

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def stats(self) -> SamplerStats:
        turns = [each.turn for each in self._conversations.values() if each.turn is not None]
        active = sum(1 for turn in turns if turn.tokens)
        return SamplerStats(self._sampled, self._prefilled, self._seconds, active, len(turns) - active, self._passes)

    def submit(self, request: SampleRequest, answer: Answer[SampleResult], stream_to: OnTokens | None = None) -> None:
        """Begin a turn. Raises ``ValueError`` or ``AdapterError`` if it can never be served."""
        version = self._serving(request.version)
        conversation = self._conversations.get(request.conversation) or Conversation(request.conversation)
        check(request, conversation.tokens, conversation.turn is not None, self._length, self._vocabulary)
        _check_temperature(request.temperature)
        wishes = request.wishes or NONE
        self._check_wishes(wishes, request)
        room = min(request.max_tokens, self._length - len(request.tokens))
        turn = Turn(f"turn {next(self._numbers)}", request, conversation, version, answer, room, stream_to)
        if room == 0 and not wishes.prompt:
            answer.give(turn.result("length"))
            return
        self._engine.add(
            Ask(
                name=turn.name,
                tokens=request.tokens.tolist(),
                adapter=version.handle,
                max_tokens=max(room, 1),
                temperature=request.temperature,
                seed=noise_seed(request.seed, len(request.tokens)) >> 1,
                stop=request.stop,
                truncation=request.truncation,
                whole=wishes.prompt,
                wishes=wishes,
            )
        )
        self._conversations[request.conversation] = conversation
        conversation.turn = turn
        version.users += 1
        self._waiting[turn.name] = partial(self._move, turn)

    def score(self, name: str, tokens: Tokens, start: int, temperature: float, answer: Answer[Logprobs]) -> None:
        """Ask for the log-probabilities of ``tokens[start:]``, float32 (T-start,).

        vLLM gives those of a request's own tokens only at temperature 1, and all at once. Else each token gets its own
        request.
        Raises ``ValueError`` or ``AdapterError``.
        """
        version = self._serving(name)
        if not 1 <= start <= len(tokens):
            raise ValueError(f"start is {start}; it must lie between 1 and the {len(tokens)} tokens.")
        check(SampleRequest("", "", tokens, 1, temperature, (), 0), tokens[:0], False, self._length, self._vocabulary)
        _check_temperature(temperature)
        count = len(tokens) - start
        if count == 0:
            answer.give(np.empty(0, np.float32))
            return
        whole = temperature in (0.0, 1.0) and self._engine.settings.known
        whole = whole and len(tokens) * self._vocabulary <= LOGITS
        score = Score(version, answer, np.empty(count, np.float32), 1 if whole else count)
        version.users += 1
        for offset in range(score.missing):
            stop = len(tokens) if whole else start + offset
            ask = Ask(
                name=f"score {next(self._numbers)}",
                tokens=tokens[:stop].tolist(),
                adapter=version.handle,
                max_tokens=1,
                temperature=temperature,
                seed=0,
                target=None if whole else int(tokens[stop]),
                whole=whole,
            )
            self._engine.add(ask)
            self._scores[ask.name] = score
            self._waiting[ask.name] = partial(self._learn, score, None if whole else offset)

    def release(self, name: str) -> None:
        conversation = self._conversations.get(name)
        if conversation is None:
            return
        if conversation.turn is not None:
            self._engine.abort([conversation.turn.name])
            self._end(conversation.turn, "abort")
        del self._conversations[name]

    def step(self, pressed: Pressed) -> None:
        begin = time.perf_counter()
        self._passes += 1
        for progress in self._engine.step():
            take = self._waiting.get(progress.name)
            if take is not None:
                take(progress)
        self._seconds += time.perf_counter() - begin

    def fail(self, error: Exception) -> None:
        self._engine.abort(list(self._waiting))
        self._waiting.clear()
        for conversation in self._conversations.values():
            if conversation.turn is not None:
                self._versions.leave(conversation.turn.version)
                conversation.turn.answer.fail(error)
        self._conversations.clear()
        for score in {id(score): score for score in self._scores.values()}.values():
            self._versions.leave(score.version)
            score.answer.fail(error)
        self._scores.clear()

    def _check_wishes(self, wishes: Wishes, request: SampleRequest) -> None:
        if wishes.schema:
            raise ConfigError(
                "vLLM is started without a tokenizer here, so replies cannot be held to a JSON schema.",
                'Set `sampler = "torch"` or `"llama.cpp"` under [rollout] in marlaas.toml.',
            )
        if not wishes.prompt:
            return
        if request.temperature not in (0.0, 1.0) or not self._engine.settings.known:
            raise ValueError("vLLM tells prompts' log-probabilities at temperatures 0 and 1 alone, of bases it adapts.")
        most = LOGITS // self._vocabulary
        if len(request.tokens) > most:
            raise ValueError(f"vLLM can tell the log-probabilities of prompts of up to {most} tokens of this base.")

    def _serving(self, name: str) -> Version:
        version = self._versions.serving(name)
        if not self._engine.holds(version.handle):
            raise AdapterError(f"vLLM has lost the adapter version {name!r}.", "Resume the task to publish it again.")
        return version

    def _move(self, turn: Turn, progress: Progress) -> None:
        if not turn.prefilled:
            turn.prefilled = len(turn.request.tokens) - progress.cached
            self._prefilled += turn.prefilled
        turn.take(progress)
        self._sampled += len(progress.tokens)
        if progress.finish is None:
            return
        if progress.finish in ("stop", "length"):
            self._end(turn, "stop" if progress.finish == "stop" and turn.tokens else "length")
            return
        self._leave(turn)
        del self._conversations[turn.conversation.name]
        turn.answer.fail(CallFailed(f"vLLM ended a turn with {progress.finish!r}."))

    def _end(self, turn: Turn, finish: Finish) -> None:
        result = turn.result(finish)
        turn.conversation.tokens = np.concatenate([turn.request.tokens, result.tokens])
        self._leave(turn)
        turn.answer.give(result)

    def _leave(self, turn: Turn) -> None:
        del self._waiting[turn.name]
        turn.conversation.turn = None
        self._versions.leave(turn.version)

    def _learn(self, score: Score, offset: int | None, progress: Progress) -> None:
        if progress.finish is None:
            return
        del self._waiting[progress.name], self._scores[progress.name]
        if offset is not None:
            score.values[offset] = progress.logprobs[0]
        elif progress.scored is not None:
            score.values[:] = progress.scored[-len(score.values) :]
        score.missing -= 1
        if score.missing == 0:
            self._versions.leave(score.version)
            score.answer.give(score.values)


def _none(count: int) -> Likeliest:
    return Likeliest(np.empty((count, 0), np.int32), np.empty((count, 0), np.float32))


def _check_temperature(temperature: float) -> None:
    if 0 < temperature < LEAST_TEMPERATURE:
        raise ValueError(f"temperature is {temperature}; vLLM knows 0, and {LEAST_TEMPERATURE} or more.")


# The worker class: ``protocol.Sampler`` over a running engine.


class EngineSampler(ThreadedSampler):
    """``protocol.Sampler`` on an engine that the caller has started, and may use as well."""

    def __init__(
        self,
        base: BaseModel,
        engine: Engine,
        scratch: Path,
        gate: Gate = nullcontext,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        """Adapters are written to a separate folder below ``scratch``. The thread touches ``engine`` only inside
        ``gate()``, see ``ThreadedSampler``. Raises ``OSError`` if the disk refuses.
        """
        self.engine = engine
        settings = engine.settings
        self._folder = PrivateFolder(scratch, PREFIX)
        versions = Versions(base, FolderAdapters(engine, base.path, self._folder, settings.rank))
        self.scheduler = VllmScheduler(engine, versions, settings.context)
        limits = limits_of(settings, max(1, engine.tokens // whole_blocks(settings.context, settings.device)))
        super().__init__(self.scheduler, versions, limits, gate, idle)

    async def score(self, version: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        answer: Answer[Logprobs] = Answer(self._answers)
        self._post(partial(self.scheduler.score, version, tokens, start, temperature, answer), answer)
        return await answer.future

    def tidy(self) -> None:
        self._folder.remove()

    def _failed(self, error: Exception) -> None:
        """End the process: vLLM cannot continue after a failed step, and the supervisor starts another worker."""
        log.error("vLLM's engine has failed.", exc_info=error)
        end_process(f"vLLM's engine has failed: {error}", error)

    def _close(self) -> None:
        self._versions.close()
        self._folder.remove()


class VllmSampler(EngineSampler):
    """``protocol.Sampler`` on its own engine."""

    def __init__(
        self,
        base: str,
        scratch: str,
        sequences: int = 128,
        context: int = 512,
        threads: int = 1,
        largest_rank: int = 64,
        slots: int = SLOTS,
        memory: int = 0,
        device: Device = "cpu",
        extra: dict[str, Any] | None = None,
        gate: Gate = nullcontext,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        """Start vLLM on the base model called ``base``.

        ``sequences`` conversations of up to ``context`` tokens run concurrently, under ``slots`` adapters of up to
        ``largest_rank``; requests for more adapters wait. ``memory``: bytes for keys and values, 0 as in
        ``VllmSettings``. ``extra``: further arguments for vLLM. Raises ``BaseModelError`` if vLLM is missing, too old,
        or does not serve the base.
        """
        limit_threads(threads)
        model = load_base(base)
        try:
            settings = VllmSettings(
                path=str(model.path),
                config=model.config,
                device=device,
                sequences=min(sequences, MOST),
                context=min(context, model.config.context_length),
                largest_rank=largest_rank,
                slots=slots,
                memory=memory,
                extra=extra or {},
            )
            engine = Engine(settings)
        except ValueError as error:
            if isinstance(error, BaseModelError):
                raise
            raise BaseModelError(str(error), "Mend [rollout] in marlaas.toml.") from error
        super().__init__(model, engine, Path(scratch), gate, idle)

    def _close(self) -> None:
        super()._close()
        self.engine.close()


def limits_of(settings: VllmSettings, fitting: int) -> SamplerLimits:
    """The requested limits, or the conversations ``fitting`` into vLLM's memory."""
    if fitting >= settings.sequences:
        return SamplerLimits(settings.sequences, settings.context)
    note = f"vLLM has found memory for {fitting} conversations of {settings.context} tokens, of {settings.sequences}."
    return SamplerLimits(fitting, settings.context, note)


def limit_threads(threads: int) -> None:
    """Limit torch to this many threads, if it is installed."""
    try:
        import torch
    except ImportError:  # reported by the code that needs torch
        return
    torch.set_num_threads(threads)
