"""Ray runs this in ``ray start``, by the name in the variable ``RAY_START_HOOK``."""

from __future__ import annotations

from typing import Any, Protocol


class Parameters(Protocol):
    """The used part of Ray's parameters."""

    ray_client_server_port: int | None


def prepare(parameters: Parameters, head: bool) -> None:
    """Disable the server for outside programs: it would run their code, and ``ray start`` has no option for it.

    And let a busy machine's node start.
    """
    parameters.ray_client_server_port = None
    tell_listen_port()


def tell_listen_port() -> None:
    """Publish the port of a node's agent before the agent listens.

    A node ends if the agent has not written it within 15 s (ray#65983): on a busy machine the agent's imports take as
    long.
    """
    try:
        from ray._private.node import Node
        from ray._raylet import persist_port

        start = Node.start_raylet
    except (ImportError, AttributeError):
        return

    def start_raylet(node: Any, *args: Any, **kwargs: Any) -> None:
        name = "dashboard_agent_listen_port"
        persist_port(node._session_dir, node._node_id, name, getattr(node._ray_params, name))
        start(node, *args, **kwargs)

    Node.start_raylet = start_raylet
