"""Versions that a sampler can load: state files for the shipped base beside rows that name them."""

from __future__ import annotations

import json

from marlaas.engine.adapters.statefile import PolicyState, StateHeader, checksum, write_state
from marlaas.engine.home.paths import Home
from marlaas.engine.machine.lone_sampler import zeros
from marlaas.engine.models.find import load_base
from marlaas.engine.spec.task import SamplingSpec, TaskSpec

from .filling import Filling


def with_silent_adapter(filling: Filling, home: Home, made: int = 2) -> int:
    """A finished task whose last version changes nothing: it says what the base says."""
    task = filling.task(name="sums", state="done", steps=made, made=made)
    base = load_base("tiny")
    adapter = zeros(base.config)
    path = home.root / "adapters" / str(task) / f"{made}.safetensors"
    path.parent.mkdir(parents=True)
    size = write_state(path, PolicyState(StateHeader(1, 1.0, made, base.fingerprint), adapter), sync=False)
    filling.execute(
        "UPDATE versions SET checksum = ?, size = ?, resumable = 0 WHERE number = ? AND policy ="
        " (SELECT id FROM policies WHERE task = ?)",
        checksum(adapter),
        size,
        made,
        task,
    )
    spec = TaskSpec("physics-lab", "sums", "arithmetic", steps=made, sampling=SamplingSpec(max_tokens=24))
    filling.execute("UPDATE tasks SET config = ? WHERE id = ?", json.dumps(spec.to_json()), task)
    return task
