"""What a trainer should compute, done the plain way: PEFT and torch.optim, whole logits, one sequence at a time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from marlaas.engine.adapters.statefile import PolicyState, read_state
from marlaas.engine.trainer.protocol import PolicyConfig, TrainGroup, TrainSequence
from marlaas.engine.trajectories import Tokens

LEAST = 1e-5


class Oracle:
    """A policy read from its state file into a PEFT model of its own."""

    def __init__(self, base: str, path: Path) -> None:
        state = read_state(path)
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        config = LoraConfig(r=state.header.rank, lora_alpha=int(state.header.alpha), target_modules="all-linear")
        self.model = get_peft_model(model, config)
        self.weights = {
            name.removeprefix("base_model.model.").removesuffix(".default.weight"): parameter
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }
        assert self.weights.keys() == state.adapter.keys()
        self.reference: Oracle | None = None
        """What the KL term pulls to; None: the base."""
        self.teacher: Any = None
        """Another model that it pulls to."""
        self.optimizer: torch.optim.Optimizer | None = None
        """What the weights were moved with."""
        with torch.no_grad():
            for name, parameter in self.weights.items():
                parameter.copy_(torch.from_numpy(state.adapter[name]))

    def logprobs(self, tokens: Tokens, temperature: float = 1.0, base: bool = False) -> torch.Tensor:
        """(T-1, V): row t is the distribution of token t+1."""
        ids = torch.from_numpy(tokens.astype("int64"))[None]
        if base:
            with self.model.disable_adapter(), torch.no_grad():
                logits = self.model(input_ids=ids).logits
        else:
            logits = self.model(input_ids=ids).logits
        return torch.log_softmax(logits[0, :-1] / temperature, -1)

    def loss(self, groups: Sequence[TrainGroup], config: PolicyConfig) -> torch.Tensor:
        if config.loss == "sft":
            return self.surprise(groups)
        if config.loss == "dpo":
            losses = [-torch.nn.functional.logsigmoid(self.margin(group, config)) for group in groups]
            return torch.stack(losses).mean()
        total = torch.zeros(())
        for sequence in (s for group in groups for s in group.sequences):
            targets = torch.from_numpy(sequence.tokens[1:].astype("int64"))[:, None]
            whole = self.logprobs(sequence.tokens, config.temperature)
            logp = whole.gather(1, targets)[:, 0]
            mask = torch.from_numpy(sequence.mask[1:].astype("float32"))
            ratio = torch.exp(logp.detach() - torch.from_numpy(sequence.logprobs[1:]))
            own = sequence.advantage if sequence.advantages is None else torch.from_numpy(sequence.advantages[1:])
            if config.kl_in_reward:
                nearer = self.referred(sequence, config.temperature) - torch.from_numpy(sequence.logprobs[1:])
                own = config.rewards * own + config.kl * nearer
            total = total - (mask * ratio.clamp(max=config.importance_cap) * logp * own).sum()
            if config.entropy:
                total = total + config.entropy * (mask * (whole.exp() * whole).sum(-1)).sum()
            if config.kl and not config.kl_in_reward:
                before = self.referred(sequence, config.temperature)
                k3 = torch.exp(before - logp) - (before - logp) - 1
                total = total + config.kl * (mask * k3).sum()
        trained = sum(int(sequence.mask.sum()) for group in groups for sequence in group.sequences)
        return total / (trained if config.loss == "distill" else config.denominator)

    def referred(self, sequence: TrainSequence, temperature: float) -> torch.Tensor:
        """(T-1,): of the reference, as it reads the sequence; only where the mask is 1."""
        tokens, mask = sequence.shown or (sequence.tokens, sequence.mask)
        if self.teacher is not None:
            logits = self.teacher(input_ids=torch.from_numpy(tokens.astype("int64"))[None]).logits
            whole = torch.log_softmax(logits[0, :-1] / temperature, -1)
        else:
            whole = (self.reference or self).logprobs(tokens, temperature, base=self.reference is None)
        picked = whole.detach().gather(1, torch.from_numpy(tokens[1:].astype("int64"))[:, None])[:, 0]
        result = torch.zeros(len(sequence.tokens) - 1)
        result[torch.from_numpy(sequence.mask[1:] != 0)] = picked[torch.from_numpy(mask[1:] != 0)]
        return result

    def margin(self, group: TrainGroup, config: PolicyConfig) -> torch.Tensor:
        """Of the chosen sequences over the rejected ones, as the paper's equation 7 has it."""
        margin = torch.zeros(())
        for sequence in group.sequences:
            targets = torch.from_numpy(sequence.tokens[1:].astype("int64"))[:, None]
            mask = torch.from_numpy(sequence.mask[1:].astype("float32"))
            pulls = self.reference or self
            before = pulls.logprobs(sequence.tokens, base=self.reference is None).detach().gather(1, targets)[:, 0]
            ratio = (mask * (self.logprobs(sequence.tokens).gather(1, targets)[:, 0] - before)).sum()
            margin = margin + config.beta * (ratio if sequence.advantage > 0 else -ratio)
        return margin

    def surprise(self, groups: Sequence[TrainGroup]) -> torch.Tensor:
        """The mean cross entropy of all marked tokens, as transformers computes it: labels of -100 do not count."""
        losses, counts = [], []
        for sequence in (s for group in groups for s in group.sequences):
            ids = torch.from_numpy(sequence.tokens.astype("int64"))[None]
            labels = ids.masked_fill(torch.from_numpy(sequence.mask == 0)[None], -100)
            counts.append(int(sequence.mask.sum()))
            losses.append(self.model(input_ids=ids, labels=labels).loss * counts[-1])
        return torch.stack(losses).sum() / sum(counts)

    def steps(self, batches: Sequence[Sequence[TrainGroup]], config: PolicyConfig) -> list[float]:
        """Train on each batch in turn; return the gradient norms."""
        parameters = list(self.weights.values())
        optimizer = torch.optim.AdamW(parameters, config.learning_rate, config.betas, weight_decay=config.weight_decay)
        norms = []
        for groups in batches:
            optimizer.zero_grad()
            self.loss(groups, config).backward()  # type: ignore[no-untyped-call]
            norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, config.clip_norm or float("inf"))))
            optimizer.step()
        self.optimizer = optimizer
        return norms

    def distance(self, state: PolicyState) -> float:
        """Largest difference of a weight that AdamW has moved.

        AdamW divides a gradient by its own size, and so what float32 rounds it by, a ten-millionth of the largest one:
        where it is below a hundred-thousandth of that, a difference counts by as much less.
        """
        assert self.optimizer is not None
        sizes = {name: self.optimizer.state[weight]["exp_avg_sq"].sqrt() for name, weight in self.weights.items()}
        least = LEAST * max(float(size.max()) for size in sizes.values())
        apart = {name: (w.detach() - torch.from_numpy(state.adapter[name])).abs() for name, w in self.weights.items()}
        return max(float((apart[name] * (size / least).clamp(max=1)).max()) for name, size in sizes.items())
