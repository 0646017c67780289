"""A class: for what is costly to make and serves all episodes of a process, such as a table, an index or a model."""

from bisect import bisect

from marlaas.plugins import Episode, env


@env
class my_env:
    """Finds the next prime number."""

    async def setup(self) -> None:
        """Called once in each process, before its first episode."""
        sieve = bytearray([1]) * 100_000
        for number in range(2, 317):
            sieve[number * number :: number] = bytes(len(range(number * number, len(sieve), number)))
        self.primes = [number for number in range(2, len(sieve)) if sieve[number]]

    async def play(self, ep: Episode, highest: int = 9999) -> bool:
        """One episode; its parameters are the environment's. Episodes run side by side and share `self`."""
        start = ep.rng.randint(1, highest)
        reply = await ep.ask(f"Which prime number comes after {start}? Answer with the number only.", max_tokens=12)
        return reply.text.strip() == str(self.primes[bisect(self.primes, start)])

    async def close(self) -> None:
        """Called when the process ends in order: files and connections are closed here."""
        self.primes.clear()
