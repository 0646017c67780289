"""A base's tensors, and checks of its files.

safetensors' numpy side lacks bfloat16. Format: https://github.com/huggingface/safetensors#format. Imports numpy,
tokenizers and jinja2 late, so that screens may count parameters.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import AdapterError, BaseModelError
from .config import FAMILIES, BaseConfig, quantised, quantised_as, read_config
from .find import CONFIG, BaseModel, find_base, weight_files

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""bfloat16 as its bits."""
BYTES = {kind: int(dtype[2:]) for kind, dtype in STORED.items()}
OTHERS = "Configuration and weights belong to different models"


@dataclass(frozen=True)
class StoredTensor:
    """The place of one tensor in a file."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the file."""

    @property
    def end(self) -> int:
        return self.offset + math.prod(self.shape) * BYTES[self.kind]

    def read(self) -> NDArray[Any]:
        """A copy, as it is stored."""
        import numpy as np

        raw = np.fromfile(self.file, STORED[self.kind], math.prod(self.shape), offset=self.offset)
        if raw.size != math.prod(self.shape):
            raise BaseModelError("ends too early; it was probably not copied whole.", where=str(self.file))
        return raw.reshape(self.shape)

    def load(self) -> Array:
        """A copy, as float32."""
        import numpy as np

        raw = self.read()
        return widen(raw) if self.kind == "BF16" else raw.astype(np.float32, copy=False)

    def rows(self, start: int, stop: int) -> StoredTensor:
        """These rows of a matrix."""
        width = math.prod(self.shape[1:])
        return replace(self, shape=(stop - start, width), offset=self.offset + start * width * BYTES[self.kind])


def widen(bits: NDArray[np.uint16]) -> Array:
    """bfloat16 bits as float32: the same upper half, so exact."""
    import numpy as np

    wide = bits.astype(np.uint32)
    wide <<= 16  # in place: an embedding of 150,000 rows takes half a gigabyte
    return wide.view(np.float32)


def narrow(values: Array, kind: str) -> NDArray[Any]:
    """``values`` as they are stored in this kind, rounded to the nearest, ties to even; changes ``values``."""
    import numpy as np

    if kind != "BF16":
        return values.astype(STORED[kind])
    bits = values.view(np.uint32)
    bits += 0x7FFF + (bits >> 16 & 1)
    return (bits >> 16).astype("<u2")


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The place of every tensor in a safetensors file. Raises ``BaseModelError``."""
    tensors = {}
    try:
        with open(file, "rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(length)) if length < file.stat().st_size else None
        if not isinstance(header, dict):
            raise ValueError("its header is longer than the file")
        header.pop("__metadata__", None)
        for name, entry in header.items():
            method = quantised_as(name, entry["dtype"])
            if method:
                raise quantised(file.parent, f"{file.name} has {name} as {entry['dtype']}", method)
            if entry["dtype"] not in STORED:
                raise ValueError(f"tensor {name} is stored as {entry['dtype']}, marlaas reads {', '.join(STORED)}")
            shape, start = tuple(entry["shape"]), entry["data_offsets"][0]
            if not all(isinstance(size, int) and size >= 0 for size in (*shape, start)):
                raise ValueError(f"tensor {name} has no shape or place")
            tensors[name] = StoredTensor(file, entry["dtype"], shape, 8 + length + start)
    except BaseModelError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError) as error:
        raise BaseModelError(
            f"the weights cannot be read: {error}.", "Copy or download the file again.", where=str(file)
        ) from error
    return tensors


class Weights(dict[str, StoredTensor]):
    """A model's tensors by Hugging Face's names. Raises ``BaseModelError`` on damaged or unknown files."""

    def __init__(self, files: Iterable[Path]) -> None:
        super().__init__({name: tensor for file in files for name, tensor in read_header(file).items()})

    def __missing__(self, name: str) -> StoredTensor:
        folder = next((tensor.file.parent for tensor in self.values()), "the folder")
        raise missing(name, str(folder))

    def load(self, name: str) -> Array:
        return self[name].load()


def missing(name: str, where: str) -> BaseModelError:
    """The error for a missing tensor."""
    cause = f"the weights hold no {name}, which config.json makes them have."
    return BaseModelError(cause, f"{OTHERS}, or a file is missing.", where=where)


def linear_shapes(config: BaseConfig) -> dict[str, tuple[int, int]]:
    """(out, in) of linear layers of ``FAMILIES`` for LoRA, by Hugging Face's path."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    block = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes = {f"model.layers.{n}.{name}": shape for n in range(config.layers) for name, shape in block.items()}
    if not config.tie_word_embeddings:  # a tied head is the embedding itself, which llama.cpp cannot adapt
        shapes["lm_head"] = (config.vocab_size, hidden)
    return shapes


