"""Opens a base for sampling, with less than was wanted where memory is short.

Memory that was free in the plan may be taken by the time that it is allocated, above all on a card that others use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ...errors import BaseModelError
from .base_file import BaseFile
from .context import LlamaContext, NoRoom
from .model import ALL, load_model
from .native import llama


@dataclass(frozen=True)
class Opened:
    """What was opened."""

    context: LlamaContext
    layers: int
    """Number of layers on cards, or ``ALL``."""
    refused: str = ""
    """Why the first choice was refused, where another was taken."""


def open_base(
    file: BaseFile,
    sequences: Sequence[int],
    length: int,
    threads: int = 1,
    exact: bool = False,
    devices: Sequence[str] = (),
    layers: Sequence[int] = (ALL,),
    mixes: bool = False,
    first: int = 0,
    half: bool = False,
) -> Opened:
    """Open the base in ``file`` with the first number of ``sequences``, of ``length`` tokens, that there is memory for.

    On the processor memory is taken for ``first`` sequences, and for more as they are asked for (0: for all), and keys
    and values are in float16 with ``half``.

    The first number of ``layers`` is tried on the cards called ``devices``, the next where not even the last of
    ``sequences`` fits, and at last the processor alone, where adapters share calls if ``mixes``. Raises
    ``BaseModelError`` where that does not fit, or the file holds no base; ``ConfigError`` for a card that is not there.
    """
    refused = ""
    for part in layers if devices else ():
        try:
            return _open(file, sequences, length, threads, exact, devices, part, refused, mixes, first, half)
        except BaseModelError as error:
            refused = refused or error.message
    return _open(file, sequences, length, threads, exact, (), 0, refused, mixes, first, half)


def fewer(sequences: int, least: int) -> tuple[int, ...]:
    """``sequences``, then again and again half of that, as even numbers, and ``least`` at the end."""
    if sequences <= least:
        return (sequences,)
    return (sequences, *fewer(max(least, sequences // 4 * 2), least))


def _open(
    file: BaseFile,
    sequences: Sequence[int],
    length: int,
    threads: int,
    exact: bool,
    devices: Sequence[str],
    layers: int,
    refused: str,
    mixes: bool,
    first: int,
    half: bool,
) -> Opened:
    model = load_model(file, devices, layers)
    *larger, least = sequences
    card = bool(devices)
    make = partial(LlamaContext, model, file.names, length=length, threads=threads, exact=exact)
    make = partial(make, card=card, mixes=mixes, first=first, half=half and not card)
    for count in larger:
        try:
            return Opened(make(sequences=count), layers, refused)
        except NoRoom as error:
            refused = refused or error.message
    try:
        return Opened(make(sequences=least), layers, refused)
    except NoRoom:
        llama().llama_model_free(model)
        raise
