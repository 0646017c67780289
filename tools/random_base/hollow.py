"""A base of which only sizes and shapes are there: what plans for it reads these, and nothing can be computed with it.

Its weights are a hole in a file, which takes no room on the disk.
"""

from __future__ import annotations

import json
from pathlib import Path

from marlaas.engine.base import BaseModel, load_base, read_config
from tools.random_base.families import FAMILIES, SHAPES
from tools.random_base.make import config, specs


def hollow_base(folder: Path, family: str = "qwen2.5", shape: str = "0.5b") -> BaseModel:
    """Write one of ``FAMILIES`` and ``SHAPES`` into ``folder``, which is made if it lacks."""
    kind = FAMILIES[family]
    settings = config(kind, SHAPES[shape], kind.tied, kind.rows)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(settings), "utf-8")
    header, end = {}, 0
    for spec in specs(read_config(path), settings):
        begin, end = end, end + 2 * spec.size
        header[spec.name] = {"dtype": "BF16", "shape": spec.shape, "data_offsets": [begin, end]}
    words = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(words).to_bytes(8, "little") + words)
        file.truncate(file.tell() + end)
    return load_base(folder)
