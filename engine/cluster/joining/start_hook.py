"""What Ray runs in ``ray start``, once it has read its options, by the name in the variable ``RAY_START_HOOK``.

Here only this and the programs that speak with Ray import it: it runs in Ray's own process.
"""

from __future__ import annotations

from typing import Any, Protocol


class Parameters(Protocol):
    """The part of Ray's parameters that is used here."""

    ray_client_server_port: int | None
    """The port through which programs from outside of the cluster drive it; None: there is none."""


def prepare(parameters: Parameters, head: bool) -> None:
    """Have no server for programs from outside: it would run their code. No option of ``ray start`` says so.

    And let a busy machine's node start.
    """
    parameters.ray_client_server_port = None
    tell_listen_port()


def tell_listen_port() -> None:
    """Have the port of a node's agent known before it listens there.

    A node asks for it in a file, and ends where the agent has not written it within 15 s (ray#65983): on a busy machine
    the agent's imports alone take as long. No option or variable sets that time, and the port is not told on the
    command line as the others are. It is fixed, so what is written is what the agent will write.
    """
    try:
        from ray._private.node import Node
        from ray._raylet import persist_port

        start = Node.start_raylet
    except (ImportError, AttributeError):  # another Ray: it waits as it does
        return

    def start_raylet(node: Any, *args: Any, **kwargs: Any) -> None:
        name = "dashboard_agent_listen_port"
        persist_port(node._session_dir, node._node_id, name, getattr(node._ray_params, name))
        start(node, *args, **kwargs)

    Node.start_raylet = start_raylet
