"""What must hold before a task plays: room on the disk and an environment, then samplers that can do what it asks.

And its place at the router, which decides which of them serve it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from ..base import SAMPLERS
from ..environments import EnvironmentService
from ..errors import Blocked, ConfigError
from ..fleet import Services
from ..spec import TaskSpec, agent_map_of
from ..store import Store
from ..trajectories import Split
from .environment import Mixture


async def check_ready(
    task: int, spec: TaskSpec, store: Store, environments: EnvironmentService, shortage: Callable[[], str]
) -> None:
    """Raise ``Blocked`` where the disk is short of room, or no environment serves the task or will play with it."""
    check_room(shortage)
    first = agent_map_of(spec).trained[0] if spec.kind == "train" else spec.versions[0]
    policy = store.versions.policy(task, first, {}, cast(Split, spec.eval.split))
    tell = partial(store.telemetry.event, "environment", task=task)
    mixture = Mixture(environments, spec, store.experience, policy, tell)
    await mixture.check()
    for component in mixture.components:
        async with component.environment.bound():
            pass


def check_room(shortage: Callable[[], str]) -> None:
    """Raise ``Blocked`` before the disk is full: the task goes on by itself once there is room."""
    if short := shortage():
        raise Blocked(short)


def check_servable(spec: TaskSpec, services: Services) -> None:
    """Raise ``ConfigError`` for thinking that the base's template does not know, and for what cannot be repeated."""
    services.rollout.check_thinking(spec.sampling.thinking)
    endpoints = services.endpoints.values()
    if not spec.train.deterministic or any(endpoint.repeatable for endpoint in endpoints):
        return
    if any(SAMPLERS[endpoint.kind].repeats for endpoint in endpoints):  # of these llama.cpp alone may not
        raise ConfigError(
            "The task asks for 'train.deterministic', but llama.cpp's arithmetic in this precision is not repeatable.",
            'Set `weights` under [rollout] in marlaas.toml to "q8_0", "f16" or "f32", or leave `deterministic` out.',
        )
    raise ConfigError(
        "The task asks for 'train.deterministic', but the last bits of what vLLM says depend on what else it is asked.",
        'Set `sampler = "llama.cpp"` or "torch" under [rollout] in marlaas.toml, or leave `deterministic` out.',
    )


async def join_router(services: Services, task: int, spec: TaskSpec, policies: Sequence[int]) -> None:
    """Register with the router, and wait until a sampler that may serve the task lives; a deterministic task stays with
    the kind of sampler that it began with.

    ``policies`` are the numbers of the task's own policies in the store.
    """
    versions = services.store.versions
    kind = services.router.join(task, spec, versions.sampler(policies[0]))
    for policy in policies:
        versions.keep_sampler(policy, kind)
    await services.router.served(task)
