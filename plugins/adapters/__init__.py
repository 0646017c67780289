"""Environments that were written for other libraries, each in one line.

    from marlaas.plugins.adapters import reasoning_gym

    chain = reasoning_gym("chain_sum", min_terms=2)

marlaas itself depends on none of these libraries: an adapter imports its library when it is called, in the process of
the plugin that calls it.
"""

from .declaring import dependencies_of
from .gymnasium_worlds import gymnasium
from .openenv_worlds import openenv
from .reasoning_gym_datasets import reasoning_gym
from .textarena_games import textarena
from .tool_classes import tool_class
from .verifiers_rollouts import verifiers, verifiers_taskset

__all__ = [
    "dependencies_of",
    "gymnasium",
    "openenv",
    "reasoning_gym",
    "textarena",
    "tool_class",
    "verifiers",
    "verifiers_taskset",
]
