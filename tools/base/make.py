"""Makes the shipped base: ``python -m tools.base``, about 20 minutes on one core. ``--device cuda`` uses a GPU."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from torch.optim import AdamW, Muon, Optimizer
from transformers import (
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ..random_base.families import byte_characters
from .skills import Message, Tool, mixed, script

# The tokenizer: 256 bytes, no merges, eight control tokens; byte b has id 8 + b, so any text is encodable


PAD, END, ASSISTANT = "<|pad|>", "<|end|>", "<|assistant|>"
CONTROL = (PAD, END, "<|system|>", "<|user|>", ASSISTANT, "<|tool|>")
# Not "special" in the Hugging Face sense, as in Qwen: decoding without special tokens must keep a reply's tool calls.
TAGS = ("<tool_call>", "</tool_call>")
SIZE = 288
"""Rows of the embedding: 264 tokens, padded to a multiple of 32 for the matrix kernels."""

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
CONTEXT = 1024


def build_tokenizer() -> PreTrainedTokenizerBase:
    """The tokenizer with its chat template."""
    names = (*CONTROL, *TAGS, *byte_characters())
    core = Tokenizer(BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    # No regular expression and no prefix space: text goes in and comes out byte for byte.
    core.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = ByteDecoder()
    core.add_tokens([AddedToken(name, special=name in CONTROL, normalized=False) for name in (*CONTROL, *TAGS)])
    wrap: Any = PreTrainedTokenizerFast  # its constructor has no annotations
    tokenizer: PreTrainedTokenizerBase = wrap(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[name for name in CONTROL if name not in (PAD, END)],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
    )
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes the tokenizer's files, under the class name that every version of transformers knows."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def render(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], tools: list[Tool], prompting: bool = False
) -> str:
    """A conversation as text; `prompting` appends the token after which the assistant speaks."""
    offered: list[dict[Any, Any] | Callable[..., Any]] = [*tools]
    text = tokenizer.apply_chat_template(
        messages, tools=offered or None, add_generation_prompt=prompting, tokenize=False
    )
    return str(text)


# The network: Qwen3 architecture, small enough for one core


Network = Any
"""A Qwen3ForCausalLM. Its constructor and `generate` have no annotations that a type checker can follow."""

_new: Any = Qwen3ForCausalLM


def build_network(tokenizer: PreTrainedTokenizerBase) -> Network:
    """A freshly initialised model; seed torch before."""
    config = Qwen3Config(
        vocab_size=SIZE,
        hidden_size=160,
        num_hidden_layers=4,
        intermediate_size=512,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return _new(config)


# Training rows: several conversations share one, and position ids restart with each


IGNORED = -100
"""The label that a loss skips."""
PATIENCE = 4
"""Conversations turned away for lack of room before a batch counts as full; more would favour the short ones."""


@dataclass(frozen=True)
class Batch:
    """Rows of one optimizer step; each tensor is rows by length."""

    ids: Tensor
    positions: Tensor
    labels: Tensor


@dataclass
class Packer:
    """Draws conversations and fills rows with them."""

    tokenizer: PreTrainedTokenizerBase
    rows: int
    length: int
    seed: int

    def batch(self, step: int) -> Batch:
        """The batch of a step: a function of seed and step alone, so that a run can be repeated or resumed."""
        rng = Random(f"{self.seed}/{step}")
        source = self.conversations(rng)
        rows: list[list[list[int]]] = [[] for _ in range(self.rows)]
        # First fit: short conversations fill the gaps that long ones leave, until a few in a row find no place.
        turned_away = 0
        while turned_away < PATIENCE:
            ids = next(source)
            row = next((r for r in rows if sum(map(len, r)) + len(ids) <= self.length), None)
            if row is None:
                turned_away += 1
            else:
                row.append(ids)
        return Batch(*(torch.tensor(column) for column in zip(*map(self.fill, rows), strict=True)))

    def conversations(self, rng: Random) -> Iterator[list[int]]:
        """Token ids of one conversation after another."""
        while True:
            skill, problem = mixed(rng)
            messages = script(problem, skill.right(problem, rng))
            text = render(self.tokenizer, messages, problem.tools)
            yield self.tokenizer.encode(text, add_special_tokens=False)

    def fill(self, conversations: list[list[int]]) -> tuple[list[int], list[int], list[int]]:
        """Ids, positions and labels of a row, padded to its length (each pad at position 0, alone with itself)."""
        ids = [i for c in conversations for i in c]
        positions = [p for c in conversations for p in range(len(c))]
        labels = [i for c in conversations for i in self.spoken(c)]
        missing = self.length - len(ids)
        return ids + [0] * missing, positions + [0] * missing, labels + [IGNORED] * missing

    def spoken(self, ids: list[int]) -> list[int]:
        """Labels: the assistant's own tokens with the end of its turn, nothing else."""
        assistant, end = CONTROL.index(ASSISTANT), CONTROL.index(END)
        labels, speaking = [], False
        for i in ids:
            labels.append(i if speaking else IGNORED)
            speaking = i == assistant or (speaking and i != end)
        return labels


