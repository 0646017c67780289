"""An adapter in the format of Hugging Face PEFT: a folder with a configuration, safetensors weights and a README.

numpy only, so that an export needs no torch. Format:
https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..errors import AdapterError
from .statefile import PolicyState, StateHeader
from .tensor_file import Array

CONFIG, WEIGHTS, README = "adapter_config.json", "adapter_model.safetensors", "README.md"
OURS = "marlaas"
"""Key of the state file's header in the weights' metadata, so that training can begin from the folder."""
_PREFIX, _SUFFIX = "base_model.model.", ".weight"


def write_peft_folder(folder: Path, state: PolicyState, base: Path, task: str) -> list[Path]:
    """Write the three files into an existing folder and return their paths; raises ``OSError`` if the disk refuses."""
    contents = {
        CONFIG: (json.dumps(peft_config(state, base), indent=2) + "\n").encode(),
        WEIGHTS: save(peft_tensors(state.adapter), metadata={"format": "pt", OURS: json.dumps(asdict(state.header))}),
        README: readme(state.header, base, task).encode(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def read_peft_folder(folder: Path) -> PolicyState:
    """The adapter in a folder that marlaas has written, without moments.

    Raises ``AdapterError`` where there is none, where another program wrote it, for then its base is not known, and
    where it holds what is no finite number.
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
    """The configuration that PEFT needs to rebuild the layers; what is left out has PEFT's default."""
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
    """The matrices under PEFT's names: ``base_model.model.<module>.lora_A.weight``."""
    return {
        f"{_PREFIX}{name}{_SUFFIX}": np.ascontiguousarray(array, dtype=np.float32) for name, array in adapter.items()
    }


def readme(header: StateHeader, base: Path, task: str) -> str:
    """The text of the README. Names are quoted as JSON, because a task's author may write anything."""
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
| marlaas | {_own_version()} |

It fits only the base model with this fingerprint. `USE.md` has the lines that use it.
"""


def _own_version() -> str:
    try:
        return version("marlaas")
    except PackageNotFoundError:
        return "of a source tree"
