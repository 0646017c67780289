"""The worker class on vLLM: ``protocol.Sampler`` over a running engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from ...base import SLOTS, BaseModel, Device, load_base, whole_blocks
from ...devices import end_process
from ...errors import BaseModelError
from ...home import PrivateFolder
from ...trajectories import Logprobs, Tokens
from ..batching.requests import Answer, Versions
from ..batching.sampler import Gate, ThreadedSampler
from ..protocol import SamplerLimits
from .engine import Engine, FolderAdapters, VllmSettings
from .scheduler import VllmScheduler

log = logging.getLogger(__name__)
PREFIX = "vllm-"
MOST = 1024
"""Most concurrent conversations."""


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
