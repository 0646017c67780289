"""Seconds that a prefilled and a sampled token take at a sampler, learnt from its totals (``SamplerStats``). Pure.

A guess gives the proportion, and the busy seconds give the scale. Windows of different mixes tell the two kinds of
token apart: where all mixes are alike, the guess's proportion stays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...devices import Rates
from .assignment import TokenCosts

HALF_LIFE = 60.0
"""Busy seconds after which a window counts half: tasks come and go, and contexts grow."""
SHORTEST = 1e-3
"""Least busy seconds of a window."""
NOTHING = 1e-9
"""Seconds, by the guess, of a window in which nothing was computed: squares of much less would not be numbers."""
PULL = 0.02
"""Pull towards the guess's proportion, as a share of what was measured."""
LEAST = 0.05
"""Least cost of either kind of token, as a share of the scaled guess: none is free."""
ROWS = 32
"""Conversations that a guess takes to be sampled in one pass."""
REACHED = 0.5
"""Share of a device's measured rates that such passes reach; a guess."""
PROPORTION = 3.0
"""Cost of a sampled token over a prefilled one, where no rates are known: 1 to 11 was measured on a processor
(``fairness/costs.py``)."""


@dataclass(frozen=True)
class CostMeter:
    """Costs of one sampler: begin with ``guessed``, give it totals with ``seen``, ask ``costs`` at any time."""

    guess: TokenCosts
    totals: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Prefilled and sampled tokens and busy seconds, as they were last seen."""
    products: tuple[float, float, float, float, float] = (0.0,) * 5
    """Sums over windows, older ones counting less, of products of the guessed seconds for prefilled and for sampled
    tokens and the busy seconds: prefilled squared, prefilled times sampled, sampled squared, prefilled times busy,
    sampled times busy."""

    def seen(self, prefilled: float, sampled: float, busy: float) -> CostMeter:
        """The meter after a sampler's new totals; lower ones than before are those of a new worker."""
        totals = (prefilled, sampled, busy)
        fell = any(now < then for now, then in zip(totals, self.totals, strict=True))
        before = (0.0, 0.0, 0.0) if fell else self.totals
        window = [now - then for now, then in zip(totals, before, strict=True)]
        read, written, spent = window[0] * self.guess.prefilled, window[1] * self.guess.sampled, window[2]
        if spent < SHORTEST:
            return replace(self, totals=before)
        if read + written < NOTHING:
            return replace(self, totals=totals)
        kept = 0.5 ** (spent / HALF_LIFE)
        # dividing by its seconds, each window weighs as much as it was long
        fresh = (read * read, read * written, written * written, read * spent, written * spent)
        products = tuple(kept * old + new / spent for old, new in zip(self.products, fresh, strict=True))
        return replace(self, totals=totals, products=products)

    @property
    def measured(self) -> bool:
        """Whether any window was seen."""
        return any(self.products)

    @property
    def costs(self) -> TokenCosts:
        """The guess, each kind by its own factor: least squares, pulled towards one factor for both."""
        if not self.measured:
            return self.guess
        squared, mixed, other, first, second = self.products
        scale = (first + second) / (squared + 2 * mixed + other)
        pull = PULL * (squared + 2 * mixed + other)
        squared, other, first, second = squared + pull, other + pull, first + pull * scale, second + pull * scale
        determinant = squared * other - mixed * mixed
        read = max(LEAST * scale, (first * other - second * mixed) / determinant)
        written = max(LEAST * scale, (second * squared - first * mixed) / determinant)
        return TokenCosts(self.guess.name, read * self.guess.prefilled, written * self.guess.sampled)


def guessed(name: str, parameters: int, weight_bytes: int, rates: Rates | None) -> TokenCosts:
    """A guess for a base of so many parameters and bytes: prompts take arithmetic, replies read the weights."""
    if rates is None:
        return TokenCosts(name, 1e-4, PROPORTION * 1e-4)
    prefilled = 2 * parameters / (REACHED * rates.matrix)
    return TokenCosts(name, prefilled, prefilled + weight_bytes / (ROWS * REACHED * rates.bandwidth))
