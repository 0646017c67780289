"""The author API: everything that an environment file imports. Standard library only.

    from marlaas.plugins import env

    @env
    async def addition(ep, digits: int = 1):
        a, b = (ep.rng.randrange(10**digits) for _ in "ab")
        reply = await ep.ask(f"{a}+{b}=")
        return reply.text.strip() == str(a + b)

An environment is one function that talks to the model. Its keyword parameters are its settings; what it returns is the
reward. It sees text and nothing else: tokens, policies and other tenants stay in the engine.
"""

from .agent import Agent
from .blocking import BlockingAgent, BlockingEpisode
from .definition import Environment, env
from .episode import Episode
from .messages import Message, Reply, ToolCall
from .rewards import Invalid, Score, Skip

__all__ = [
    "Agent",
    "BlockingAgent",
    "BlockingEpisode",
    "Environment",
    "Episode",
    "Invalid",
    "Message",
    "Reply",
    "Score",
    "Skip",
    "ToolCall",
    "env",
]
