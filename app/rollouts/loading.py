"""Reads a conversation, the others of its episode, and what its group answered into the page that shows them.

Slow: call it in a thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from marlaas.engine.home import Home
from marlaas.engine.store import StoredConversation

from ..reading.opening import opened
from .document import Block
from .group_replies import group_replies
from .pieces import home_decoder
from .reading import episode_blocks, marked
from .shading import TURNS, Shading, shading_of


@dataclass(frozen=True)
class Wish:
    """What somebody wants to read, and how it is shaded."""

    conversation: int
    shade: str = TURNS
    word: str = ""
    """A word to be marked."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A conversation, ready to be shown."""

    wish: Wish
    conversation: StoredConversation | None
    """None where it is gone."""
    blocks: tuple[Block, ...] = ()
    episode: tuple[StoredConversation, ...] = ()
    """The conversation, and behind it the others of its episode."""
    shading: Shading = field(default_factory=lambda: Shading(TURNS))
    first: tuple[int, int] | None = None
    """The first place of the word: (block, character)."""


def load(home: Home, wish: Wish) -> Loaded:
    """Read the conversation and lay it out. Raises ``StoreError``."""
    with opened(home) as reader:
        together = reader.episode(wish.conversation)
        group = reader.group_rows([together[0].group]).get(together[0].group) if together else None
    if not together:
        return Loaded(wish, None, (Block("This conversation has gone.", "$text-muted"),))
    found = together[0]
    shading = shading_of(wish.shade, found)
    decode, problem = (None, "") if wish.shade == TURNS or shading.lacking else home_decoder(home)
    shown, first = marked(episode_blocks(together, shading, decode, problem), wish.word)
    shown += group_replies(group, found) if group is not None else []
    return Loaded(wish, found, tuple(shown), tuple(together), shading, first)