ATTENTION, MLP = "attention", "mlp"


def targeted(modules: Iterable[str], targets: Sequence[str]) -> list[str]:
    """The modules that get an adapter: those of a target; all without ``targets``.

    A target is ``ATTENTION``, ``MLP``, a module's path, or the end of one, such as ``q_proj``. Raises ``AdapterError``
    for a target that no module has.
    """
    modules = list(modules)
    for target in targets:
        if not any(_is_of(module, target) for module in modules):
            names = ", ".join(dict.fromkeys(module.rpartition(".")[2] for module in modules))
            raise AdapterError(
                f"No linear layer of the base is called {target!r}, which 'targets' names.",
                f"There are {ATTENTION}, {MLP}, {names}.",
            )
    return [module for module in modules if not targets or any(_is_of(module, target) for target in targets)]


def _is_of(module: str, target: str) -> bool:
    kind = ATTENTION if "attn" in module or "attention" in module else MLP
    return target in (kind, module) or module.endswith(f".{target}")


def tensor_shapes(config: BaseConfig) -> dict[str, tuple[int, ...]]:
    """Of transformers' model of ``FAMILIES``, by name in the folder."""
    hidden, size = config.hidden_size, config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    shapes["model.norm.weight"] = (hidden,)
    biased: tuple[str, ...] = ("q_proj", "k_proj", "v_proj") if config.architecture == "qwen2" else ()
    if config.attention_bias:
        biased = ("q_proj", "k_proj", "v_proj", "o_proj")
    if config.mlp_bias:
        biased += ("gate_proj", "up_proj", "down_proj")
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.architecture == "qwen3":
        norms |= {"self_attn.q_norm": size, "self_attn.k_norm": size}
    for number in range(config.layers):
        shapes |= {f"model.layers.{number}.{norm}.weight": (length,) for norm, length in norms.items()}
    for module, shape in linear_shapes(config).items():
        shapes[f"{module}.weight"] = shape
        if module.endswith(biased) and biased:
            shapes[f"{module}.bias"] = shape[:1]
    return shapes


def unadapted(config: BaseConfig) -> str:
    """What LoRA leaves unchanged in a mixture of experts; empty for others.

    transformers keeps experts in 3-D tensors, no linear layers to PEFT.
    """
    if config.experts < 2:
        return ""
    return (
        f"The base is a mixture of {config.experts} experts ({config.architecture}): LoRA adapts its attention, and"
        " shared experts if it has any. The routed experts stay as they are."
    )


def pairs(adapter: dict[str, Array]) -> Iterator[tuple[str, Array, Array]]:
    """(module, A (r, in), B (out, r)), sorted. Raises ``AdapterError`` if A or B is missing."""
    for module in sorted({name.rpartition(".lora_")[0] for name in adapter}):
        try:
            yield module, adapter[f"{module}.lora_A"], adapter[f"{module}.lora_B"]
        except KeyError as error:
            raise AdapterError(f"The adapter has no {error.args[0]}.") from error


def check_adapter(config: BaseConfig, adapter: dict[str, Array]) -> None:
    """Raise ``AdapterError`` unless every tensor fits a linear layer of the base.

    For unknown architectures the loading program refuses.
    """
    if not adapter:
        raise AdapterError("The adapter is empty.")
    for name in adapter:
        if not name.endswith((".lora_A", ".lora_B")):
            raise AdapterError(f"The adapter's tensor {name} is no LoRA matrix.")
    shapes = linear_shapes(config)
    for module, a, b in pairs(adapter):
        if config.architecture not in FAMILIES:
            if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
                raise AdapterError(f"The adapter's {module} has A {a.shape} and B {b.shape}, which make no product.")
            continue
        if module not in shapes:
            raise AdapterError(f"The adapter changes {module}, which this base model has not or cannot adapt.")
        (out, into), rank = shapes[module], a.shape[0]
        if a.shape != (rank, into) or b.shape != (out, rank):
            raise AdapterError(
                f"The adapter's {module} has A {a.shape} and B {b.shape}; this base model needs "
                f"A ({rank}, {into}) and B ({out}, {rank}).",
                "It was trained on another base model.",
            )


