"""Every optimizer step made again from its stored trajectories, with transformers, PEFT and torch.optim.

The report says how far the state after a step is from what it should be. The base is loaded once. Differences are
relative, in the L2 norm over the whole adapter: single weights may differ by more where Adam divides by a gradient that
is all rounding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from .losses import Recipe, Sampled, loss, recipe
from .record import Task, Trajectory
from .report import Report
from .states import Matrices, State, flat

MOMENT1_TOLERANCE = 1e-3
MOMENT2_TOLERANCE = 2e-3
MOVEMENT_TOLERANCE = 1e-2
GRADIENT_ROUNDING = 1e-6
"""How far a gradient may be off by rounding alone, whatever its size, in the L2 norm.

The part of a token that is all but certain is 1 - p, of which float32 has few digits; a step of such tokens alone has a
gradient that is all rounding.
"""
BETAS = (0.9, 0.95)
ROWS = 8
"""Sequences of one forward pass."""

Parameters = dict[str, torch.nn.Parameter]
Groups = Sequence[Sequence[Trajectory]]
"""The trajectories of a step, by group."""


@dataclass(frozen=True)
class Moments:
    """AdamW's moving averages of the gradient and of its square."""

    first: Matrices
    second: Matrices

    @classmethod
    def zero(cls, adapter: Matrices) -> Moments:
        """The moments that training begins with."""
        zeros = {name: np.zeros_like(matrix) for name, matrix in adapter.items()}
        return cls(zeros, zeros)


