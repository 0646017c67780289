"""The base in llama.cpp, and the sampler over it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...devices.limits import LentCores, Loan
from ...errors import BaseModelError
from ...models.config import BITS, WRITTEN, halves_memory, nearest
from ...models.find import BaseModel, load_base
from ...models.gguf import (
    GgufNames,
    base_bytes,
    brought_names,
    ensure,
    is_whole,
    names_of,
    path_of,
    plain_layers,
    remove,
    write_base,
)
from ...models.memory import LEAST, layers_on_card
from ...models.weights import parameters
from ..batching.context import SPARE
from ..batching.sampler import FIRST, BatchingSampler
from .context import LlamaContext, NoRoom, give_back
from .native import handles, last_errors, llama


@dataclass(frozen=True)
class BaseFile:
    """The file of a base for a ``LlamaContext``."""

    path: Path
    names: GgufNames
    ours: bool
    """Written by marlaas, and can be again."""


def base_file(base: BaseModel, folder: Path, weights: str = "f32", gguf: str = "", threads: int = 1) -> BaseFile:
    """``gguf``, else ours in precision ``weights``, in ``folder``. Raises ``BaseModelError``."""
    if gguf:
        path = Path(gguf).expanduser()
        return BaseFile(path, brought_names(path, base.config), ours=False)
    names = names_of(base.config)
    return BaseFile(ensure_base_gguf(base, folder, weights, threads), names, ours=True)


def ensure_base_gguf(base: BaseModel, folder: Path, weights: str = "f32", threads: int = 1) -> Path:
    """``<folder>/<fingerprint>-<weights>.gguf``, written if missing or cut.

    Raises ``BaseModelError`` for architectures beyond our writer, or if writing fails.
    """
    path, plain = (path_of(base, folder, kind) for kind in (weights, "f32"))
    if is_whole(path):
        return path
    remove(path)
    size = base_bytes(base, weights if weights in WRITTEN else "f32")
    if weights in WRITTEN:
        return ensure(path, size, partial(write_base, base, weights=weights))
    quantised = int(size / 32 * (BITS[weights] + 1))  # one bit more: matrices that do not fit the type get a finer one
    if is_whole(plain):
        return ensure(path, quantised, lambda target: quantise(plain, target, weights, threads))
    return ensure(path, size + quantised, partial(_by_way_of_float32, base, weights, threads))


def _by_way_of_float32(base: BaseModel, weights: str, threads: int, target: Path) -> None:
    between = target.with_name(f"{target.name}.f32")
    try:
        write_base(base, between)
        quantise(between, target, weights, threads)
    finally:
        between.unlink(missing_ok=True)


TYPES = {"q8_0": 7, "q6_k": 18, "q5_k_m": 17, "q4_k_m": 15}
"""LLAMA_FTYPE_MOSTLY_… in llama.h, by the names of ``engine/models/config.py``."""


def quantise(source: Path, target: Path, weights: str, threads: int = 1) -> None:
    """Write matrices in one of ``TYPES``. Raises ``BaseModelError`` if llama.cpp cannot.

    Unsuitable row lengths get a finer type.
    """
    library = llama()
    parameters = library.llama_model_quantize_default_params()
    parameters.ftype = TYPES[weights]
    parameters.nthread = threads
    last_errors()
    code = library.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(parameters))
    if code != 0:
        raise BaseModelError(
            f"llama.cpp could not write the base model as {weights}{last_errors()}.", "Is there space on the disk?"
        )


ALL = -1
"""All layers and the output matrix."""
DAMAGED = "Delete it; it is written again."
BROUGHT = "It may be damaged, or of an architecture that this llama.cpp does not know."


def load_model(file: BaseFile, devices: Sequence[str] = (), layers: int = ALL) -> Any:
    """Read the base; its last ``layers`` layers go to ``devices``, in even parts.

    Raises ``BaseModelError`` if it is unreadable or no decoder with attention, or memory is short; ``ConfigError`` for
    a missing card.
    """
    library = llama()
    settings = library.llama_model_default_params()
    # Repacked weights double memory, tie last bits to the number of rows, and end the process on AMX
    # (https://github.com/ggml-org/llama.cpp/issues/20824).
    settings.use_extra_bufts = False
    chosen = handles(devices)  # kept in a variable, so that it lives as long as the call
    settings.devices = ctypes.addressof(chosen)
    settings.n_gpu_layers = layers if devices else 0
    last_errors()
    model = library.llama_model_load_from_file(str(file.path).encode(), settings)
    if not model:
        raise BaseModelError(f"llama.cpp cannot load {file.path}{last_errors()}.", DAMAGED if file.ours else BROUGHT)
    kinds = {
        "has recurrent layers": library.llama_model_is_recurrent(model) or library.llama_model_is_hybrid(model),
        "has an encoder": library.llama_model_has_encoder(model),
        "does not write from left to right": library.llama_model_is_diffusion(model),
    }
    reason = next((kind for kind, is_one in kinds.items() if is_one), "")
    if reason:
        library.llama_model_free(model)
        raise BaseModelError(
            f"the model {reason}; marlaas samples decoders with attention only.",
            "Choose another base.",
            where=str(file.path),
        )
    return model


@dataclass(frozen=True)
class Opened:
    """The opened context with its sizes."""

    context: LlamaContext
    layers: int
    """Number of layers on cards, or ``ALL``."""
    refused: str = ""
    """The first choice's refusal."""