def parameters(base: BaseModel) -> int:
    """From its files: plans for many nodes ask for it per node."""
    return _count(base.path, base.config.tie_word_embeddings, base.fingerprint)


def count_parameters(name: str | Path) -> int:
    """As ``parameters``, without the fingerprint.

    Raises ``BaseModelError`` if the base is missing or unreadable.
    """
    folder = find_base(name)
    return _count(folder, read_config(folder / CONFIG).tie_word_embeddings, "")


@lru_cache(8)
def _count(folder: Path, tied: bool, _fingerprint: str) -> int:
    """A tied head counts once."""
    tensors = Weights(weight_files(folder))
    tied = tied and any(name.endswith(EMBEDDINGS) for name in tensors)
    return sum(math.prod(tensor.shape) for name, tensor in tensors.items() if not (tied and name == "lm_head.weight"))


EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
VOCABULARIES = ("vocab.json", "merges.txt", "tokenizer.model", "vocab.txt", "spiece.model")
"""transformers makes a ``tokenizer.json`` from these."""
FILLED = 0.9
"""Of an embedding's rows: padding is a few per cent at most."""


def check_base(base: BaseModel) -> None:
    """Raise ``BaseModelError`` for the first fault of the base's files; quick.

    Reads headers, and values only of a head that should be the embedding.
    """
    from .templates import load_template

    shapes: dict[str, tuple[int, ...]] = {}
    for file in base.weight_files:
        tensors, size = read_header(file), file.stat().st_size
        end = max((tensor.end for tensor in tensors.values()), default=0)
        if size < end:
            cause = f"the weights are cut short: {size} bytes of {end}."
            raise BaseModelError(cause, "Copy or download the file again.", where=str(file))
        twice = next((name for name in tensors if name in shapes), None)
        if twice:
            raise BaseModelError(
                f"the weights hold {twice} twice, the second time in {file.name}.",
                "Take the model's files again; one of them belongs to another model.",
                where=str(base.path),
            )
        shapes |= {name: tensor.shape for name, tensor in tensors.items()}
    rows = base.config.vocab_size
    embedding = next((shape for name, shape in shapes.items() if name.endswith(EMBEDDINGS) and len(shape) == 2), None)
    if embedding is not None and embedding[0] != rows:
        raise BaseModelError(
            f"the embedding has {embedding[0]} rows, but its config.json says vocab_size = {rows}.",
            f"{OTHERS}, or the embedding was resized; set vocab_size to the number of rows only if you know that it"
            " was.",
            where=str(base.path),
        )
    check_tokenizer(base.path, rows)
    if base.config.architecture in FAMILIES:
        _check_tensors(base, shapes)
    load_template(base.path)


def _check_tensors(base: BaseModel, shapes: dict[str, tuple[int, ...]]) -> None:
    """For ``FAMILIES``: exactly those of transformers' model."""
    where, expected = str(base.path), tensor_shapes(base.config)
    layers = {int(number) for name in shapes for number in re.findall(r"^model\.layers\.(\d+)\.", name)}
    if layers != set(range(base.config.layers)):
        cause = f"the weights have {len(layers)} layers, but its config.json says num_hidden_layers ="
        raise BaseModelError(f"{cause} {base.config.layers}.", f"{OTHERS}.", where=where)
    for name, shape in expected.items():
        if name not in shapes:
            raise missing(name, where)
        if shapes[name] != shape:
            cause = f"the weights hold {name} with the shape {shapes[name]}, and config.json makes it {shape}."
            raise BaseModelError(cause, f"{OTHERS}.", where=where)
    for name in shapes:  # the inner part of the model; further heads are no part of a language model
        if name.startswith("model.") and name not in expected and not name.endswith("inv_freq"):
            raise BaseModelError(
                f"the weights hold {name}, which transformers' {base.config.architecture} model does not have.",
                "Correct the switch of config.json that gives it one, or take the model's files again.",
                where=where,
            )
    if base.config.tie_word_embeddings and "lm_head.weight" in shapes and not _tied(base):
        raise BaseModelError(
            "config.json says tie_word_embeddings = true, but lm_head.weight has other values than the embedding.",
            "Set tie_word_embeddings to false if the head is right: transformers 5 uses the head, earlier ones do not.",
            where=where,
        )


