"""A node host as an actor of Ray, pinned to its node: started once, called, and ended. Part of the bridge.

Ray restarts and repeats nothing here: that is the engine's decision.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..errors import MarlaasError
from .bridge import HostLost
from .node_host import NodeHost


class RayHost:
    """Implements ``bridge.Host``."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._actor = (
            ray.remote(NodeHost)
            .options(
                num_cpus=0,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote()
        )

    async def call(self, method: str, *args: Any) -> tuple[Any, Any]:
        reference = getattr(self._actor, method).remote(*args)
        try:
            return reference, await reference
        except RayTaskError as error:
            if isinstance(error.cause, MarlaasError):
                raise error.cause from None
            raise
        except ActorUnschedulableError:
            raise HostLost(f"node {self._node[:8]} is not in the cluster") from None
        except RayActorError as error:
            how = "is not reached" if isinstance(error, ActorUnavailableError) else "is gone"
            raise HostLost(f"the node host on node {self._node[:8]} {how}") from None

    def kill(self) -> None:
        ray.kill(self._actor, no_restart=True)
