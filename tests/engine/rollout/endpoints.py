"""Endpoints for tests: slots for a sampler that a test has made."""

from __future__ import annotations

from typing import Any

from marlaas.engine.fairness.line import Line
from marlaas.engine.rollout.conversation import SamplingParameters
from marlaas.engine.rollout.episodes import Role, Roles
from marlaas.engine.rollout.slots import Replicas, SamplerEndpoint, SamplerSlots


def endpoint(sampler: Any, sequences: int, context: int, name: str = "rollout") -> SamplerEndpoint:
    """One of a kind that does not matter."""
    return SamplerEndpoint(name, "torch", sampler, context, SamplerSlots(sequences, Line()))


def alike(sampling: SamplingParameters, endpoint: SamplerEndpoint) -> Roles:
    """One role for all agents, at one sampler."""
    role = Role(sampling, Replicas((endpoint,)))
    return lambda _: role
