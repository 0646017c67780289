"""The author API: everything that an environment file imports. Standard library only.

    from marlaas.plugins import env

    @env
    async def addition(ep, digits: int = 1):
        a, b = (ep.rng.randrange(10**digits) for _ in "ab")
        reply = await ep.ask(f"{a}+{b}=")
        return reply.text.strip() == str(a + b)

An environment is one function that talks to the model. Its keyword parameters are its settings; what it returns is the
reward. It sees text and nothing else: tokens, policies and other tenants stay in the engine. ``env`` explains what
forms it may have, ``Episode`` what it can do; ``examples/`` holds one file for each shape.
"""

from .agent import Agent
from .blocking import BlockingAgent, BlockingEpisode
from .environment import Environment, env
from .episode import Episode
from .messages import Endpoint, Message, Reply, ToolCall
from .parameters import Range
from .rewards import Invalid, Member, Score, Skip, Transcript
from .sandbox import Ran

__all__ = [
    "Agent",
    "BlockingAgent",
    "BlockingEpisode",
    "Endpoint",
    "Environment",
    "Episode",
    "Invalid",
    "Member",
    "Message",
    "Ran",
    "Range",
    "Reply",
    "Score",
    "Skip",
    "ToolCall",
    "Transcript",
    "env",
]