# Training: rate and data depend on the step number only, so that a run of the same length repeats itself


PEAK, WARM_UP, DECAY = 3e-3, 100, 0.05


def rate(step: int, steps: int) -> float:
    """A short warm-up, then half a cosine down to almost nothing."""
    return PEAK * min(1.0, (step + 1) / WARM_UP) * max(0.01, (1 + math.cos(math.pi * step / steps)) / 2)


def optimizers(model: Network) -> list[Optimizer]:
    """Muon for the layers' matrices, AdamW for embedding and norms: half as many steps as AdamW alone needs here."""
    matrices: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    for name, weight in model.named_parameters():
        (matrices if weight.ndim == 2 and "embed" not in name else others).append(weight)
    return [
        # Updates of the size that AdamW would make, so that both share one learning rate.
        Muon(matrices, lr=PEAK, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"),
        AdamW(others, lr=PEAK, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def train(model: Network, packer: Packer, steps: int) -> None:
    """Trains in place, on the model's device, and prints a line every 50 steps."""
    model.train()
    device, begun, both = model.device, time.monotonic(), optimizers(model)
    for step in range(steps):
        batch = packer.batch(step)
        # Products in bfloat16, weights and optimizer in float32: twice as fast, on a GPU as on a recent CPU.
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(
                input_ids=batch.ids.to(device),
                position_ids=batch.positions.to(device),
                labels=batch.labels.to(device),
                use_cache=False,  # a cache would switch off the mask between packed conversations
            ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in both:
            for group in optimizer.param_groups:
                group["lr"] = rate(step, steps)
            optimizer.step()
            optimizer.zero_grad()
        if step % 50 == 0 or step == steps - 1:
            speed = (step + 1) * batch.ids.numel() / (time.monotonic() - begun)
            print(f"step {step} of {steps}: loss {loss.item():.3f}, {speed:.0f} tokens/s", flush=True)


LENGTH = 256
"""Tokens of a training row; the longest training conversation has about 200."""


def make(options: argparse.Namespace) -> None:
    """Trains a model and writes it with its tokenizer and the facts of its making; deletes scores of another one."""
    torch.manual_seed(options.seed)
    tokenizer = build_tokenizer()
    network = build_network(tokenizer).to(options.device)
    begun = time.monotonic()
    train(network, Packer(tokenizer, options.rows, LENGTH, options.seed), options.steps)
    facts = {
        "parameters": network.num_parameters(),
        "steps": options.steps,
        "seed": options.seed,
        "tokens": options.steps * options.rows * LENGTH,
        "seconds": round(time.monotonic() - begun),
        "machine": "a GPU" if options.device != "cpu" else f"{options.threads} CPU core{'s'[: options.threads - 1]}",
    }
    network.to(torch.bfloat16).save_pretrained(options.out)
    (options.out / "model.safetensors").chmod(0o644)  # written for its owner only, but shipped to everyone
    save_tokenizer(tokenizer, options.out)
    (options.out / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    for name in ("evaluation.json", "README.md"):
        (options.out / name).unlink(missing_ok=True)
    print("evaluation.json and README.md are deleted: they were about other weights. Measure these, then write both.")


def main() -> None:
    """Make the folder."""
    parser = argparse.ArgumentParser(prog="python -m tools.base", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("engine/models/tiny"), help="the folder to write")
    parser.add_argument("--steps", type=int, default=2500, help="optimizer steps")
    parser.add_argument("--rows", type=int, default=16, help=f"rows of {LENGTH} tokens per step")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="cores to use on a CPU")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    make(options)
