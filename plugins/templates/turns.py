"""Several turns: the model looks for a number and is shown whether to go higher or lower."""

from marlaas.plugins import Episode, Invalid, env


@env(timeout=20)  # seconds of one episode; waiting for the model does not count
async def my_env(ep: Episode, width: int = 50, turns: int = 6) -> float:
    """Finds one of `width` numbers in this many turns."""
    low = ep.rng.randint(0, 900)
    secret = ep.rng.randint(low, low + width - 1)
    say = f"Guess my number from {low} to {low + width - 1}. Answer with a number only."
    for turn in range(turns):
        reply = await ep.ask(say, max_tokens=8)  # each ask is one more turn of the same conversation
        said = reply.text.strip()
        if not said.isdecimal():
            raise Invalid(f"{said!r} is no number", reward=0.0)  # the rules were broken: trained on, with this reward
        if int(said) == secret:
            ep.log(turns=turn + 1)
            return 1.0 - 0.5 * turn / turns  # early is better
        say = "Higher." if int(said) < secret else "Lower."
    return 0.0
