"""From posts to live workers and back: which processes a staffing takes, and which of them answers for which post.

Sampler and trainer that share a card with one copy of the base, or by turns, are one process of two parts; all others
are a process each. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..base.model import BaseModel
from ..devices.plan import SamplerPost
from ..home.paths import Home
from ..home.settings import Settings
from ..rollout.protocol import Sampler
from ..training.protocol import Trainer
from ..workers.handle import WorkerHandle
from .placement_plan import Staffing
from .worker_specs import (
    IN_ONE_PROCESS,
    SAMPLER_PART,
    TRAINER_PART,
    WorkerSpec,
    sampler_on_card,
    sampler_spec,
    shared_spec,
    trainer_on_cards,
    trainer_spec,
    wanted_of,
)

Handles = Mapping[str, WorkerHandle]


def worker_specs(base: BaseModel, home: Home, settings: Settings, staff: Staffing) -> list[WorkerSpec]:
    """All processes that are to be started."""
    posts, plans, machine = staff.placement.samplers, staff.memory, staff.machine
    trainer = trainer_spec(base, home, settings, plans[0], staff.placement.trainer)
    if staff.placement.trainer.place.gpus and machine:
        trainer = trainer_on_cards(trainer, staff.placement.trainer, machine)
    shared = sharing_post(staff)
    specs = [] if shared else [trainer]
    for post, plan in zip(posts, plans, strict=True):
        spec = sampler_spec(base, home, settings, plan, post)
        if post.place.gpus and machine:
            spec = sampler_on_card(spec, post, machine, wanted_of(base, settings, trains=True))
        specs.append(shared_spec(spec, trainer, post.sharing) if post is shared else spec)
    return specs


def sharing_post(staff: Staffing) -> SamplerPost | None:
    """The sampler that is one process with the trainer, if there is one."""
    if staff.placement.trainer.sharing not in IN_ONE_PROCESS:
        return None
    return next((post for post in staff.placement.samplers if post.sharing == staff.placement.trainer.sharing), None)


def sampler_at(handles: Handles, staff: Staffing, post: SamplerPost) -> Sampler:
    """Who samples at a post."""
    part = SAMPLER_PART if post is sharing_post(staff) else ""
    sampler: Sampler = handles[post.name].proxy(Sampler, posted=("release",), part=part)
    return sampler


def trainer_at(handles: Handles, staff: Staffing) -> Trainer:
    """Who trains."""
    shared = sharing_post(staff)
    name, part = (shared.name, TRAINER_PART) if shared else (staff.placement.trainer.name, "")
    trainer: Trainer = handles[name].proxy(Trainer, part=part)
    return trainer
