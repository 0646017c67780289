"""Exports an adapter for PEFT and llama.cpp, by itself or merged into its base."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from marlaas.plugins.durable import tree_to_disk

from ..errors import AdapterError, BaseModelError
from ..models import templates
from ..models.config import FAMILIES
from ..models.find import CONFIG as BASE_CONFIG, INDEX, BaseModel, hub_name, load_base, run_apart
from ..models.gguf import (
    Fields,
    brought_names,
    check_space,
    names_like,
    names_of,
    write_adapter,
    write_base,
)
from ..models.tokenizer import tokenizer_fields
from ..models.weights import VOCABULARIES, Weights, check_adapter, narrow, pairs
from .peft_folder import CONFIG, OURS, PREFIX, WEIGHTS
from .statefile import Array, PolicyState, pieces, read_expected, read_state
from .use import MODELFILE, USE, Exported, modelfile, use_text

# numpy only: an export needs no torch. Format: https://huggingface.co/docs/peft/developer_guides/checkpoint

README = "README.md"


def write_peft_folder(folder: Path, state: PolicyState, base: str) -> None:
    """``base``: the base's folder, or its name on the Hugging Face hub. Raises ``OSError``."""
    (folder / CONFIG).write_text(json.dumps(peft_config(state, base), indent=2) + "\n", "utf-8")
    metadata = {"format": "pt", OURS: json.dumps(asdict(state.header))}
    (folder / WEIGHTS).write_bytes(b"".join(pieces(peft_tensors(state.adapter), metadata)))


def peft_config(state: PolicyState, base: str) -> dict[str, Any]:
    """PEFT's configuration; other values are its defaults."""
    alpha, hub = state.header.alpha, hub_name(base)
    modules = {name.rpartition(".lora_")[0] for name in state.adapter}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": hub.repository if hub else base,
        "revision": hub.revision if hub else None,
        "r": state.header.rank,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({module.rpartition(".")[2] for module in modules}),
        "inference_mode": True,
    }


def peft_tensors(adapter: dict[str, Array]) -> dict[str, Array]:
    """Matrices by PEFT's names: ``base_model.model.<module>.lora_A.weight``."""
    return {f"{PREFIX}{name}.weight": np.ascontiguousarray(array, dtype=np.float32) for name, array in adapter.items()}


CARRIED = (
    *(BASE_CONFIG, INDEX, "generation_config.json", "tokenizer.json", "added_tokens.json", "LICENSE*", *VOCABULARIES),
    *(templates.FILE, templates.SETTINGS, templates.TOKENS, templates.PROCESSOR, f"{templates.FURTHER}/*.jinja"),
)
"""Files of a base next to its weights."""
VALUES = 1 << 22
"""Weights in memory at a time."""


