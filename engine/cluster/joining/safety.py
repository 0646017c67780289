"""On which conditions marlaas starts Ray or connects to one: a token, no telemetry, no other judge of memory or cards.

Whoever reaches a Ray without a token runs programs as its account. So a token is required unless ``insecure = true``.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from ...errors import ConfigError
from ...home import ClusterSettings, Home
from .ports import port_variables

TOKEN_BYTES = 32
LONGEST = 4096
"""Bytes of a token's file that are read."""
LEAST_STORE = 75 * 2**20
"""Bytes below which Ray refuses to make an object store."""

FIXED = {
    # Ray asks for consent on a terminal, then reports use to its makers: marlaas tells nobody anything.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Python need agree in its minor version alone: code goes by name, not by value. ``versions`` compares the rest.
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
    # At 95 % of a machine's memory Ray kills its own processes, several at once: here that would be the node host, and
    # with it all workers of the machine. What is short of memory is one worker, which the kernel ends, and the engine
    # then starts with less (``fleet/memory_backoff.py``).
    "RAY_memory_monitor_refresh_ms": "0",
    # Cards are divided by the engine's placement, by the rules of [resources]; a worker is told its own. Without these
    # Ray hides all cards from a process that asks it for none.
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1",
    "RAY_EXPERIMENTAL_NOSET_ROCR_VISIBLE_DEVICES": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray starts its actors at niceness 15, and a node host's children inherit that: they would wait for everybody.
    "RAY_worker_niceness": "0",
    # From this many milliseconds without an answer of its agent on Ray ends the node; its own are 30,000, and a machine
    # that computes takes as long to import what the agent needs.
    "RAY_agent_register_timeout_ms": "120000",
    # A machine that leaves has been drained by the engine; Ray need not wait for work of its own.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    # No server that runs programs from outside of the cluster, and no end of a node whose agent is slow: for neither is
    # there an option.
    "RAY_START_HOOK": "marlaas.engine.cluster.joining.start_hook.prepare",
}
"""The environment of every Ray process that marlaas starts."""


def ray_environment(home: Home, cluster: ClusterSettings) -> dict[str, str]:
    """The environment in which Ray's processes and the bridge run on this machine.

    Raises ``ConfigError`` as ``check_token`` does.
    """
    check_token(home, cluster)
    environment = (
        FIXED
        | port_variables(cluster.ports)
        | {"MARLAAS_HOME": str(home.root), "RAY_AUTH_MODE": "disabled" if cluster.insecure else "token"}
    )
    if cluster.insecure:
        return environment
    # Ray prefers a token in the variable, which may be that of another cluster.
    return environment | {"RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": str(token_file(home, cluster))}


def ray_flags(cluster: ClusterSettings) -> list[str]:
    """Options of ``ray start`` that have nothing to do with addresses and ports."""
    return [
        # No resources of Ray's: it places nothing but one node host a machine, which asks for none, and starts no idle
        # processes in advance.
        "--num-cpus=0",
        "--num-gpus=0",
        # Ray's own default is 30 % of the memory, which the engine's plan of the machine does not know of.
        f"--object-store-memory={max(LEAST_STORE, int(cluster.object_store_gb * 1e9))}",
        # Logs of node hosts lie on their machines; the engine asks for what it needs of them.
        "--include-log-monitor=false",
        "--disable-usage-stats",
    ]


HEAD_FLAGS = (
    # A web page through which programs can be started, and 400 MB.
    "--include-dashboard=false",
    # Rents and gives back machines by load; here people join them.
    "--no-monitor",
)
"""Further options of the head."""


def token_file(home: Home, cluster: ClusterSettings) -> Path:
    """Where this machine's copy of the cluster's token lies."""
    return Path(cluster.token) if cluster.token else home.cluster_token


def check_token(home: Home, cluster: ClusterSettings) -> None:
    """Raise ``ConfigError`` unless there is a token that only this account can read, or ``insecure = true``."""
    if cluster.insecure:
        return
    path = token_file(home, cluster)
    try:
        status = path.stat()
        text = path.read_bytes()[:LONGEST].strip()
    except FileNotFoundError:
        raise ConfigError(
            "This machine has no token of the cluster.",
            "Copy the head's file there, with mode 0600: `marlaas cluster join` on the head tells how.",
            where=str(path),
        ) from None
    except OSError as error:
        raise ConfigError(f"The token cannot be read: {error.strerror}.", where=str(path)) from error
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"Others may read the cluster's token (mode {mode:04o}).",
            f"`chmod 600 {path}` keeps it to yourself; make another if somebody has read it.",
            where=str(path),
        )
    if not text:
        raise ConfigError("The file of the cluster's token is empty.", "Copy the head's file.", where=str(path))


def make_token(home: Home, cluster: ClusterSettings) -> Path:
    """Make a token where there is none; returns its file. Raises ``ConfigError``."""
    path = token_file(home, cluster)
    if not path.exists():
        keep_token(path, secrets.token_hex(TOKEN_BYTES))
    check_token(home, cluster)
    return path


def keep_token(path: Path, token: str) -> None:
    """Write a token that nobody else may read, whole or not at all. Raises ``ConfigError``."""
    token = token.strip()
    if not token or len(token) > LONGEST or not token.isprintable() or " " in token:
        raise ConfigError("What was given is no token.", "A token is one word, as the head's file has it.")
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(token)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ConfigError(f"The token cannot be written: {error.strerror}.", where=str(path)) from error
