"""Every optimizer step made again from what is stored, with the losses written a second time."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import LoraConfig, get_peft_model
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from .record import Policy, Task, Trajectory
from .report import Report

# State files as they are on the disk: safetensors with ``adapter/``, ``moment1/`` and ``moment2/`` and a header.
#
# Reads and hashes with code of its own, so that a mistake in the engine's is not repeated here. From format 2 on a
# file is sealed: ``sha256`` in its metadata is of the header's text and then of every array, by name.

Matrices = dict[str, NDArray[np.float32]]


class Unreadable(Exception):
    """The file is missing, damaged or no state file."""


@dataclass(frozen=True)
class State:
    """One version's file."""

    rank: int
    alpha: float
    step: int
    updates: int
    """Updates that the optimizer has made since it last began anew."""
    base: str
    adapter: Matrices
    moment1: Matrices
    moment2: Matrices

    @property
    def resumable(self) -> bool:
        """Whether it holds the optimizer's moments."""
        return bool(self.moment1)


def read(path: Path) -> State:
    """The file's contents. Raises ``Unreadable``."""
    parts: dict[str, Matrices] = {"adapter": {}, "moment1": {}, "moment2": {}}
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            header = json.loads(metadata["marlaas"])
            seal = hashlib.sha256(metadata["marlaas"].encode())
            for key in sorted(file.keys()):
                part, _, name = key.partition("/")
                matrix = parts[part][name] = file.get_tensor(key)
                seal.update(f"{key}{matrix.shape}".encode() + matrix.tobytes())
        if (header["format"] > 1 or "sha256" in metadata) and metadata.get("sha256") != seal.hexdigest():
            raise ValueError("its seal is broken: some bytes are not those that were written")
        updates = header.get("updates")
        step = header["step"]
        return State(
            header["rank"], header["alpha"], step, step if updates is None else updates, header["base"], **parts
        )
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"{path} cannot be read: {error}.") from error


def digest(adapter: Matrices) -> str:
    """The checksum that the database stores: SHA-256 over name, shape and bytes of each matrix, by name; 16 digits."""
    found = hashlib.sha256()
    for name in sorted(adapter):
        matrix = adapter[name]
        found.update(f"{name}{matrix.shape}".encode() + matrix.astype("<f4").tobytes())
    return found.hexdigest()[:16]


def flat(matrices: Matrices) -> NDArray[np.float64]:
    """All elements by name, float64 (P,)."""
    return np.concatenate([matrices[name].astype(np.float64).ravel() for name in sorted(matrices)])


# The losses, written a second time from their papers and a task file's words, to check the engine's own.
#
# Each takes the log-probabilities of one sequence's sampled tokens and gives its share of the sum that is to be
# minimised.


@dataclass(frozen=True)
class Recipe:
    """What a task file says of the update, completed with the defaults that the loss was published with."""

    loss: str
    mean: str
    """Over what the step's values are averaged: constant, episode, sequence or token."""
    low: float
    high: float
    """Ratios are clipped below and above these."""
    dual: float
    """With a negative advantage a ratio counts as this much at most (Ye et al., arXiv 1912.09729)."""
    importance: str
    floor: float
    cap: float
    geometric: float
    """Bound of a sequence's geometric mean, and one over it."""
    kl: float
    entropy: float
    temperature: float
    episodes: int
    """Episodes of a step."""
    episode_tokens: int
    """Most tokens that an episode may have."""


MEANS = {"dr_grpo": "constant", "reinforce": "episode", "grpo": "sequence", "gspo": "sequence"}
"""Over what a loss is averaged, by its name; all others are averaged over the step's tokens."""
DUAL = 3.0
CLIPS = {"grpo": (0.2, 0.2), "dapo": (0.2, 0.28), "gspo": (3e-4, 4e-4), "ppo": (0.2, 0.2), "cispo": (1.0, 4.0)}


def recipe(task: Task) -> Recipe:
    """The recipe of one task."""
    loss = str(task.value("train", "loss"))
    low, high = CLIPS.get(loss, (1.0, float("inf")))
    return Recipe(
        loss=loss,
        mean=MEANS.get(loss, "token"),
        low=1.0 - float(task.value("train", "clip_low", low)),
        high=1.0 + float(task.value("train", "clip_high", high)),
        dual=float(task.value("train", "clip_dual", DUAL)),
        importance=str(task.value("train", "importance", "truncate")),
        floor=float(task.value("train", "importance_floor", 0.0)),
        cap=float(task.value("train", "importance_cap", 2.0)),
        geometric=float(task.value("train", "geometric_cap", 2.0)),
        kl=float(task.value("train", "kl", 0.0)),
        entropy=float(task.value("train", "entropy", 0.0)),
        temperature=float(task.value("sampling", "temperature")),
        episodes=task.batch * int(task.value("train", "group_size")),
        episode_tokens=int(task.value("sampling", "max_episode_tokens")),
    )


