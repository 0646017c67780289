"""The table ``[resources]`` of ``marlaas.toml``: what marlaas may use of the machine. Data alone."""

from __future__ import annotations

from dataclasses import dataclass

from ..spec import between, one_of


@dataclass(frozen=True)
class ResourceSettings:
    """Settings of what may be used of the machine."""

    gpus: str | tuple[int | str, ...] = "all"
    shared_gpus: bool = False
    gpu_memory: float = between(1.0, 0.01, 1e6)
    share: str = one_of("auto", "auto", "base", "memory", "sleep")
    cores: int = between(0, 0, 65536)
    memory: float = between(0.0, 0.0, 1e6)
    active_hours: str = ""
    idle_minutes: float = between(10.0, 0.0, 1e6)
    nice: int = between(0, 0, 19)
