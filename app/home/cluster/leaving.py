"""Takes this machine out of its cluster: its own Ray ends, and nobody else's."""

from __future__ import annotations

import contextlib
import shutil

from marlaas.engine.cluster import AUTO, LocalNode, local_node, ray_folder, stop_ray
from marlaas.engine.daemon import control
from marlaas.engine.errors import ConfigError
from marlaas.engine.home import Home, load_settings

from ..settings_file import write_cluster

WORKERS = ("marlaas.engine.workers.host", "marlaas.plugins.host", "marlaas.engine.workers.template")
"""Modules of the processes that a node host starts."""


def leave(home: Home, force: bool) -> LocalNode:
    """End this machine's Ray, or forget one that has died, whose ``pid`` is then 0.

    Raises ``ConfigError`` where it is in no cluster, or where tasks run over it. ``force`` leaves all the same: for
    tasks that is the death of their workers here.
    """
    node = local_node(home)
    if node is None:
        stop_ray(home)  # what one that was killed has left behind
        shutil.rmtree(ray_folder(home), ignore_errors=True)
        address = load_settings(home).cluster.address
        if address in ("", AUTO):
            raise ConfigError("This machine is in no cluster.", "`marlaas cluster join` joins one, or begins one.")
        write_cluster(home.config, "")  # the next engine works on this machine alone
        return LocalNode(0, address, True, "", "")
    if not force:
        _check_idle(home, node)
    stop_ray(home)
    if node.is_head:
        write_cluster(home.config, "")
    shutil.rmtree(ray_folder(home), ignore_errors=True)
    return node


def _check_idle(home: Home, node: LocalNode) -> None:
    """Raise ``ConfigError`` where something of this machine's is at work in the cluster."""
    if node.is_head and control.alive(home):
        raise ConfigError(
            "The engine works over this cluster.",
            "`marlaas engine drain` ends it between steps, and loses nothing; `--force` leaves at once.",
        )
    if busy := workers(node):
        raise ConfigError(
            f"{busy} of the engine's workers {'runs' if busy == 1 else 'run'} on this machine.",
            f"`marlaas cluster drain {node.name}` on the head moves them at the next commit; `--force` leaves at once.",
        )


def workers(node: LocalNode) -> int:
    """How many processes of an engine run on this machine, below its Ray."""
    import psutil

    found = 0
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(node.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found += any(word in WORKERS for word in child.cmdline())
    return found
