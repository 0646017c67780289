"""Tools with a state of their own: buy the cheapest thing in the shop.

    system     Buy the cheapest thing, then say "done".
    user       There are ink, pen, pad.
    assistant  <tool_call>{"name": "price", "arguments": {"item": "ink"}}</tool_call>
    tool       7

A tool is a function with typed parameters and a docstring. Its exceptions are told to the model, which may try again.
"""

from marlaas.plugins import Episode, env

THINGS = ("ink", "pen", "pad", "cup", "map", "jar", "hat", "bag", "key", "box", "pin", "rug")


@env
async def shop(ep: Episode, things: int = 3, turns: int = 6) -> float:
    """Pays for a cart that holds the cheapest thing alone."""
    prices = dict(zip(ep.rng.sample(THINGS, things), ep.rng.sample(range(1, 10), things), strict=True))
    cart: list[str] = []

    def price(item: str) -> int:
        """The price of a thing."""
        return prices[item]

    def buy(item: str) -> str:
        """Put a thing into the cart."""
        cart.append(item)
        return f"{len(cart)} in the cart"

    buyer = ep.agent("buyer", system='Buy the cheapest thing, then say "done".', tools=[price, buy])
    await buyer.act(f"There are {', '.join(prices)}.", max_turns=turns)
    return float(cart == [min(prices, key=prices.__getitem__)])
