"""Messages to a plugin's process: records as it reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marlaas.plugins.host.channel import Record
from marlaas.plugins.messages import Endpoint, Reply

from ..protocol import EpisodeSpec


def encode_start(episode: int, environment: str, spec: EpisodeSpec) -> Record:
    """The message that starts an episode."""
    return {
        "op": "start",
        "episode": episode,
        "environment": environment,
        "split": spec.split,
        "index": spec.index,
        "seed": spec.seed,
        "member": spec.member,
        "config": spec.config,
        "timeout": spec.timeout,
        "data": spec.data,
    }


def encode_facts(question: int, environment: str, data: Mapping[str, Any] | None, survey: bool) -> Record:
    """The message that asks about an environment's rows."""
    return {"op": "facts", "episode": question, "environment": environment, "data": data, "survey": survey}


def encode_reply(id: int, reply: Reply) -> Record:
    """The message that answers an ask."""
    calls = [{"name": call.name, "arguments": call.arguments} for call in reply.tool_calls]
    return {
        "op": "reply",
        "id": id,
        "text": reply.text,
        "finish": reply.finish,
        "turn": reply.turn,
        "tool_calls": calls,
        "thinking": reply.thinking,
    }


def encode_endpoint(id: int, endpoint: Endpoint, socket: str = "") -> Record:
    """The message that gives an episode its address; ``socket`` is the file that leads there without a network."""
    return {"op": "endpoint", "id": id, "error": "", "url": endpoint.url, "key": endpoint.key, "socket": socket}


def encode_no_endpoint(id: int, reason: str) -> Record:
    """The message that refuses one."""
    return {"op": "endpoint", "id": id, "error": reason, "url": "", "key": "", "socket": ""}


def encode_calls(episode: int, agent: str, under_way: int, replies: int) -> Record:
    """The message that a program has called the model, or has been answered; see ``protocol.Listener``."""
    return {"op": "calls", "episode": episode, "agent": agent, "under_way": under_way, "replies": replies}
