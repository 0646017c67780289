"""A plain `def`, with dice: it runs in a thread, and its asks block. For libraries that know no `await`.

    user       You have 0. Say roll or stop.
    assistant  roll
    user       A 5: you have 5. Say roll or stop.
    assistant  stop

A 1 loses everything. The dice come from `ep.noise`, which differs between the members of a group: what is drawn from
`ep.rng` is the same for all of them, so that they can be compared.
"""

from marlaas.plugins import BlockingEpisode, Invalid, env

GOAL = 20


@env
def pig(ep: BlockingEpisode) -> float:
    """Pays what was rolled before the agent stopped, 1 from 20 on."""
    points, opening = 0, "You"
    while points < GOAL:
        said = ep.ask(f"{opening} have {points}. Say roll or stop.", max_tokens=4).text.strip()
        if said == "stop":
            break
        if said != "roll":
            raise Invalid("neither roll nor stop", reward=-0.5)
        die = ep.noise.randint(1, 6)
        if die == 1:
            return 0.0
        points += die
        opening = f"A {die}: you"
    return min(points, GOAL) / GOAL
