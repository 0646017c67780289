"""Makes the shipped base in one go: tokenizer, training, evaluation, card.

Usage:

    python -m tools.base                        the shipped model, about 20 minutes on one core
    python -m tools.base --device cuda          the same on a GPU
    python -m tools.base --score                evaluates the folder as it is and rewrites its card
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from tools.base import card, model, train, vocabulary
from tools.base.evaluate import evaluate
from tools.base.packing import Packer

LENGTH = 256
"""Tokens of a training row; the longest training conversation has about 200."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.base", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("engine/base/tiny"), help="the folder to write")
    parser.add_argument("--steps", type=int, default=2500, help="optimizer steps")
    parser.add_argument("--rows", type=int, default=16, help=f"rows of {LENGTH} tokens per step")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="cores to use on a CPU")
    parser.add_argument("--prompts", type=int, default=512, help="held-out prompts per skill")
    parser.add_argument("--score", action="store_true", help="only evaluate what the folder holds")
    return parser.parse_args()


def save(path: Path, facts: dict[str, Any]) -> None:
    """Writes a JSON file that reads well in a diff."""
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def make(options: argparse.Namespace) -> None:
    """Trains a model and writes it with its tokenizer and the facts of its making."""
    torch.manual_seed(options.seed)
    tokenizer = vocabulary.build()
    network = model.build(tokenizer).to(options.device)
    begun = time.monotonic()
    train.train(network, Packer(tokenizer, options.rows, LENGTH, options.seed), options.steps)
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
    vocabulary.save(tokenizer, options.out)
    save(options.out / "training.json", facts)


def main() -> None:
    """Makes or only scores the folder."""
    options = arguments()
    torch.set_num_threads(options.threads)
    if not options.score:
        make(options)
    network = model.load(options.out).to(options.device)
    scores = evaluate(network, AutoTokenizer.from_pretrained(options.out), options.prompts)
    save(options.out / "evaluation.json", {"prompts": options.prompts, "skills": scores})
    card.write(options.out)


if __name__ == "__main__":
    main()
