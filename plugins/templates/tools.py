"""Tools: the model looks prices up and buys the cheapest thing.

A tool is a plain function (or an async one) with typed parameters and a docstring: from these the model learns how to
call it. What it returns is shown to the model as text, and so is what it raises.
"""

from marlaas.plugins import Episode, env

THINGS = ("bag", "book", "bowl", "clock", "cup", "ink", "knife", "lamp", "pad", "pen", "rope", "vase")


@env
async def my_env(ep: Episode, items: int = 4) -> float:
    """Buys the cheapest of this many things."""
    names = ep.rng.sample(THINGS, items)
    prices = dict(zip(names, ep.rng.sample(range(1, 100), items), strict=True))
    cart: list[str] = []  # tools are closures: what one episode does is seen by no other

    def price(item: str) -> int:
        """The price of an item."""
        return prices[item]

    def buy(item: str) -> str:
        """Put an item into the cart."""
        cart.append(item)
        return f"{item} costs {prices[item]}"

    # The system prompt and the tools are fixed when the agent is made; `act` lets it call until it answers in words.
    buyer = ep.agent("buyer", system="Buy the cheapest item, then say done.", tools=[price, buy])
    await buyer.act(f"There are: {', '.join(names)}.", max_turns=items + 3)
    ep.log(bought=len(cart))
    return float(cart == [min(prices, key=prices.__getitem__)])