def open_base(
    file: BaseFile,
    sequences: int,
    length: int,
    threads: int = 1,
    exact: bool = False,
    devices: Sequence[str] = (),
    layers: Sequence[int] = (ALL,),
    mixes: bool = False,
    first: int = 0,
    half: bool = False,
) -> Opened:
    """Open the base with ``sequences`` of ``length`` tokens, or fewer if memory is short.

    Tries ``layers`` in order on ``devices``, at last only the processor. There ``first`` sequences get memory (0: all);
    ``half``: float16 keys and values. Raises ``BaseModelError`` if nothing fits or there is no base; ``ConfigError``
    for a missing card.
    """

    refused = ""

    def opened(cards: Sequence[str], part: int) -> Opened:
        nonlocal refused
        model, card, count = load_model(file, cards, part), bool(cards), sequences
        settings = length, threads, exact, card, mixes, first, half and not card
        while True:
            try:
                return Opened(LlamaContext(model, file.names, count, *settings), part, refused)
            except NoRoom as error:
                refused = refused or error.message
                if count <= LEAST + SPARE:
                    llama().llama_model_free(model)
                    raise
                count = max(LEAST + SPARE, count // 4 * 2)

    for part in layers if devices else ():
        try:
            return opened(devices, part)
        except BaseModelError as error:
            refused = refused or error.message
    return opened((), 0)


MOST = 256 - SPARE
"""LLAMA_MAX_SEQ, less the spare ones."""


class LlamaSampler(BatchingSampler):
    """``protocol.Sampler`` on llama.cpp."""

    def __init__(
        self,
        base: str,
        cache: str,
        sequences: int = 128,
        context: int = 512,
        threads: int = 1,
        exact: bool = False,
        weights: str = "f32",
        gguf: str = "",
        devices: Sequence[str] = (),
        memory: int = 0,
        mixes: bool = True,
        loan: Loan | None = None,
        first: int = FIRST,
    ) -> None:
        """Load the base ``base``; files made from it stay in ``cache``.

        - ``sequences``: conversations, rounded up to even; ``context``: their most tokens, rounded up to a multiple
          of 256. Short memory allows fewer (``limits``).
        - ``first``: with memory for 256 tokens from the start; 0, and on a card: all.
        - ``weights``: one of ``PRECISIONS``; ``gguf``: the user's file instead.
        - ``exact``: float32 attention, and cache if matrices are.
        - ``mixes``: versions share calls on the processor; results are the same.
        - ``devices``: cards, with the layers that fit into ``memory`` bytes of each (0: all). Last bits depend on
          other rows.
        - ``threads``: cores without cards; a ``loan`` lends idle ones to a trainer.

        Raises ``BaseModelError`` or ``ConfigError``.
        """
        model = load_base(base)
        count = min(max(sequences + sequences % 2, 2), MOST)
        length = min(context, model.config.context_length)
        file = base_file(model, Path(cache), weights, gguf, threads)
        room, size = memory * len(devices), file.path.stat().st_size
        layers = model.config.layers + 1
        if room:
            layers = layers_on_card(model.config, size, count + SPARE, length, exact, room)
        opened = open_base(
            file,
            count + SPARE,
            length,
            threads,
            exact,
            devices,
            [part for part in (layers, layers // 2) if part],
            mixes and plain_layers(file.path, file.names),
            min(first + first % 2, count) + SPARE if first else 0,
            halves_memory(nearest(8 * size / parameters(model)) if gguf else weights),
        )
        give_back()  # the memory for writing and loading the file
        held = f"{opened.context.sequences - SPARE} conversations of {length} tokens instead of {count}"
        held += f", with {opened.layers or 'no'} layers on the card" if devices else ""
        note = f"Memory was short: the sampler holds {held}. {opened.refused}" if opened.refused else ""
        super().__init__(model, opened.context, length, LentCores(loan) if loan else None, note)
