"""What Ray runs in ``ray start``, once it has read its options, by the name in the variable ``RAY_START_HOOK``.

Imports no ray: Ray imports this.
"""

from __future__ import annotations

from typing import Protocol


class Parameters(Protocol):
    """The part of Ray's parameters that is set here."""

    ray_client_server_port: int | None
    """The port through which programs from outside of the cluster drive it; None: there is none."""


def close_client_server(parameters: Parameters, head: bool) -> None:
    """Have no server for programs from outside: it would run their code. No option of ``ray start`` says so."""
    parameters.ray_client_server_port = None
