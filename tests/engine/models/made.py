"""Made bases of one family on their way through every program: llama.cpp, our trainer, transformers and PEFT."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from marlaas.engine.models.find import BaseModel
from marlaas.engine.samplers.llama.context import LlamaContext
from marlaas.engine.samplers.llama.model import LlamaSampler
from marlaas.engine.samplers.protocol import Sampler, SampleRequest, SampleResult
from marlaas.engine.samplers.torch.sampler import TorchSampler
from marlaas.engine.trainer.protocol import TrainGroup, TrainSequence
from marlaas.engine.trainer.torch_trainer import TorchTrainer
from marlaas.engine.trajectories import Logprobs, Tokens

PROMPT = "A farmer has twelve cows and sells a quarter of them. How many are left?\n"
CONTEXT = 256


@dataclass
class Made:
    """A base and what reads it."""

    name: str
    base: BaseModel
    cache: Path
    """Where GGUF files go."""

    @cached_property
    def prompt(self) -> Tokens:
        """A question in the folder's own tokens."""
        tokenizer = Tokenizer.from_file(str(self.base.path / "tokenizer.json"))
        return np.array(tokenizer.encode(PROMPT).ids, np.int32)

    @cached_property
    def stop(self) -> tuple[int, ...]:
        """Tokens that end a turn."""
        return tuple(json.loads((self.base.path / "generation_config.json").read_text())["eos_token_id"])

    def transformers(self, adapter: Path | None = None) -> Any:
        """The model, with a PEFT folder's adapter if one is named."""
        model = transformers(self.base)
        return PeftModel.from_pretrained(model, str(adapter)) if adapter else model

    def sampler(self, exact: bool, weights: str = "f32") -> LlamaSampler:
        """Rollouts on llama.cpp."""
        return LlamaSampler(
            str(self.base.path), str(self.cache), sequences=4, context=CONTEXT, exact=exact, weights=weights
        )

    def torch_sampler(self) -> TorchSampler:
        """Rollouts on torch."""
        return TorchSampler(str(self.base.path), sequences=4, context=CONTEXT)

    def trainer(self) -> TorchTrainer:
        """To be shut down by the caller."""
        return TorchTrainer(str(self.base.path), self.base.fingerprint, sync=False)

    async def answers(
        self, sampler: Sampler, version: str, count: int, length: int, temperature: float
    ) -> list[SampleResult]:
        """Some replies to the prompt, sampled beside each other."""
        requests = [
            SampleRequest(f"{version} {number}", version, self.prompt, length, temperature, self.stop, number)
            for number in range(count)
        ]
        results = await asyncio.gather(*(sampler.generate(request) for request in requests))
        for request in requests:
            await sampler.release(request.conversation)
        return list(results)

    def group(self, results: list[SampleResult]) -> TrainGroup:
        """The replies to train on: the more even tokens, the better."""
        rewards = np.array([float(np.mean(result.tokens % 2 == 0)) for result in results])
        sequences = []
        for result, advantage in zip(results, rewards - rewards.mean(), strict=True):
            begin = len(self.prompt)
            tokens = np.concatenate([self.prompt, result.tokens])
            logprobs = np.concatenate([np.zeros(begin, np.float32), result.logprobs])
            mask = (np.arange(len(tokens)) >= begin).astype(np.uint8)
            sequences.append(TrainSequence(tokens, mask, logprobs, float(advantage)))
        return TrainGroup(1, tuple(sequences))


def transformers(base: BaseModel) -> Any:
    """The model as Hugging Face computes it, in float32."""
    model: Any = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32)
    return model


def greedy(model: Any, prompt: Tokens, length: int) -> Tokens:
    """int32 (length,): the likeliest token each time, computed by transformers alone."""
    held, memory, said = torch.from_numpy(prompt)[None].long(), None, []
    with torch.no_grad():
        for _ in range(length):
            out = model(input_ids=held, past_key_values=memory, use_cache=True)
            held, memory = out.logits[:, -1:].argmax(-1), out.past_key_values
            said.append(int(held))
    return np.array(said, np.int32)


def logprobs_of(model: Any, tokens: Tokens, start: int) -> Logprobs:
    """float32 (T - start,): log-probabilities of ``tokens[start:]`` by transformers."""
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(tokens)[None].long()).logits[0, start - 1 : -1]
    chosen = torch.log_softmax(logits, -1).gather(1, torch.from_numpy(tokens[start:])[:, None].long())
    return np.asarray(chosen[:, 0].numpy(), np.float32)


def scores(context: LlamaContext, tokens: Tokens, start: int) -> Logprobs:
    """float32 (T - start,): log-probabilities of ``tokens[start:]`` as llama.cpp has them in an empty context."""
    count = len(tokens)
    positions, sequence, outputs = np.arange(count, dtype=np.int32), np.zeros(count, np.int32), np.ones(count, np.int8)
    logits = context.decode(tokens, positions, sequence, outputs)[start - 1 : -1]
    rows = torch.from_numpy(logits.astype(np.float64)).log_softmax(-1).numpy()
    context.cut(0, 0)
    return np.asarray(rows[np.arange(count - start), tokens[start:]], np.float32)


def gap(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Largest difference."""
    return float(np.abs(a - b).max())
