"""Exports an adapter for PEFT and llama.cpp."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from marlaas.plugins.durable import tree_to_disk

from ..errors import AdapterError
from ..models.find import load_base
from ..models.gguf import brought_names, names_like, write_adapter
from .statefile import Array, PolicyState, StateHeader, read_expected, read_state
from .use import USE, Exported, use_text

# numpy only: an export needs no torch. Format: https://huggingface.co/docs/peft/developer_guides/checkpoint

CONFIG, WEIGHTS, README = "adapter_config.json", "adapter_model.safetensors", "README.md"
OURS = "marlaas"
"""The state file's header in the metadata, so that training can begin from the folder."""
_PREFIX, _SUFFIX = "base_model.model.", ".weight"


def write_peft_folder(folder: Path, state: PolicyState, base: Path, task: str) -> list[Path]:
    """The three files' paths. Raises ``OSError``."""
    contents = {
        CONFIG: (json.dumps(peft_config(state, base), indent=2) + "\n").encode(),
        WEIGHTS: save(peft_tensors(state.adapter), metadata={"format": "pt", OURS: json.dumps(asdict(state.header))}),
        README: readme(state.header, base, task).encode(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def read_peft_folder(folder: Path) -> PolicyState:
    """The adapter in a folder of marlaas, without moments.

    Raises ``AdapterError`` if there is none, it holds infinite numbers, or another program wrote it: its base is
    unknown.
    """
    path = folder / WEIGHTS
    try:
        with safe_open(path, framework="np") as file:
            header = StateHeader(**json.loads((file.metadata() or {})[OURS]))
            names = {key: key.removeprefix(_PREFIX).removesuffix(_SUFFIX) for key in file.keys()}  # noqa: SIM118
            state = PolicyState(header, {name: file.get_tensor(key) for key, name in names.items()})
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"the adapter cannot be read: {error}.", where=str(path)) from error
    except (KeyError, TypeError, ValueError) as error:
        raise AdapterError(
            "does not say which base it fits.",
            "`marlaas adapters export` of this version writes ones that do.",
            where=str(path),
        ) from error
    for name, array in state.adapter.items():
        if not np.isfinite(array).all():
            raise AdapterError(f"the adapter holds what is no finite number, in {name}.", where=str(path))
    return state


def peft_config(state: PolicyState, base: Path) -> dict[str, Any]:
    """PEFT's configuration; other values are its defaults."""
    alpha = state.header.alpha
    modules = {name.rpartition(".lora_")[0] for name in state.adapter}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": state.header.rank,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({module.rpartition(".")[2] for module in modules}),
        "inference_mode": True,
    }


def peft_tensors(adapter: dict[str, Array]) -> dict[str, Array]:
    """Matrices by PEFT's names: ``base_model.model.<module>.lora_A.weight``."""
    return {
        f"{_PREFIX}{name}{_SUFFIX}": np.ascontiguousarray(array, dtype=np.float32) for name, array in adapter.items()
    }


def readme(header: StateHeader, base: Path, task: str) -> str:
    """Names are quoted as JSON: authors may write anything."""
    return f"""---
base_model: {json.dumps(str(base))}
library_name: peft
---
# A LoRA adapter trained by marlaas

| | |
|---|---|
| task | {json.dumps(task).replace("|", "&#124;")} |
| step | {header.step} |
| rank, alpha | {header.rank}, {header.alpha:g} |
| base model | {json.dumps(str(base)).replace("|", "&#124;")} |
| base fingerprint | {header.base} |
| marlaas | {version("marlaas")} |

It fits only the base model with this fingerprint. `USE.md` has the lines that use it.
"""


GGUF = "adapter.gguf"


def export_adapter(
    state_path: Path,
    base_folder: Path,
    out_dir: Path,
    gguf: bool = False,
    task: str = "",
    expected: str = "",
    base_gguf: str = "",
    question: str = "",
) -> list[Path]:
    """Write the folder ``out_dir``, whole or not at all.

    ``expected``: the adapter's checksum; ``base_gguf``: the user's; ``question``: the example in ``USE.md``. Raises
    ``AdapterError`` if ``out_dir`` exists, the state file is damaged or belongs to another base, or the disk refuses;
    ``BaseModelError`` for an unreadable base or an architecture unknown to llama.cpp.
    """
    if out_dir.exists() or out_dir.is_symlink():
        raise AdapterError("exists already, and nothing is overwritten.", "Choose another folder.", where=str(out_dir))
    state = read_expected(state_path, expected) if expected else read_state(state_path, moments=False)
    base = load_base(base_folder)
    if base.fingerprint != state.header.base:
        raise AdapterError(
            f"The adapter belongs to the base model {state.header.base}, but {base.path} holds {base.fingerprint}."
        )
    partial = out_dir.with_name(f".{out_dir.name}.{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        files = write_peft_folder(partial, state, base.path.resolve(), task)
        exported = Exported(out_dir.absolute(), base.path.resolve(), state.header.rank, question=question)
        if gguf:
            brought = Path(base_gguf).expanduser().absolute() if base_gguf else None
            names = brought_names(brought, base.config) if brought else names_like(base.config)
            write_adapter(names, state.adapter, state.header.alpha, partial / GGUF)
            files.append(partial / GGUF)
            exported = replace(exported, gguf=exported.folder / GGUF, base_gguf=brought)
        (partial / USE).write_text(use_text(exported), encoding="utf-8")
        files.append(partial / USE)
        tree_to_disk(partial)
        os.rename(partial, out_dir)
    except OSError as error:
        raise AdapterError(f"the folder could not be written: {error.strerror}.", where=str(out_dir)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return [out_dir / file.name for file in files]
