"""The prompts of one task: what it draws for training, what it is measured on, and what training must not meet.

Each component of a mixture has its own. What one of them holds out, no other trains on either.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..environments import Lease
from ..fleet import Services
from ..rollout import PromptHash
from ..trajectories import Split
from .drawing import Drawing
from .evaluation.held_out import DRAWS, HeldOutPrompts
from .groups.endings import never_asks
from .mixture import Component, Mixture
from .trained_policy import TrainedPolicy


@dataclass(frozen=True)
class _Prompts:
    """Of one component."""

    drawing: Drawing
    held_out: HeldOutPrompts
    test: HeldOutPrompts | None

    @property
    def last(self) -> HeldOutPrompts:
        """The one that knows all that is held out."""
        return self.test or self.held_out


class TaskPrompts:
    """The prompts of all components of a task."""

    def __init__(self, services: Services, task: int, first: TrainedPolicy, mixture: Mixture) -> None:
        """``first``: the policy whose groups a curriculum goes by."""
        self._mixture = mixture
        self._of: dict[str, _Prompts] = {}
        measure = first.spec.eval
        for one in mixture.components:
            held_out, test = HeldOutPrompts(services, task, measure.prompts, component=one.name), None
            if measure.test_prompts:
                test = HeldOutPrompts(services, task, measure.test_prompts, "test", held_out, one.name)
            self._of[one.name] = _Prompts(Drawing(services, first.spec, first.number), held_out, test)

    async def look(self) -> None:
        """Look at what is held out, before anything is trained. Raises as ``_held_out`` does."""
        for one in self._mixture.components:
            async with one.environment.bound() as lease:
                await self._held_out(one, lease)

    def of(self, component: Component, split: Split) -> HeldOutPrompts:
        """What a component is measured on; the split ``test`` has to have prompts."""
        own = self._of[component.name]
        return own.last if split == "test" else own.held_out

    def drawing(self, component: Component) -> Drawing:
        """What is drawn for training on a component."""
        return self._of[component.name].drawing

    async def kept_out(self, component: Component, lease: Lease) -> frozenset[PromptHash]:
        """Hashes of the first prompts that training on a component must not meet: what any component holds out, of the
        others as far as they were looked at last. Raises as ``_held_out`` does."""
        own = await self._held_out(component, lease)
        return own.union(*(other.last.newest for name, other in self._of.items() if name != component.name))

    async def _held_out(self, component: Component, lease: Lease) -> frozenset[PromptHash]:
        """What a component holds out. Raises ``Blocked`` as ``HeldOutPrompts.of``, and ``Fruitless`` where no training
        instance asks the model: before any is played."""
        own = self._of[component.name].last
        found = await own.of(lease)
        if not own.asks(lease):
            raise never_asks(lease.environment, f"{DRAWS} training instances that were looked at")
        return found

    def metrics(self, groups: int) -> dict[str, float]:
        """What to show after a number of groups, as ``Drawing.metrics``; of a mixture with the component's name."""
        found = {}
        for one, own in zip(self._mixture.components, self._mixture.before(groups), strict=True):
            before = f"{one.name}: " if one.name else ""
            for name, value in self._of[one.name].drawing.metrics(own).items():
                found[before + name] = value
        return found
