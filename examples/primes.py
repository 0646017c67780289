"""The class form, for set-up that costs more than an episode: the next prime number.

    user       The first prime after 7426:
    assistant  7433

A process makes one instance, calls `setup` once, and plays all episodes on it. A plain `setup` runs in a thread.
"""

from bisect import bisect
from typing import Literal

from marlaas.plugins import Episode, env

LARGEST = 100_000


@env(name="primes")
class Primes:
    """Names the first prime after a number."""

    def setup(self) -> None:
        """Find all primes once: the sieve of Eratosthenes."""
        prime = bytearray([1]) * (LARGEST + 1)
        prime[:2] = b"\0\0"
        for number in range(2, int(LARGEST**0.5) + 1):
            if prime[number]:
                prime[number * number :: number] = bytes(len(range(number * number, LARGEST + 1, number)))
        self.primes = [number for number in range(LARGEST + 1) if prime[number]]

    async def play(self, ep: Episode, size: Literal["small", "large"] = "small") -> float:
        """Pays less the further the answer is away."""
        start = ep.rng.randrange(900 if size == "small" else 90_000)
        right = self.primes[bisect(self.primes, start)]
        said = (await ep.ask(f"The first prime after {start}:", max_tokens=8)).text.strip()
        if not (said.isascii() and said.isdigit()):
            return 0.0
        return 1.0 if int(said) == right else 0.5 / (1 + abs(int(said) - right))

    def close(self) -> None:
        """Called when the process ends in good order: a place to close files and connections."""
        self.primes.clear()
