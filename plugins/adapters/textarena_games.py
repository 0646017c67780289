"""Games of TextArena: players get only new messages, by the ``-raw`` form; the usual one repeats the whole game.

Agents are ``player0``, …; a game for one player has the usual agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..environment import Environment
from ..episode import Episode
from ..rewards import DEFAULT_AGENT
from .declaring import declared, library, own_random

_GAME = -1


def textarena(
    game: str,
    *,
    players: int = 2,
    name: str | None = None,
    system: str | None = None,
    max_turns: int = 200,
    timeout: float = 60.0,
    **options: Any,
) -> Environment:
    """A game of TextArena as an environment.

    ``game``: its id, such as ``"TicTacToe-v0"``. ``options`` go to ``textarena.make``. The reward of a player is what
    the game pays it; a move against the rules is answered, and punished, as the game does. A game that is not over
    after ``max_turns`` turns of all players together pays nobody, and is logged as ``unfinished``.
    """
    make = library("textarena").make
    names = [f"player{number}" for number in range(players)] if players > 1 else [DEFAULT_AGENT]
    raw = game if game.endswith("-raw") else f"{game}-raw"

    @own_random
    async def play(ep: Episode) -> dict[str, float]:
        table = make(raw, **options)
        table.reset(num_players=players, seed=ep.rng.getrandbits(31))
        agents = [ep.agent(name, system=system) for name in names]
        for turn in range(1, max_turns + 1):
            player, messages = table.get_observation()
            reply = await agents[player].ask(heard(messages, player))
            done, _ = table.step(reply.text)
            ep.log(turns=turn)
            if done:
                break
        else:
            ep.log(unfinished=1.0)
        rewards, players_info = table.close()
        ep.log(invalid_moves=sum(bool(info.get("invalid_move")) for info in players_info.values()))
        return {agent.name: float((rewards or {}).get(number, 0.0)) for number, agent in enumerate(agents)}

    about = f"The game {game} of TextArena, {players} to play."
    return declared(play, name or game, about, timeout=timeout, agents=names if players > 1 else ())


def heard(messages: Sequence[tuple[int, str, Any]] | str, player: int) -> str:
    """Others' new messages, with the sender's name."""
    if isinstance(messages, str):
        return messages
    said = ((sender, text.strip()) for sender, text, *_ in messages if sender != player)
    return "\n".join(text if sender == _GAME else f"[Player {sender}] {text}" for sender, text in said)
