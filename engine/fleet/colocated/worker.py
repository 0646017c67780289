"""The worker that samples with vLLM and trains, on one device: two services, each a part that a proxy is made for.

With ``sharing = "base"`` the trainer computes with vLLM's own tensors, and there is one copy of the base. With
``"sleep"`` each has its own: while the trainer computes, vLLM's weights are in main memory and its keys and values are
gone, and while vLLM samples the trainer's base is not on the device. Sequences that vLLM was sampling it computes anew
when it wakes, from their tokens.

It was run on a processor, with vLLM's CPU build, whose sleep does nothing. It is written for cards after vLLM 0.32, and
was not run on one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

from ...base import PASS_BYTES, Base, load, load_base
from ...devices import end_process
from ...rollout import VllmSampler, require
from ...training import Decoder, Model, TorchTrainer, compute_on, loaded_as, pass_room
from .gate import Gate, Move
from .offloaded import OffloadedBase, tensors_of
from .paced import Paced
from .parts import Announced, LightSleeper
from .processor import considerate_vllm
from .turns import Party
from .views import named_tensors

Shared = Literal["base", "sleep"]

SLICE = 0.05
"""Seconds of a slice: some steps of the sampler, a small batch of the trainer. On two busy cores, with passes of a
second and steps of fifty milliseconds, each reached half the speed that it had alone, as with slices of a second."""


class ColocatedWorker:
    """Serves ``rollout.protocol.Sampler`` as ``sampler`` and ``training.protocol.Trainer`` as ``trainer``."""

    def __init__(self, sharing: Shared, sampler: dict[str, Any], trainer: dict[str, Any], slice: float = SLICE) -> None:
        """Start both, with the arguments of ``VllmSampler`` and ``TorchTrainer``.

        ``slice`` is how many seconds one may compute for while the other waits. Raises ``BaseModelError`` where vLLM
        cannot be used, or keeps the base in a form that cannot be shared.
        """
        require()
        self._base = load_base(trainer["base"])
        self._compute = compute_on(trainer.get("devices", ("cpu",))[0], trainer.get("precision", "f32"))
        self._room = trainer.get("room", PASS_BYTES)
        self._offloaded = OffloadedBase()
        on_card = self._compute.device.type != "cpu"
        moves: dict[Party, Move] = {
            "sampler": Move(self._wake, self._doze),
            "trainer": Move(self._offloaded.come, self._offloaded.go),
        }
        self._gate = Gate(slice, moves if sharing == "sleep" else None, holder="sampler")
        self._vllm = self._start_vllm(sampler, dozes=on_card and sharing == "sleep")
        model = self._borrow if sharing == "base" else self._lodge
        # a limit on the process would be one on vLLM, too; what passes and policies may take is said in bytes
        self._trainer = TorchTrainer(**{**trainer, "memory": 0, "model": model})
        self.trainer = Announced(self._trainer, self._gate, "trainer")
        announced = Announced(self._vllm, self._gate, "sampler")
        self.sampler = LightSleeper(self._vllm, self._gate) if sharing == "sleep" else announced

    def tidy(self) -> None:
        """Remove the files that both keep for themselves."""
        self._vllm.tidy()
        self._trainer.tidy()

    def _start_vllm(self, arguments: dict[str, Any], dozes: bool) -> VllmSampler:
        """``dozes``: whether vLLM can be put to sleep; on processors it refuses to start so."""
        extra = {**(arguments.get("extra") or {}), **({"enable_sleep_mode": True} if dozes else {})}
        with considerate_vllm() if self._compute.device.type == "cpu" else nullcontext():
            return VllmSampler(**{**arguments, "extra": extra, "gate": self._sampling})

    def _sampling(self) -> AbstractContextManager[None]:
        return self._gate.turn("sampler")

    def _borrow(self) -> Model[Any]:
        """A model over vLLM's tensors."""
        base, dtype = self._base, loaded_as(self._compute.precision)
        tensors = named_tensors(self._vllm.engine.model, base.config, dtype)
        return self._paced(self._decoder(load(base, self._compute.device, dtype, tensors)))

    def _lodge(self) -> Model[Any]:
        """A model over its own tensors, on the device during the trainer's turns, of which this is the first.

        A base in four bits is so small that it stays.
        """
        with self._gate.turn("trainer"):
            if self._compute.precision == "nf4":
                return self._paced(Decoder.of(self._base, self._compute, self._room))
            base = load(self._base, self._compute.device, loaded_as(self._compute.precision))
            self._offloaded.pack(tensors_of(base))
        return self._paced(self._decoder(base))

    def _decoder(self, base: Base) -> Decoder:
        room = self._room or pass_room(str(self._compute.device))
        return Decoder(self._base.config, base, self._compute, room)

    def _paced(self, model: Model[Any]) -> Model[Any]:
        return Paced(model, self._gate, self._compute.device.type)

    def _wake(self) -> None:
        self._or_end(self._vllm.engine.llm.wake_up)

    def _doze(self) -> None:
        """Put vLLM's weights into main memory and drop its keys and values; requests under way are kept as tokens."""
        self._or_end(partial(self._vllm.engine.llm.sleep, level=1, mode="keep"))

    def _or_end(self, change: Callable[[], Any]) -> None:
        """Run ``change``; where it fails, vLLM is asleep in part and of no use, and the process ends."""
        try:
            change()
        except Exception as error:
            end_process(f"vLLM could not give the device away or take it back: {error}", error)
