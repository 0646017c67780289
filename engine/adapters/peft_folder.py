"""Adapters in PEFT's format as a start: ours, and those of other programs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from ..errors import AdapterError, BaseModelError
from ..models.config import FAMILIES, BaseConfig
from ..models.find import BaseModel
from ..models.weights import Weights, check_adapter, linear_shapes, pairs, targeted
from ..spec.task import PolicySpec
from .statefile import Array, PolicyState, StateHeader

# Format: https://huggingface.co/docs/peft/developer_guides/checkpoint

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
OURS = "marlaas"
"""The state file's header in the metadata of the weights, so that training can begin from the folder."""
PREFIX = "base_model.model."
_NAME = re.compile(r"(?P<module>.+)\.lora_(?P<half>[AB])(\.[^.]+)?\.weight")
"""Some programs leave the adapter's name in."""
UNSUPPORTED = {
    "use_dora": "DoRA, whose magnitudes the samplers do not know",
    "modules_to_save": "whole layers that were trained besides the matrices",
    "trainable_token_indices": "trained embeddings",
    "layer_replication": "repeated layers",
    "target_parameters": "matrices on parameters that are no linear layers",
    "alora_invocation_tokens": "activated LoRA, which counts from a token on",
    "use_qalora": "QALoRA",
    "lora_bias": "biases",
}
CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that also change the base's weights."""


@dataclass(frozen=True)
class Scaling:
    """The scale of each layer, by PEFT's configuration."""

    rank: int
    alpha: float
    rslora: bool = False
    alphas: Mapping[str, float] = field(default_factory=dict)

    def of(self, module: str, rank: int) -> float:
        keys = (key for key in self.alphas if re.match(rf"(.*\.)?({key})$", module))
        alpha = self.alphas[key] if (key := next(keys, "")) else self.alpha
        return alpha / (math.sqrt(rank) if self.rslora else rank)


def read_adapter(folder: Path, base: BaseModel) -> PolicyState:
    """The adapter in a folder that PEFT or a program with its format wrote, without moments.

    All layers get the same rank and scale. Raises ``AdapterError`` if it cannot be read, holds infinite numbers, does
    not fit ``base``, or has what LoRA matrices alone do not express.
    """
    path = folder / WEIGHTS
    try:
        with safe_open(path, framework="np") as file:
            header = (file.metadata() or {}).get(OURS)
        tensors = Weights([path])
        arrays = {name: tensors.load(name) for name in tensors}
    except (OSError, SafetensorError, BaseModelError) as error:
        if (folder / PICKLED).is_file():
            raise AdapterError(
                f"the adapter is in the old format, {PICKLED}.",
                "Load it with PEFT and save it again: that writes safetensors.",
                where=str(folder),
            ) from error
        raise AdapterError(f"the adapter cannot be read: {error}.", where=str(path)) from error
    adapter = {_name_of(name, base.config, path): array for name, array in arrays.items()}
    for name, array in adapter.items():
        if not np.isfinite(array).all():
            raise AdapterError(f"the adapter holds what is no finite number, in {name}.", where=str(path))
    if header is not None:
        try:
            state = PolicyState(StateHeader(**json.loads(header)), adapter)
        except (TypeError, ValueError) as error:
            raise AdapterError("its metadata is damaged.", "Export it again.", where=str(path)) from error
        if state.header.base != base.fingerprint:
            raise AdapterError("the adapter belongs to another base than this home's.", where=str(folder))
        return state
    try:
        check_adapter(base.config, adapter)
        if not all(array.size for array in adapter.values()):
            raise AdapterError("The adapter has matrices of rank 0.")
        if "lm_head.lora_A" in adapter:
            raise AdapterError("The adapter changes lm_head, the output layer, which marlaas does not adapt.")
    except AdapterError as error:
        raise AdapterError(error.cause, error.hint, where=str(path)) from error
    scaling = _read_scaling(folder / CONFIG)
    return _uniform(adapter, scaling, base.fingerprint)


def _name_of(key: str, config: BaseConfig, path: Path) -> str:
    """``<module>.lora_A`` or ``.lora_B``; other programs put other words before the layers."""
    match = _NAME.fullmatch(key)
    if match is None:
        raise AdapterError(f"the adapter holds {key}, which is no LoRA matrix of a linear layer.", where=str(path))
    module = match["module"].removeprefix(PREFIX)
    if config.architecture in FAMILIES and "layers." in module:
        module = f"model.layers.{module.partition('layers.')[2]}"
    return f"{module}.lora_{match['half']}"


