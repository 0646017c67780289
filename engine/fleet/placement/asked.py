"""What the placement decides by beside machine, software and base: the user's wishes and the stages' times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...devices import SamplerKind, Sharing


@dataclass(frozen=True)
class Choices:
    """From ``marlaas.toml``; ``auto`` and empty leave the choice to the placement."""

    sampler: str = "auto"
    """``sampler`` under [rollout]."""
    rollout: Sequence[str] = ()
    """``devices`` under [rollout]: ``cpu``, or cards by label, ``gpu 0``, or by the beginning of their id."""
    training: Sequence[str] = ()
    """``devices`` under [training]."""
    precision: str = "auto"
    """``precision`` under [training]."""
    share: str = "auto"
    """``share`` under [resources]: how sampler and trainer share a card, or, with vLLM, a processor."""
    llama: str = ""
    """The key under [rollout] that is set and that only llama.cpp understands, ``weights`` or ``gguf``."""
    without: Sequence[Sharing] = ()
    """Ways of sharing a card that failed when the workers were started."""


@dataclass(frozen=True)
class Times:
    """How long one card takes at each stage for a trained token, in any unit.

    Before anything is measured, sampling is taken to be twice the work of training: published systems spend two to five
    times as long on it, and a card too many at rollout costs less than one too few, as training can wait for none.
    """

    sampling: float = 2.0
    training: float = 1.0
    measured: bool = False
    samplers: Sequence[tuple[SamplerKind, float]] = ()
    """Tokens a second that kinds of sampler were measured to reach on this processor, for this base."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` where a stage takes no time."""
        if not (self.sampling > 0 and self.training > 0):
            raise ValueError("a stage takes more than no time")