@dataclass(frozen=True)
class Sampled:
    """The sampled tokens of one sequence; every tensor has shape (N,)."""

    logp: Tensor
    """Log-probabilities under the policy that is updated, with a gradient."""
    entropy: Tensor
    """Entropies in nats of the distributions at these tokens, with a gradient."""
    behaviour: Tensor
    """Under the policy that sampled."""
    base: Tensor | None
    """Under the base; None without a KL term."""
    proximal: Tensor | None
    """Under the policy before the step's first update; None in that update."""
    advantage: Tensor
    episode: int
    """Sampled tokens of all sequences that the agent has in this episode."""


def loss(one: Sampled, made: Recipe, step_tokens: int) -> Tensor:
    """One sequence's part of the step's loss."""
    values = _values(one, made)
    if one.base is not None:
        apart = one.base - one.logp
        values = values + made.kl * (torch.exp(apart) - 1 - apart)  # k3, Schulman 2020
    if made.entropy:
        values = values - made.entropy * one.entropy
    divisor = {
        "constant": made.episodes * made.episode_tokens,
        "episode": made.episodes,
        "sequence": made.episodes * one.episode,
        "token": step_tokens,
    }[made.mean]
    return values.sum() / max(1, divisor)


def _values(one: Sampled, made: Recipe) -> Tensor:
    """The loss of each token, before the KL term."""
    now = one.logp.detach()
    if made.loss in ("dr_grpo", "reinforce", "sft"):
        return -_weight(now, one.behaviour, made) * one.advantage * one.logp
    if made.loss == "cispo":
        ratio = _ratio(now, one.behaviour)
        return -_kept(now - one.behaviour, made) * torch.clamp(ratio, max=made.high) * one.advantage * one.logp
    if made.loss in ("grpo", "dapo"):
        ratio = _ratio(one.logp, one.behaviour)
        return _kept(now - one.behaviour, made) * _clipped(ratio, one.advantage, made)
    if made.loss == "gspo":
        common = torch.exp(torch.clamp(now - one.behaviour, -20, 20).mean())
        ratio = common * torch.exp(one.logp - now)  # GSPO-token: the same where all are
        return _kept(now - one.behaviour, made) * _clipped(ratio, one.advantage, made)
    if made.loss == "ppo":
        proximal = now if one.proximal is None else one.proximal
        return _weight(proximal, one.behaviour, made) * _clipped(_ratio(one.logp, proximal), one.advantage, made)
    raise ValueError(f"The checker knows no loss {made.loss!r}.")


def _ratio(logp: Tensor, old: Tensor) -> Tensor:
    return torch.exp(torch.clamp(logp - old, -20, 20))


def _weight(logp: Tensor, behaviour: Tensor, made: Recipe) -> Tensor:
    apart = logp - behaviour
    if made.importance == "none":
        return torch.ones_like(apart)
    if made.importance in ("sequence_truncate", "sequence_mask"):
        weight = torch.exp(torch.clamp(apart.sum(), -20, 20)) * torch.ones_like(apart)
    else:
        weight = _ratio(logp, behaviour)
    return torch.clamp(weight, made.floor, made.cap) * _kept(apart, made)


def _kept(apart: Tensor, made: Recipe) -> Tensor:
    """1 where a token is trained on, 0 where a mask leaves it out; ``apart`` (N,) are its sequence's log-ratios."""
    measure = {"mask": apart, "sequence_mask": apart.sum(), "geometric_mask": apart.mean()}.get(made.importance)
    if measure is None:
        return torch.ones_like(apart)
    low, high = (1 / made.geometric, made.geometric) if made.importance == "geometric_mask" else (made.floor, made.cap)
    ratio = torch.exp(torch.clamp(measure, -20, 20))
    return ((ratio >= low) & (ratio <= high)).float() * torch.ones_like(apart)


def _clipped(ratio: Tensor, advantage: Tensor, made: Recipe) -> Tensor:
    objective = torch.minimum(ratio * advantage, torch.clamp(ratio, made.low, made.high) * advantage)
    return -torch.where(advantage < 0, torch.maximum(objective, made.dual * advantage), objective)


# A policy's optimizer steps made again, in order, as far as files and tokens are still there.
#
# Loading it loads torch.

TINY = Path(__file__).resolve().parents[2] / "engine" / "models" / "tiny"
"""The base that ships with marlaas."""


def oracle(base: str) -> Oracle:
    """An ``Oracle`` on the base that an engine called ``base``."""
    return Oracle(str(TINY) if base == "tiny" else base)


