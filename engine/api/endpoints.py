"""Gives each episode whose program asks over HTTP an address and a key of its own."""

from __future__ import annotations

from ..gateway import Address, Answerer
from .gateways import Gateways
from .link import Desk


class OpenEndpoints:
    """``gateway.Endpoints`` of an engine, whether the API is open to clients or not."""

    def __init__(self, gateways: Gateways, desk: Desk) -> None:
        self._gateways = gateways
        self._desk = desk

    async def open(self, answerer: Answerer) -> Address:
        """An address at which this answers, until it is closed; the first one starts a gateway.

        Raises ``ConfigError`` where the extra is not installed or no port can be had.
        """
        gateway = await self._gateways.for_episodes()
        return Address(gateway.url, self._desk.callers.admit(answerer))

    def close(self, address: Address) -> None:
        """The episode is over: its requests under way and later ones are refused with 410. Twice is once."""
        self._desk.dismiss(address.key)
