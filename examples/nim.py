"""Two agents, zero sum: whoever takes the last stone wins.

    system     You are first. Each takes 1 to 3 stones; whoever takes the last one wins.
    user       7 stones. You take:
    assistant  3

Each agent has a conversation of its own, and its own reward, compared with the same agent's in other games.
"""

from marlaas.plugins import Episode, env

RULES = "Each takes 1 to 3 stones; whoever takes the last one wins."
AGENTS = ("first", "second")


@env(agents=AGENTS)
async def nim(ep: Episode, stones: int = 7) -> dict[str, float]:
    """A game of two agents: for one policy that plays itself, or for one against another."""
    agents = [ep.agent(name, system=f"You are {name}. {RULES}") for name in AGENTS]
    left, turn = stones, 0
    while True:
        player, other = agents[turn % 2], agents[1 - turn % 2]
        said = (await player.ask(f"{left} stones. You take:", max_tokens=4)).text.strip()
        taken = int(said) if said in ("1", "2", "3") else 0
        if not 1 <= taken <= left:
            ep.log(broken_rules=player.name)
            return {player.name: -1.0, other.name: 0.0}  # 0: nobody learns to wait for the other's mistake
        left, turn = left - taken, turn + 1
        if not left:
            ep.log(turns=turn)
            return {player.name: 1.0, other.name: -1.0}
