"""Addresses of a cluster: which one this machine has, and whether anybody listens at the head's.

Standard library and psutil only; nothing here speaks with Ray.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from ...errors import ClusterUnreachable, ConfigError

AUTO = "auto"
"""The address of whatever Ray runs on this machine."""
SECONDS = 3.0
"""Seconds to wait for an answer: on one network that is long."""
VIRTUAL = ("docker", "br-", "veth", "virbr", "tun", "tap", "wg", "cni", "flannel", "podman", "lxc")
"""How networks begin that lead to no other machine, or not by the shortest way."""


@dataclass(frozen=True)
class Address:
    """Where a head listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, port: int) -> Address:
    """``HOST`` or ``HOST:PORT``, with ``port`` where none is named. Raises ``ConfigError``."""
    host, separator, given = text.strip().rpartition(":")
    if not separator or text.strip().endswith("]") or (":" in host and not host.endswith("]")):
        host, given = text.strip(), str(port)
    host = host.removeprefix("[").removesuffix("]")
    number = int(given) if given.isascii() and given.isdigit() else 0
    if not host or any(not c.isprintable() or c.isspace() or c in "/@" for c in host) or not 0 < number < 65536:
        raise ConfigError(f"{text!r} is no address.", "An address is a machine and a port: 192.168.1.10:6379.")
    return Address(host, number)


def check_listens(address: Address, seconds: float = SECONDS) -> None:
    """Raise ``ClusterUnreachable``, after ``seconds`` at most, where nobody listens at the address."""
    hint = "On the head, `marlaas cluster status` says its address; a firewall must let its ports through."
    try:
        socket.create_connection((address.host, address.port), timeout=seconds).close()
    except socket.gaierror as error:
        raise ClusterUnreachable(f"No machine is called {address.host!r}.", hint) from error
    except TimeoutError as error:
        raise ClusterUnreachable(f"Nothing answers at {address} within {seconds:g} s.", hint) from error
    except OSError as error:
        raise ClusterUnreachable(f"No Ray is at {address}: {(error.strerror or str(error)).lower()}.", hint) from error


def address_towards(address: Address) -> str:
    """This machine's own address on the way to another, which the system's routes decide; nothing is sent."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as way:
            way.connect((address.host, address.port))
            return str(way.getsockname()[0])
    except OSError as error:
        raise ClusterUnreachable(f"No network leads to {address}: {error.strerror}.", "Check the address.") from error


def own_addresses() -> list[tuple[str, str]]:
    """The IPv4 addresses of this machine that others may reach, each with its network's name; those of virtual
    networks last."""
    import psutil

    alive = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = [
        (one.address, name)
        for name, many in psutil.net_if_addrs().items()
        for one in many
        if name in alive and one.family == socket.AF_INET and not one.address.startswith(("127.", "169.254."))
    ]
    return sorted(found, key=lambda one: one[1].startswith(VIRTUAL))


def own_address(given: str = "") -> str:
    """The address at which others reach this machine: the one that is ``given``, or the only one that there is.

    A wrong guess would make a cluster that nobody can join, so there is none. Raises ``ConfigError``.
    """
    here = own_addresses()
    if given:
        if given not in (*(address for address, _ in here), "127.0.0.1"):
            told = ", ".join(f"{address} ({name})" for address, name in here) or "127.0.0.1 alone"
            raise ConfigError(f"{given} is no address of this machine.", f"It has {told}.")
        return given
    real = [one for one in here if not one[1].startswith(VIRTUAL)] or here
    if len(real) == 1:
        return real[0][0]
    if not real:
        raise ConfigError(
            "This machine is on no network.", "`--ip 127.0.0.1` makes a cluster of homes on this machine alone."
        )
    told = ", ".join(f"{address} ({name})" for address, name in real)
    raise ConfigError(
        f"This machine has several addresses: {told}.", "Name the one that the other machines reach, with --ip."
    )