class Oracle:
    """One base, and an adapter on it that takes any version's weights."""

    def __init__(self, base: str, threads: int = 1) -> None:
        torch.set_num_threads(threads)  # more threads spin beside a busy engine, and cost more than they give
        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self._base = base
        self._shape: tuple[int, float] | None = None
        self._model: Any = None
        self._reference: State | None = None
        self._parameters: Parameters = {}

    def check(
        self,
        task: Task,
        before: State,
        moments: Moments,
        after: State,
        groups: Groups,
        report: Report,
        reference: State | None = None,
    ) -> Moments:
        """Compare version ``after`` with what the groups make of version ``before``; returns the moments made.

        The KL term pulls to the version ``reference``, or to the base where that is None.
        The file of ``after`` need not hold moments: the next step can then be made with those that are returned.
        """
        where = f"{task.where}, step {after.step}"
        # an engine that wrote the file before such updates were skipped has made them by momentum alone
        every = after.updates - before.updates == int(task.value("train", "epochs", 1))
        self._reference = reference
        weights, made, gradient = self._step(task, before, moments, groups, every)
        rounding = GRADIENT_ROUNDING / gradient if gradient > 0 else 0.0
        start = flat(before.adapter)
        compared = [("updates", flat(weights) - start, flat(after.adapter) - start, MOVEMENT_TOLERANCE)]
        if after.resumable:
            compared += [
                ("first moments", flat(made.first), flat(after.moment1), MOMENT1_TOLERANCE),
                ("second moments", flat(made.second), flat(after.moment2), MOMENT2_TOLERANCE),
            ]
        for what, wanted, stored, tolerance in compared:
            scale = max(float(np.linalg.norm(wanted)), 1e-12)
            report.close(float(np.linalg.norm(stored - wanted)) / scale, tolerance + rounding, what, where)
        return made

    def _step(
        self, task: Task, before: State, moments: Moments, groups: Groups, every: bool
    ) -> tuple[Matrices, Moments, float]:
        """The weights and moments after the step, and the least norm of its gradients before they were clipped.

        ``every``: updates whose gradient is zero are made, too.
        """
        self._mount(before)
        parameters = list(self._parameters.values())
        epochs = int(task.value("train", "epochs", 1))
        optimizer = torch.optim.AdamW(
            parameters,
            lr=learning_rate(task, before.step),
            betas=BETAS,
            eps=1e-8,
            weight_decay=float(task.value("train", "weight_decay", 0.0)),
        )
        for name, parameter in self._parameters.items():
            optimizer.state[parameter] = {
                "step": torch.tensor(float(before.updates)),
                "exp_avg": torch.from_numpy(moments.first[name].copy()),
                "exp_avg_sq": torch.from_numpy(moments.second[name].copy()),
            }
        masked = task.value("train", "overlong", "keep") == "mask"
        sequences = [
            t for group in groups for t in group if t.reward is not None and t.mask.any() and not (masked and t.cut)
        ]
        limit = float(task.value("train", "clip_norm", 1.0)) or math.inf
        proximal: list[Tensor] | None = None
        least = math.inf
        for _ in range(epochs):
            optimizer.zero_grad()
            seen = self._differentiate(recipe(task), groups, sequences, proximal)
            proximal = proximal or seen
            norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
            least = min(least, norm)
            if norm > 0 or every:
                optimizer.step()
        states = {name: optimizer.state[parameter] for name, parameter in self._parameters.items()}
        return (
            {name: parameter.detach().numpy().copy() for name, parameter in self._parameters.items()},
            Moments(
                {name: state["exp_avg"].numpy() for name, state in states.items()},
                {name: state["exp_avg_sq"].numpy() for name, state in states.items()},
            ),
            least,
        )

    def _differentiate(
        self,
        made: Recipe,
        groups: Groups,
        sequences: Sequence[Trajectory],
        proximal: Sequence[Tensor] | None,
    ) -> list[Tensor]:
        """Add the step's gradient; returns the log-probabilities before the update."""
        for parameter in self._parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        keys = {t.id: (place, t.member, t.agent) for place, group in enumerate(groups) for t in group}
        episodes: Counter[tuple[int, int, str]] = Counter()
        for trajectory in sequences:
            episodes[keys[trajectory.id]] += int(trajectory.mask[1:].sum())
        seen: list[Tensor] = []
        for start in range(0, len(sequences), ROWS):
            rows = sequences[start : start + ROWS]
            base = [None] * len(rows) if not made.kl else self._reference_logprobs(rows, made.temperature)
            total = torch.zeros(())
            for row, (trajectory, (logp, entropy)) in enumerate(
                zip(rows, self._scores(rows, made.temperature), strict=True)
            ):
                sampled = Sampled(
                    logp=logp,
                    entropy=entropy,
                    behaviour=torch.from_numpy(trajectory.logprobs[1:][trajectory.mask[1:] == 1].copy()),
                    base=base[row],
                    proximal=proximal[start + row] if proximal else None,
                    advantage=torch.from_numpy(trajectory.advantages.astype(np.float32)),
                    episode=episodes[keys[trajectory.id]],
                )
                seen.append(logp.detach())
                total = total + loss(sampled, made, sum(episodes.values()))
            total.backward()  # type: ignore[no-untyped-call]
        return seen

    def _reference_logprobs(self, rows: Sequence[Trajectory], temperature: float) -> list[Tensor]:
        if self._reference is None:
            with torch.no_grad(), self._model.disable_adapter():
                return [logp for logp, _ in self._scores(rows, temperature)]
        now = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(torch.from_numpy(self._reference.adapter[name]))
            scored = [logp for logp, _ in self._scores(rows, temperature)]
            for name, parameter in self._parameters.items():
                parameter.copy_(now[name])
        return scored

    def _scores(self, rows: Sequence[Trajectory], temperature: float) -> list[tuple[Tensor, Tensor]]:
        """Log-probabilities of each row's sampled tokens, and the entropies of what they were drawn from.

        Padding is on the right, where no token attends to it.
        """
        longest = max(len(row.tokens) for row in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row.tokens)] = torch.from_numpy(row.tokens.astype("int64"))
        logits = self._model(input_ids=ids, use_cache=False).logits[:, :-1] / temperature
        logprobs = torch.log_softmax(logits.float(), -1)
        chosen = logprobs.gather(-1, ids[:, 1:, None])[..., 0]
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        own = [torch.from_numpy(row.mask[1:] == 1) for row in rows]
        return [
            (chosen[place, : len(sampled)][sampled], entropy[place, : len(sampled)][sampled])
            for place, sampled in enumerate(own)
        ]

    def _mount(self, state: State) -> None:
        """Load a version's weights into the model, which is built anew for another rank."""
        if self._shape != (state.rank, state.alpha):
            model: Any = AutoModelForCausalLM.from_pretrained(self._base, dtype=torch.float32, local_files_only=True)
            modules = sorted({name.rpartition(".")[0] for name in state.adapter})
            config = LoraConfig(r=state.rank, lora_alpha=state.alpha, target_modules=modules)  # type: ignore[arg-type]
            self._model, self._shape = get_peft_model(model, config).eval(), (state.rank, state.alpha)
            self._parameters = {
                name.removeprefix("base_model.model.").removesuffix(".default.weight"): parameter
                for name, parameter in self._model.named_parameters()
                if parameter.requires_grad
            }
        if self._parameters.keys() != state.adapter.keys():
            raise ValueError("The adapter's matrices are not those of this base.")
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(torch.from_numpy(state.adapter[name]))


def learning_rate(task: Task, step: int) -> float:
    """Of the step that makes version ``step + 1``: a rise over *warmup* steps, then constant, linear or cosine."""
    full, warmup = float(task.value("train", "learning_rate")), int(task.value("train", "warmup", 0))
    if step < warmup:
        return full * (step + 1) / warmup
    left = 1.0 - min(1.0, (step - warmup) / max(1, task.steps - warmup))
    schedule = str(task.value("train", "schedule", "constant"))
    return full * {"constant": 1.0, "linear": left, "cosine": 0.5 * (1 - math.cos(math.pi * left))}[schedule]
