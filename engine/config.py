"""Settings of a home: ``marlaas.toml`` < environment variables < command line; unknown keys are refused.

Standard library only. ``DOCUMENTED`` is the file that a new home starts with: every key with its default and reason.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, replace

from .errors import ConfigError
from .paths import Home
from .validation import between, build, one_of

DOCUMENTED = """\
# Settings of this marlaas home. Every key is shown with its default; remove the # to change one.

# The base model that all tasks of this home share: "tiny" (ships with marlaas) or a folder.
# base = "tiny"

[engine]
# Tasks that train at the same time; others wait in the queue.
# tasks = 8

[rollout]
# What samples: "llama.cpp", or "torch" with the trainer's own kernels, which is faster for bases of a few million
# parameters where many conversations run at once (measured in BENCHMARKS.md), and knows Qwen and Llama bases only.
# sampler = "llama.cpp"
# Conversations sampled at the same time, and the tokens that each may grow to.
# sequences = 128
# context = 512
# llama.cpp's attention in float32 throughout: log-probabilities agree with the trainer's to 1e-5. Without it they
# agree to a few hundredths, at up to twice the speed for contexts below 200 tokens.
# exact = true

[training]
# Bring every state file to the disk before its step commits: a power cut then costs a second of work at most.
# sync = true
"""


@dataclass(frozen=True)
class EngineSettings:
    """The schedule."""

    tasks: int = between(8, 1, 1024)


@dataclass(frozen=True)
class RolloutSettings:
    """The sampler."""

    sampler: str = one_of("llama.cpp", "llama.cpp", "torch")
    sequences: int = between(128, 2, 256)
    context: int = between(512, 32, 1048576)
    exact: bool = True


@dataclass(frozen=True)
class TrainingSettings:
    """The trainer."""

    sync: bool = True


@dataclass(frozen=True)
class Settings:
    """All of ``marlaas.toml``."""

    base: str = "tiny"
    engine: EngineSettings = EngineSettings()
    rollout: RolloutSettings = RolloutSettings()
    training: TrainingSettings = TrainingSettings()


def load_settings(home: Home) -> Settings:
    """Read a home's settings; a missing file means defaults. Raises ``ConfigError``."""
    try:
        table = tomllib.loads(home.config.read_text(encoding="utf-8")) if home.config.exists() else {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{home.config} cannot be read: {error}.") from error
    settings = build(Settings, table, str(home.config))
    base = os.environ.get("MARLAAS_BASE")
    return replace(settings, base=base) if base else settings