class Again:
    """Makes the steps of one policy again, and keeps the optimizer's moments for state files that hold none."""

    def __init__(self, policy: Policy, files: Mapping[int, Path], oracle: Oracle, report: Report) -> None:
        self._policy = policy
        self._files = files
        self._oracle = oracle
        self._report = report
        self._newest: tuple[int, State | None] | None = None
        """The version that was read last; the next step begins from it."""
        self._start: State | None = None
        """Version 0, where the KL term pulls to it."""
        self._made: tuple[int, Moments] | None = None
        """The version that was made last, and its moments."""

    def check(self, step: int, groups: Sequence[Sequence[Trajectory]]) -> None:
        """Make one step again, if everything for it is still there."""
        before, after = self._state(step - 1), self._state(step)
        if after is not None and self._policy.living()[step].restarted:
            after = replace(after, moment1={}, moment2={})  # its file has the next step's moments
        moments = None if before is None else self._moments(before)
        pulls = self._policy.task.pulls_to_start
        if pulls and self._start is None:
            self._start = self._state(0)
        if before is None or after is None or (pulls and self._start is None):
            self._report.skip("updates", "a state file is gone")
        elif moments is None:
            self._report.skip("updates", "the optimizer's moments were given up for room")
        elif any(trajectory.shrunk for group in groups for trajectory in group):
            self._report.skip("updates", "tokens were given up for room")
        else:
            made = self._oracle.check(self._policy.task, before, moments, after, groups, self._report, self._start)
            self._made = (step, made)

    def _state(self, number: int) -> State | None:
        """The state of a version whose file is sound; None for others, and where an engine has voided it meanwhile."""
        if self._newest is None or self._newest[0] != number:
            path, state = self._files.get(number), None
            if path is not None:
                try:
                    state = read(path)
                except Unreadable:
                    state = None
            self._newest = (number, state)
        return self._newest[1]

    def _moments(self, state: State) -> Moments | None:
        """The optimizer's moments at a version: those in its file, else those just computed for it, else None."""
        version = self._policy.living()[state.step]
        if state.resumable:
            return Moments(state.moment1, state.moment2)
        if state.step == 0 or version.restarted:
            return Moments.zero(state.adapter)
        return self._made[1] if self._made is not None and self._made[0] == state.step else None


# Every optimizer step made again from its stored trajectories, with transformers, PEFT and torch.optim.
#
# The report says how far the state after a step is from what it should be. The base is loaded once. Differences are
# relative, in the L2 norm over the whole adapter: single weights may differ by more where Adam divides by a gradient
# that is all rounding.

MOMENT1_TOLERANCE = 1e-3
MOMENT2_TOLERANCE = 2e-3
MOVEMENT_TOLERANCE = 1e-2
RELATIVE_ROUNDING = 2e-5
"""How far a gradient is off in any case: first moments of two libraries were seen to differ by up to 3e-6 on AMD, and
by 9e-6 on Intel with AMX (15 of them in a run of kills)."""
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

    def __init__(self, base: str) -> None:
        torch.set_num_threads(1)  # more threads spin beside a busy engine, and cost more than they give
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
        moved = MOVEMENT_TOLERANCE + (0.0 if before.updates else turned(made.first))
        compared = [("updates", flat(weights) - start, flat(after.adapter) - start, moved)]
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
            eps=float(task.value("train", "epsilon", 1e-8)),  # that of tasks before it was a key
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
                behaviour = torch.from_numpy(trajectory.logprobs[1:][trajectory.mask[1:] == 1].copy())
                sampled = Sampled(
                    logp=logp,
                    entropy=entropy,
                    behaviour=logp.detach() if trajectory.given else behaviour,
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


def turned(first: Matrices) -> float:
    """How far rounding may move Adam's first update, which is each gradient's sign: relative, in the L2 norm.

    It turns no more weights than the smallest gradients that have the norm ``RELATIVE_ROUNDING`` together.
    """
    squares = np.sort(flat(first) ** 2)
    squares = squares[squares > 0]
    count = int(np.searchsorted(np.cumsum(squares), RELATIVE_ROUNDING**2 * squares.sum()))
    return 2.0 * math.sqrt(count / max(1, len(squares)))


def learning_rate(task: Task, step: int) -> float:
    """Of the step that makes version ``step + 1``: a rise over *warmup* steps, then constant, linear or cosine."""
    full, warmup = float(task.value("train", "learning_rate")), int(task.value("train", "warmup", 0))
    if step < warmup:
        return full * (step + 1) / warmup
    left = 1.0 - min(1.0, (step - warmup) / max(1, task.steps - warmup))
    schedule = str(task.value("train", "schedule", "constant"))
    return full * {"constant": 1.0, "linear": left, "cosine": 0.5 * (1 - math.cos(math.pi * left))}[schedule]