def _tied(base: BaseModel) -> bool:
    """True if head and embedding hold the same values; reads the disk, without copies."""
    import numpy as np

    weights = Weights(base.weight_files)
    head, embedding = weights["lm_head.weight"], weights["model.embed_tokens.weight"]
    if head.kind != embedding.kind:
        return np.array_equal(head.load(), embedding.load())
    left, right = (np.memmap(t.file, STORED[t.kind], "r", t.offset, t.shape) for t in (head, embedding))
    return np.array_equal(left, right)


def check_tokenizer(folder: Path, rows: int) -> None:
    """Raise ``BaseModelError`` unless the tokenizer fits an embedding of ``rows`` and has its end tokens."""
    known = token_ids(folder)
    largest = max(known, default=-1)
    if not FILLED * rows <= largest + 1 <= rows:
        resize = ", or resize the embedding (transformers: model.resize_token_embeddings)" if largest >= rows else ""
        raise BaseModelError(
            f"the tokenizer does not match its embedding: it knows {largest + 1:,} tokens, but the embedding has"
            f" {rows:,} rows.",
            f"Take the tokenizer that came with these weights{resize}.",
            where=str(folder),
        )
    for name in (CONFIG, "generation_config.json"):
        try:
            ends = read_json(folder / name).get("eos_token_id")
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
        for end in ends if isinstance(ends, list) else [ends]:
            if isinstance(end, int) and end not in known:
                raise BaseModelError(
                    f"ends texts with the token {end}, which the tokenizer beside it does not know.",
                    "Take the tokenizer that came with these weights, or mend eos_token_id.",
                    where=str(folder / name),
                )


def token_ids(folder: Path) -> frozenset[int]:
    """The tokenizer's ids. Raises ``BaseModelError`` if it is missing or damaged."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        sources = [name for name in VOCABULARIES if (folder / name).is_file()]
        hint = (
            f'Make one from {" and ".join(sources)}: python -c "from transformers import AutoTokenizer;'
            f" AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')\""
            if sources
            else "Copy it from where the weights came from."
        )
        raise BaseModelError("the base model folder has no tokenizer.json.", hint, where=str(folder))
    try:
        text = path.read_text("utf-8")
        known = Tokenizer.from_str(text).get_vocab(with_added_tokens=True).values()
        # The library renumbers added tokens after a gap; the renderer goes by the file.
        added = [int(token["id"]) for token in json.loads(text).get("added_tokens") or ()]
    except Exception as error:  # the tokenizers package raises bare Exceptions
        raise BaseModelError(
            f"is no tokenizer: {error}.", "Copy or download the file again.", where=str(path)
        ) from error
    return frozenset((*known, *added))


def check_teacher(folder: Path, base: Path) -> None:
    """Raise ``BaseModelError`` unless ``folder`` holds a base whose tokens are those of ``base``."""
    read_config(folder / CONFIG)
    mine, its = (read_json(each / "tokenizer.json") for each in (base, folder) if token_ids(each))
    vocabularies = [(tokenizer["model"]["vocab"], tokenizer["model"].get("merges")) for tokenizer in (mine, its)]
    added = [{token["id"]: token["content"] for token in each.get("added_tokens") or ()} for each in (mine, its)]
    if vocabularies[0] != vocabularies[1] or any(added[1].get(id, text) != text for id, text in added[0].items()):
        raise BaseModelError(
            f"its tokenizer is not that of the base in {base}, so it cannot score the base's tokens.",
            "Choose a teacher of the same family.",
            where=str(folder),
        )


def read_json(path: Path) -> Any:
    """Raises ``OSError``, ``ValueError`` and ``RecursionError``."""
    return json.loads(path.read_text("utf-8"))
