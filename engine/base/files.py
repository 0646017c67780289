"""Which files of a folder are a base's weights, by the names that Hugging Face's libraries give them.

Standard library only; reads the index of shards, no weights.
"""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import BaseModelError

SCALES = {
    "fp8": (".weight_scale", "_scale_inv", ".input_scale", ".activation_scale"),
    "bitsandbytes": (".absmax", ".quant_map", ".quant_state", ".SCB"),
    "gptq or awq": (".qweight", ".qzeros", ".g_idx", ".scales", ".weight_packed", ".weight_zero_point"),
    "mxfp4": ("_blocks", "proj_scales"),
}
"""Parts of the names of tensors that belong to quantised weights."""
CONFIG, WHOLE_WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
GGUF_FILE = "model.gguf"
"""The file that a base was made from (``gguf/convert.py``), in the base's folder."""


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder that make up its weights, sorted by name; empty if it has none.

    As transformers chooses: ``model.safetensors``, else the files that its index names, else all there are. Raises
    ``BaseModelError`` for a damaged index and for files that it names and that are not there.
    """
    if (folder / WHOLE_WEIGHTS).exists():
        return (folder / WHOLE_WEIGHTS,)
    if not (folder / INDEX).exists():
        return tuple(sorted(path for path in folder.glob("*.safetensors") if path.exists()))
    names = indexed(folder / INDEX)
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise BaseModelError(
            f"the base model folder lacks {some(missing)}, which {INDEX} names.",
            "Copy it again, whole.",
            where=str(folder),
        )
    return tuple(folder / name for name in names)


def check_plain(folder: Path) -> None:
    """Raise ``BaseModelError`` for a folder without safetensors files."""
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise BaseModelError(
            "the base model folder holds pickled weights only (*.bin), and marlaas reads *.safetensors.",
            'Convert them: python -c "from transformers import AutoModelForCausalLM as M;'
            f" M.from_pretrained('{folder}').save_pretrained('{folder}')\".",
            where=str(folder),
        )
    raise BaseModelError("the base model folder holds no *.safetensors weights.", where=str(folder))


def quantised_as(name: str, dtype: str) -> str:
    """The method that a tensor of this name and stored type belongs to; empty for plain weights."""
    if dtype.startswith(("F8", "F4")):
        return "fp8"
    return next((method for method, ends in SCALES.items() if any(end in name for end in ends)), "")


def quantised(folder: Path, why: str, method: str = "") -> BaseModelError:
    """The refusal of a folder with quantised weights, with the line of Python that makes plain ones."""
    plain = f"{folder}-plain"
    load = {
        "fp8": f"M.from_pretrained('{folder}', quantization_config=C(dequantize=True), dtype='bfloat16')",
        "mxfp4": f"M.from_pretrained('{folder}', quantization_config=C(dequantize=True), dtype='bfloat16')",
        "bitsandbytes": f"M.from_pretrained('{folder}').dequantize()",
    }.get(method)
    if load is None:  # GPTQ, AWQ, compressed-tensors and others, which transformers cannot make plain
        line = f"from gptqmodel.utils.model_dequant import dequantize_model as d; d('{folder}', '{plain}')"
    else:
        kind = {"fp8": ", FineGrainedFP8Config as C", "mxfp4": ", Mxfp4Config as C"}.get(method, "")
        line = (
            f"from transformers import AutoModelForCausalLM as M, AutoTokenizer as T{kind}; m = {load};"
            f" m.config.__dict__.pop('quantization_config', 0); m.save_pretrained('{plain}');"
            f" T.from_pretrained('{folder}').save_pretrained('{plain}')"
        )
    return BaseModelError(
        f"the weights are quantised{f' ({method})' if method else ''}: {why}. marlaas trains on plain weights.",
        "Take the model that they were made from. Or make them plain"
        f'{"" if load else " (needs `pip install gptqmodel`)"}: python -c "{line}". If the weights are plain already,'
        " take quantization_config out of config.json.",
        where=str(folder),
    )


def indexed(index: Path) -> list[str]:
    """Names of the files in an index of shards, sorted. Raises ``BaseModelError`` for a damaged index."""
    try:
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError("it names no files")
    except OSError as error:
        raise BaseModelError(f"{index} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BaseModelError(f"{index} is no index of weights: {error}.", "Copy the base again, whole.") from error
    return sorted(names)


def some(names: list[str]) -> str:
    """The first of the names, and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
