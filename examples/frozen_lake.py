# /// script
# dependencies = ["gymnasium==1.4.0"]
# ///
"""A Gymnasium world: two functions say what it looks like, and what a reply means."""

from marlaas.plugins.adapters import gymnasium

MOVES = {"left": 0, "down": 1, "right": 2, "up": 3}


def describe(square: int) -> str:
    """What the model is told of an observation."""
    return (
        f"You are in row {square // 4}, column {square % 4} of a frozen lake of 4 by 4; the goal is in the far corner."
    )


def act(text: str) -> int:
    """What a reply means; a ``ValueError`` ends the episode as invalid."""
    if text.strip() not in MOVES:
        raise ValueError(f"say one of {', '.join(MOVES)}")
    return MOVES[text.strip()]


frozen_lake = gymnasium("FrozenLake-v1", name="frozen_lake", describe=describe, act=act, is_slippery=False)
