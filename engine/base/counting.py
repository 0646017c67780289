"""Counts a base's parameters from the headers of its weights. Standard library only, so that screens may ask.

Format of a header: see ``weights``, which reads the values as well and needs numpy.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from ..errors import BaseModelError
from .config import read_config
from .files import CONFIG, weight_files
from .find import find_base


def count_parameters(name: str | Path) -> int:
    """The number of parameters of the base called ``name``; a head that is tied to the embedding counts once.

    Raises ``BaseModelError`` if there is no such base, or its files cannot be read.
    """
    folder = find_base(name)
    tied = read_config(folder / CONFIG).tie_word_embeddings
    shapes = {tensor: shape for file in weight_files(folder) for tensor, shape in _shapes(file).items()}
    return sum(math.prod(shape) for tensor, shape in shapes.items() if not (tied and tensor == "lm_head.weight"))


def _shapes(file: Path) -> dict[str, list[int]]:
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(length)) if length < file.stat().st_size else None
        if not isinstance(header, dict):
            raise ValueError("its header is longer than the file")
        return {name: list(told["shape"]) for name, told in header.items() if name != "__metadata__"}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BaseModelError(
            f"The weights cannot be read: {error}.", "Copy the file again.", where=str(file)
        ) from error
