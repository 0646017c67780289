"""Asks a Ray head, in a process of its own: whether it wants a token, who is in the cluster, which ports are open.

``ask`` runs this module as a program with a time limit, because a client of Ray waits long, writes to the terminal, and
may end its process. What the program prints last is JSON. Here only the program imports ray.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from ...programs import run_program
from ..unreached import no_head, plainly, refuses_token

SECONDS = 45.0
"""Seconds that a question may take in all, with the imports of a busy machine."""
KEY = b"marlaas/head"
"""Where the head's record lies in Ray's key-value store."""
SPACE = b"marlaas"
MARK = "marlaas-answer "
"""Begins the line with the answer."""
PATIENCE = 10
"""Seconds that one request to Ray may take."""
HASTE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "3"}
"""A client of Ray tries for a minute to reach what is no head."""


def ask(
    what: str, address: str, environment: Mapping[str, str], given: object = None, seconds: float = SECONDS
) -> dict[str, Any]:
    """Run ``look``, ``tell`` or ``meet`` against the head at ``address``; ``given`` is what ``tell`` writes.

    Never raises: where it fails, ``failed`` of the answer has the kind, ``token``, ``time`` or ``other``, and ``why``
    the last thing that was said.
    """
    command = [sys.executable, "-P", "-m", "marlaas.engine.cluster.joining.asking", what, address, json.dumps(given)]
    try:
        status, said = run_program(command, seconds, {**HASTE, **environment})
    except TimeoutError as error:
        return {"failed": "time", "why": str(error)}
    except OSError as error:
        return {"failed": "other", "why": str(error)}
    return answer_in(said, status)


def answer_in(said: str, status: int) -> dict[str, Any]:
    """The answer in what the program printed."""
    for line in reversed(said.splitlines()):
        if line.startswith(MARK):
            found = json.loads(line.removeprefix(MARK))
            return found if isinstance(found, dict) else {"failed": "other", "why": "no answer"}
    last = next((line for line in reversed(said.splitlines()) if line.strip()), f"status {status}")
    why = "it does not speak as Ray does" if no_head(said) else plainly(last)
    return {"failed": "token" if refuses_token(said) else "other", "why": why}


def look(address: str, given: object) -> dict[str, Any]:
    """Who is in the cluster, and the record that its head left."""
    from ray._raylet import GcsClient

    client = GcsClient(address=address)
    record = client.internal_kv_get(KEY, SPACE, timeout=PATIENCE)
    nodes = [
        {
            "id": node_id.hex(),
            "name": info.node_name,
            "address": info.node_manager_address,
            "alive": info.state == 0,
            "head": info.is_head_node,
        }
        for node_id, info in client.get_all_node_info(timeout=PATIENCE).items()
    ]
    return {"nodes": nodes, "record": json.loads(record) if record else {}}


def tell(address: str, given: object) -> dict[str, Any]:
    """Leave a record of the head for those who join."""
    from ray._raylet import GcsClient

    GcsClient(address=address).internal_kv_put(KEY, json.dumps(given).encode(), True, SPACE, timeout=PATIENCE)
    return {}


def meet(address: str, given: object) -> dict[str, Any]:
    """Run a function on the head from this machine, and time it: all ports that are needed must be open both ways."""
    import time

    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=address, namespace="marlaas", log_to_driver=False, configure_logging=False)
    head = next(
        node["NodeID"] for node in ray.nodes() if node["Alive"] and "node:__internal_head__" in node["Resources"]
    )
    place = NodeAffinitySchedulingStrategy(head, soft=False)
    clock = ray.remote(num_cpus=0, max_retries=0)(lambda: time.time()).options(scheduling_strategy=place)
    ray.get(clock.remote())  # starts a process there
    readings = []
    for _ in range(5):
        asked = time.time()
        answered = ray.get(clock.remote())
        readings.append((asked, answered, time.time()))
    ray.shutdown()
    return {"clock": min(readings, key=lambda one: one[2] - one[0])}


PROGRAM = {"look": look, "tell": tell, "meet": meet}

if __name__ == "__main__":
    answered = PROGRAM[sys.argv[1]](sys.argv[2], json.loads(sys.argv[3]))
    print(f"\n{MARK}{json.dumps(answered)}", flush=True)
    os._exit(0)  # Ray's own threads have nothing to finish