def _read_scaling(path: Path) -> Scaling:
    """Raises ``AdapterError``."""
    try:
        config: dict[str, Any] = json.loads(path.read_text("utf-8"))
        scaling = Scaling(
            int(config["r"]),
            float(config["lora_alpha"]),
            bool(config.get("use_rslora")),
            {str(key): float(alpha) for key, alpha in (config.get("alpha_pattern") or {}).items()},
        )
        start = config.get("init_lora_weights")
        for key in scaling.alphas:
            re.compile(key)
        if scaling.rank < 1 or not all(map(math.isfinite, (scaling.alpha, *scaling.alphas.values()))):
            raise ValueError("no rank, or no number")
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError, re.error) as error:
        raise AdapterError("is no configuration of a LoRA adapter.", where=str(path)) from error
    problems = [words for key, words in UNSUPPORTED.items() if config.get(key)]
    problems += ["trained biases"] if config.get("bias", "none") != "none" else []
    problems += [f"the initialisation {start}, which changed the base"] if _changes_base(start) else []
    if config.get("peft_type", "LORA") != "LORA":
        problems = [str(config["peft_type"])]
    if problems:
        raise AdapterError(
            f"the adapter uses {problems[0]}; only LoRA matrices on linear layers can be sampled exactly.",
            where=str(path),
        )
    return scaling


def _changes_base(start: Any) -> bool:
    return isinstance(start, str) and start.lower().startswith(CHANGES_BASE)


def _uniform(adapter: dict[str, Array], scaling: Scaling, base: str) -> PolicyState:
    """All layers with the largest rank, and the scale of the configuration's alpha at that rank."""
    rank = max(len(a) for _, a, _ in pairs(adapter))
    scale = scaling.of("", rank)
    made: dict[str, Array] = {}
    for module, a, b in pairs(adapter):
        made |= _widened(module, a, b * np.float32(scaling.of(module, len(a)) / scale), rank)
    return PolicyState(StateHeader(rank, scale * rank, 0, base), made)


def fitted(state: PolicyState, policy: PolicySpec, base: BaseConfig) -> PolicyState:
    """The same function with the rank, alpha and targets of ``policy``: what is new adds nothing yet.

    Raises ``AdapterError`` for a higher rank, or matrices on other layers.
    """
    header, adapter = state.header, state.adapter
    if header.rank > policy.rank:
        raise AdapterError(
            f"The adapter has rank {header.rank}, the policy only {policy.rank}.", f"Write `rank = {header.rank}`."
        )
    shapes, made = linear_shapes(base), dict[str, Array]()
    modules = {name.rpartition(".lora_")[0]: None for name in adapter}
    layers = [module for module in shapes if module != "lm_head"] if base.architecture in FAMILIES else modules
    wanted = targeted(layers, policy.target_names)
    if strange := [module for module in modules if module not in wanted]:
        raise AdapterError(
            f"The adapter has matrices on {strange[0]}, which is not among the targets {policy.targets!r}.",
            "Name all of its layers in `targets`, or leave that out.",
        )
    if modules.keys() == set(wanted) and (header.rank, header.alpha) == (policy.rank, policy.lora_alpha):
        return state
    factor = (header.alpha / header.rank) / (policy.lora_alpha / policy.rank)
    for module in wanted:
        if module in modules:
            a, b = adapter[f"{module}.lora_A"], adapter[f"{module}.lora_B"]
        else:
            out, into = shapes[module]
            a, b = np.empty((0, into), np.float32), np.empty((out, 0), np.float32)
        made |= _widened(module, a, b if factor == 1.0 else b * np.float32(factor), policy.rank)
    return PolicyState(replace(header, rank=policy.rank, alpha=policy.lora_alpha), made)


def _widened(module: str, a: Array, b: Array, rank: int) -> dict[str, Array]:
    """With A as PEFT begins it, and zeros in B; A from a seed of the module's name."""
    inputs, missing = a.shape[1], rank - len(a)
    generator = np.random.default_rng(list(module.encode()))
    new = generator.uniform(-(inputs**-0.5), inputs**-0.5, (missing, inputs)).astype(np.float32)
    return {
        f"{module}.lora_A": np.concatenate([a, new]) if missing else a,
        f"{module}.lora_B": np.pad(b, ((0, 0), (0, missing))) if missing else b,
    }
