"""Why no cluster answers is one sentence, whatever Ray had to say."""

from __future__ import annotations

import pytest

from marlaas.engine.machine.cluster.node import reason_in

DIED = "Worker bridge could not start with exit status 1: [2026 E 30358] Failed to connect to GCS within"
NO_TOKEN = "Failed to connect to Ray cluster at 10.0.0.5:6379\nFailed to connect to GCS.\nInvalidAuthToken: missing\n"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (NO_TOKEN, "it does not accept this machine's token"),
        (DIED, "what listens there does not speak as Ray does"),
        ("ray.exceptions.RpcError: RPC error: Received http2 header with status: 404", "what listens there does not"),
        (
            "Version mismatch: The cluster was started with:\n  Ray: 2.60.0\n",
            "the cluster runs another version of Python or Ray",
        ),
        ("Traceback\nValueError: it broke.\n\n", "it broke"),
        ("bind: Address already in use", "a port is taken; `port` and `ports` under [cluster] name others"),
        ("", "it left no word"),
    ],
)
def test_it_says_why_in_one_sentence(said: str, why: str) -> None:
    assert reason_in(said).startswith(why) and "\n" not in reason_in(said)
