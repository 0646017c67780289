"""Any causal language model of transformers with PEFT's LoRA layers.

Slower than ``decoder``, and its reference in tests. Only place that imports transformers and peft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from ..devices.machine import Precision
from ..errors import BaseModelError
from ..models.find import load_base
from ..models.memory import PASS_BYTES, Budget
from .losses import token_logprobs
from .memory import Layout, PolicyMemory
from .model import Criterion, Groups, Ints, Lesson, TrainedTokens, lesson_of, pass_room
from .protocol import TrainGroup, TrainSequence

SMALLEST = 16
MAX_LOGITS = 1 << 23
"""32 MiB: with a vocabulary of 152,000 these are 55 trained tokens."""


class PeftModel:
    """Frozen, with float32 adapters on all linear layers but the output head.

    Raises ``BaseModelError`` for an unreadable folder or a base in four bits.
    """

    def __init__(self, folder: str, device: str = "cpu", room: int = PASS_BYTES, precision: Precision = "f32") -> None:
        self._device = device
        base = load_base(folder)
        self._config = base.config
        self._largest = 0
        # as a path: transformers would take a name for one on the hub
        self._model: Any = load_transformers(str(base.path), precision).to(device)
        self._budget = Budget(room or pass_room(device))
        self._again = False
        for module in self._model.modules():
            if isinstance(module, GradientCheckpointingLayer):  # its own checkpointing works in training mode only
                module.forward = partial(self._layer, module.forward)
        self._head: nn.Module = self._model.get_output_embeddings()
        self._modules = {  # name → (in, out), before PEFT wraps them; what PEFT calls "all-linear"
            name: (module.in_features, module.out_features)
            for name, module in self._model.named_modules()
            if isinstance(module, nn.Linear) and module is not self._head
        }
        self._peft: Any = None
        self._slots: dict[int, str] = {}
        self._policies: tuple[PolicyMemory, ...] = ()
        self._used: PolicyMemory | None = None

    @property
    def vocabulary(self) -> int:
        return int(self._model.get_input_embeddings().weight.shape[0])

    def layout(self, rank: int, targets: Sequence[str] = ()) -> Layout:
        return Layout.of(self._modules, rank, targets)

    def mount(self, policies: Sequence[PolicyMemory]) -> None:
        self._policies = tuple(policies)

    def unmount(self) -> None:
        self._policies, self._used = (), None

    def batches(self, jobs: Sequence[Groups]) -> Iterator[PaddedBatch]:
        self._largest = 0
        for policy, groups in enumerate(jobs):
            for batch in padded_batches(policy, groups, self._budget.tokens(self._config)):
                self._largest = max(self._largest, batch.inputs.size)
                yield batch

    def logprobs(self, batch: PaddedBatch, temperatures: tuple[float, ...], adapted: bool = True) -> Tensor:
        if self._policies:
            self._use(self._policies[batch.lesson.policy])
        with torch.no_grad(), nullcontext() if adapted or self._peft is None else self._base_only():
            return self._scores(batch, temperatures)[0].cpu()

    def differentiate(self, batch: PaddedBatch, temperatures: tuple[float, ...], criterion: Criterion) -> None:
        self._use(self._policies[batch.lesson.policy])
        self._again = not self._budget.keeps_all(self._config, batch.inputs.size)
        logp, entropy = self._scores(batch, temperatures)
        slopes = criterion(logp.detach().cpu(), entropy.detach().cpu())
        if slopes.entropy is None:
            logp.backward(slopes.logp.to(logp.device))  # type: ignore[no-untyped-call]
        else:
            torch.autograd.backward([logp, entropy], [s.to(logp.device) for s in (slopes.logp, slopes.entropy)])

    def shrink(self) -> bool:
        if self._budget.most <= SMALLEST:
            return False
        self._budget = self._budget.below(self._config, self._largest)
        return True

    def _layer(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._again:
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    def _scores(self, batch: PaddedBatch, temperatures: tuple[float, ...]) -> tuple[Tensor, Tensor]:
        """(N,) each, in chunks: only one chunk's logits are in memory."""
        temperature = temperatures[batch.lesson.policy]
        bonus = bool(self._policies) and self._policies[batch.lesson.policy].config.entropy > 0.0
        inputs, rows, columns, targets = (
            torch.from_numpy(array).to(self._device)
            for array in (batch.inputs, batch.trained.sequence, batch.columns, batch.trained.targets)
        )
        hidden = self._hidden_states(inputs, rows, columns)
        size = max(1, MAX_LOGITS // self.vocabulary)
        scores = [
            checkpoint(self._chunk, chunk, some, temperature, bonus, use_reentrant=False, preserve_rng_state=False)
            for chunk, some in zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
        ]
        logp, entropy = zip(*scores, strict=True)
        return torch.cat(logp), torch.cat(entropy)

    def _use(self, memory: PolicyMemory) -> None:
        """Put a policy's matrices and scale into PEFT's layers."""
        if memory is self._used:
            return
        slot = self._slot(memory.config.rank)
        for name, (inputs, outputs) in self._modules.items():
            layer = self._model.get_submodule(name)
            if layer.active_adapters != [slot]:
                # before the weights change: PEFT froze them when the slot was turned off
                layer.set_adapter(slot)
            for half, empty in (("lora_A", (0, inputs)), ("lora_B", (outputs, 0))):
                matrix = memory.parameters.get(f"{name}.{half}")  # rank 0 for a layer that is no target
                weight = nn.Parameter(torch.empty(empty, device=self._device)) if matrix is None else matrix
                getattr(layer, half)[slot].weight = weight
            layer.scaling[slot] = memory.scale
        self._used = memory

    def _hidden_states(self, inputs: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Inputs of the output head, (N, H), at places ``(rows[n], columns[n])`` of ``inputs`` int64 (B, S)."""
        found: list[Tensor] = []

        def select(_module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor]:
            found.append(arguments[0][rows, columns])
            return (arguments[0][:1, :1].detach(),)

        with _before_call(self._head, select):
            self._model(input_ids=inputs, use_cache=False)
        return found[0]

    def _chunk(self, hidden: Tensor, targets: Tensor, temperature: float, bonus: bool) -> tuple[Tensor, Tensor]:
        return token_logprobs(self._logits(hidden).float(), targets, temperature, bonus)

    def _logits(self, hidden: Tensor) -> Tensor:
        """(N, V) for head inputs (N, H), with the model's changes after the head.

        Only its own forward pass does that: it runs over one token, with the head's input replaced by ``hidden``.
        """
        with _before_call(self._head, lambda _module, _arguments: (hidden[None],)):
            token = torch.zeros((1, 1), dtype=torch.long, device=hidden.device)
            logits: Tensor = self._model(input_ids=token, use_cache=False).logits
        return logits[0]

    @contextmanager
    def _base_only(self) -> Iterator[None]:
        layers = [self._model.get_submodule(name) for name in self._modules]
        for layer in layers:
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in layers:
                layer.enable_adapters(True)

    def _slot(self, rank: int) -> str:
        if rank not in self._slots:
            slot = f"rank{rank}"
            # alpha = rank: mounting sets the scale per policy
            config = LoraConfig(r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules=list(self._modules))
            if self._peft is None:
                self._peft = get_peft_model(self._model, config, adapter_name=slot, low_cpu_mem_usage=True)
            else:
                self._peft.add_adapter(slot, config, low_cpu_mem_usage=True)
            self._slots[rank] = slot
            for name in self._modules if self._model.dtype == torch.bfloat16 else ():
                layer = self._model.get_submodule(name)
                layer.forward = partial(_rounded_once, layer)
        return self._slots[rank]


def _rounded_once(layer: Any, x: Tensor) -> Tensor:
    """PEFT's forward pass, with the adapter's term added before the product is rounded to bfloat16.

    PEFT adds it afterwards: what is smaller than half of a last bit is then always lost (``decoder.linear``).
    """
    if layer.disable_adapters:
        result: Tensor = layer.base_layer(x)
        return result
    (slot,), base = layer.active_adapters, layer.base_layer
    term = layer.scaling[slot] * layer.lora_B[slot](layer.lora_A[slot](x.float()))
    rows = torch.addmm(term.to(x.dtype).flatten(0, -2), x.flatten(0, -2), base.weight.T)
    return (rows if base.bias is None else rows + base.bias).view(term.shape)


@contextmanager
def _before_call(module: nn.Module, change: Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor]]) -> Iterator[None]:
    """Within the block, ``module`` gets ``change``'s result."""
    hook = module.register_forward_pre_hook(change)
    try:
        yield
    finally:
        hook.remove()


def load_transformers(folder: str, precision: Precision = "f32") -> Any:
    """Raises ``BaseModelError``."""
    if precision == "nf4":
        raise BaseModelError(
            "the base model is trained through transformers and PEFT, which marlaas does not do in four "
            'bits: set `precision = "bf16"` under [training] in marlaas.toml.',
            where=str(folder),
        )
    dtype = torch.float32 if precision == "f32" else torch.bfloat16
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True
        )
        model, found = loaded
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise BaseModelError(f"the base model cannot be loaded: {reason}.", where=str(folder)) from error
    for keys, words in (("missing_keys", "hold no"), ("mismatched_keys", "have another shape of")):
        if found.get(keys):
            name = str(sorted(found[keys], key=str)[0])
            raise BaseModelError(
                f"the weights {words} {name}, which config.json makes them have.",
                "Configuration and weights belong to different models, or a file is missing.",
                where=str(folder),
            )
    if getattr(model.config, "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # torch's fused attention, the default, ignores the cap on scores
    return model


@dataclass(frozen=True)
class PaddedBatch:
    """B sequences padded right to length S, with N trained tokens.

    Trained token n's logits are at ``(trained.sequence[n], columns[n])``, one place before it. Causal attention never
    sees the padding: no mask.
    """

    inputs: Ints
    """(B, S)"""
    columns: Ints
    """(N,)"""
    lesson: Lesson

    @property
    def lessons(self) -> tuple[Lesson, ...]:
        return (self.lesson,)

    @property
    def trained(self) -> TrainedTokens:
        return self.lesson.trained


def padded_batches(policy: int, groups: Iterable[TrainGroup], max_tokens: int) -> Iterator[PaddedBatch]:
    """A policy's batches, of at most ``max_tokens`` and of one group; a larger sequence gets its own.

    Cut after the last token with needed logits.
    """
    for group in groups:
        pending: list[TrainSequence] = []
        longest = 0
        for sequence in group.sequences:
            if not sequence.mask.any():
                continue
            length = max(longest, _input_length(sequence))
            if pending and length * (len(pending) + 1) > max_tokens:
                yield _pad(policy, group.number, pending)
                pending, length = [], _input_length(sequence)
            pending.append(sequence)
            longest = length
        if pending:
            yield _pad(policy, group.number, pending)


def _input_length(sequence: TrainSequence) -> int:
    return int(np.flatnonzero(sequence.mask)[-1])


def _pad(policy: int, group: int, sequences: Sequence[TrainSequence]) -> PaddedBatch:
    lengths = [_input_length(sequence) for sequence in sequences]
    inputs = np.zeros((len(sequences), max(lengths)), dtype=np.int64)
    for row, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
        inputs[row, :length] = sequence.tokens[:length]
    columns = np.concatenate([np.flatnonzero(sequence.mask) for sequence in sequences]) - 1
    return PaddedBatch(inputs, columns, lesson_of(policy, 0, [group] * len(sequences), sequences))
