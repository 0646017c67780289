"""Makes a base model with random weights in the layout of Qwen2, Qwen2.5, Qwen3 or Llama 3.

Usage:

    python -m tools.random_base --family qwen2.5 --out FOLDER
    python -m tools.random_base --family llama3 --tied --rows 151936 --size bench --shards 2 --out FOLDER
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.random_base.families import FAMILIES, SHAPES
from tools.random_base.make import make_base


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.random_base", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=FAMILIES, required=True, help="whose layout")
    parser.add_argument("--size", choices=SHAPES, default="mini", help="how large (default: mini)")
    parser.add_argument("--tied", action=argparse.BooleanOptionalAction, help="the head is the embedding")
    parser.add_argument("--rows", type=int, help="of the embedding (default: the family's)")
    parser.add_argument("--shards", type=int, default=2, help="files of weights (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default: 0)")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Write the folder; the exit code is 2 where it cannot be made."""
    options = arguments(words)
    try:
        base = make_base(
            options.out,
            options.family,
            options.size,
            tied=options.tied,
            rows=options.rows,
            shards=options.shards,
            seed=options.seed,
        )
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{base.path}: {base.config.architecture}, {base.config.vocab_size} tokens, {base.fingerprint}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