def write_merged_folder(folder: Path, state: PolicyState, base: BaseModel) -> None:
    """Write the base's files with W + alpha / rank · B A in place of each adapted layer's W.

    The sum is computed in float32 and rounded once to the base's own type. Raises ``AdapterError``,
    ``BaseModelError`` and ``OSError``.
    """
    check_adapter(base.config, state.adapter)
    for source in [file for pattern in CARRIED for file in sorted(base.path.glob(pattern))] + [*base.weight_files]:
        target = folder / source.relative_to(base.path)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, target)
    weights, scale = Weights(base.weight_files), np.float32(state.header.alpha / state.header.rank)
    for module, a, b in pairs(state.adapter):
        name, shape = f"{module}.weight", (len(b), a.shape[1])
        if name not in weights or weights[name].shape != shape:
            raise AdapterError(
                f"The adapter changes {name} of the shape {shape}, and the base's files hold no such tensor: they have"
                " other names or shapes than transformers' model.",
                "Export without --merge, and merge with PEFT.",
            )
        rows = max(1, VALUES // shape[1])
        with open(folder / weights[name].file.name, "r+b") as file:
            for start in range(0, len(b), rows):
                part = weights[name].rows(start, min(start + rows, len(b)))
                merged = part.load() + np.matmul(scale * b[start : start + rows], a, dtype=np.float32)
                if not np.abs(merged).max() <= (65504 if part.kind == "F16" else 3e38):  # also false for NaN
                    raise AdapterError(f"The merged values of {name} are too large for {part.kind}.")
                file.seek(part.offset)
                file.write(narrow(merged, part.kind).tobytes())


GGUF, MERGED_GGUF = "adapter.gguf", "merged.gguf"
CHECK = "marlaas.engine.models.convert"
"""Compares tokens, in a process of its own: llama.cpp may end it."""


def export_adapter(
    state_path: Path,
    base_folder: Path,
    out_dir: Path,
    *,
    merge: bool = False,
    gguf: bool = False,
    card: str = "",
    expected: str = "",
    base_name: str = "",
    base_gguf: str = "",
    question: str = "",
) -> list[Path]:
    """Write the folder ``out_dir``, whole or not at all; returns its files.

    ``merge``: a whole model. ``card``: the README. ``expected``: the adapter's checksum. ``base_name``: the base's on
    the Hugging Face hub; ``base_gguf``: the user's; ``question``: the example in ``USE.md``. Raises ``AdapterError``
    if ``out_dir`` exists, the state file is damaged or belongs to another base, or the disk refuses;
    ``BaseModelError`` for an unreadable base, or an architecture or tokenizer unknown to llama.cpp.
    """
    if out_dir.exists() or out_dir.is_symlink():
        raise AdapterError("exists already, and nothing is overwritten.", "Choose another folder.", where=str(out_dir))
    state = read_expected(state_path, expected) if expected else read_state(state_path, moments=False)
    base = load_base(base_folder)
    if base.fingerprint != state.header.base:
        raise AdapterError(
            f"The adapter belongs to the base model {state.header.base}, but {base.path} holds {base.fingerprint}."
        )
    fields = _tokenizer(base) if merge and gguf else {}
    brought = Path(base_gguf).expanduser().absolute() if base_gguf and gguf and not merge else None
    exported = Exported(out_dir.absolute(), base.path.resolve(), state.header.rank, None, brought, question, merge)
    partial, file = out_dir.with_name(f".{out_dir.name}.{os.getpid()}"), MERGED_GGUF if merge else GGUF
    if gguf:
        exported = replace(exported, gguf=exported.folder / file)
    try:
        partial.mkdir(parents=True)
        if merge:
            size = sum(path.stat().st_size for path in base.weight_files)
            check_space(partial.parent, size * (1 + gguf))
            write_merged_folder(partial, state, base)
            if gguf:
                _write_gguf(load_base(partial), partial / file, fields | {"general.name": out_dir.name})
        else:
            write_peft_folder(partial, state, base_name or str(exported.base))
            if gguf:
                names = brought_names(brought, base.config) if brought else names_like(base.config)
                write_adapter(names, state.adapter, state.header.alpha, partial / file)
        texts = {README: card, USE: use_text(exported), MODELFILE: modelfile(exported)}
        for name, text in texts.items():
            if text:
                (partial / name).write_text(text, encoding="utf-8")
        tree_to_disk(partial)
        os.rename(partial, out_dir)
    except OSError as error:
        why = error.strerror or "the disk took a part of it only"  # numpy's errors have no reason
        raise AdapterError(f"the folder could not be written: {why}.", where=str(out_dir)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return sorted(path for path in out_dir.rglob("*") if path.is_file())


def _tokenizer(base: BaseModel) -> Fields:
    """The fields of a merged GGUF; called before gigabytes are written."""
    try:
        names_of(base.config)
        return tokenizer_fields(base.path, base.config.vocab_size)
    except BaseModelError as error:
        raise _unconvertible(base, error) from error


def _write_gguf(merged: BaseModel, path: Path, fields: Fields) -> None:
    try:
        write_base(merged, path, "", fields)
        run_apart("llama.cpp", "", CHECK, str(path), str(merged.path / "tokenizer.json"))
    except BaseModelError as error:
        raise _unconvertible(merged, error) from error


def _unconvertible(base: BaseModel, error: BaseModelError) -> AdapterError:
    hint = "Leave --gguf out"
    if base.config.architecture not in FAMILIES:
        hint += ", and convert the merged folder with llama.cpp's convert_hf_to_gguf.py"
    return AdapterError(f"The merged model cannot become a GGUF: {error.cause}", f"{hint}.")
