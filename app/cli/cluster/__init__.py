"""``cluster join | leave``, and ``cluster status | drain | undrain`` from ``nodes``."""

from __future__ import annotations

import argparse
import sys

from ... import output
from ...words.format import line
from ..verbs import Verbs, add_family, add_verb, home_of
from . import nodes

LONGEST = 8192
"""Characters of a token's file that are read."""


def register(verbs: Verbs) -> None:
    """Add the family."""
    family = add_family(verbs, "cluster", "join several machines, over which tasks then train")
    joins = add_verb(
        family,
        "join",
        join,
        "join the cluster whose head is at ADDRESS; without one, become the head of a new one",
        json=True,
        epilog="Ray runs in the background until `marlaas cluster leave`; [cluster] of marlaas.toml has its settings.",
    )
    joins.add_argument("address", nargs="?", metavar="ADDRESS", help="the head's: 192.168.1.10:6379")
    joins.add_argument("--token", metavar="FILE", help="the cluster's token, which is kept in this home; - reads it")
    joins.add_argument("--ip", metavar="IP", default="", help="this machine's address, where it has several")
    joins.add_argument("--name", metavar="NAME", default="", help="what to call this machine (its host name)")
    leaves = add_verb(family, "leave", leave, "take this machine out of its cluster; on the head, end the cluster")
    leaves.add_argument("--force", action="store_true", help="also while tasks run over it; they go on elsewhere")
    nodes.register(family)


def join(args: argparse.Namespace) -> int:
    """Start Ray here, and say how others join or how far the head is."""
    from ...home.cluster import joining
    from ...words.machine import join_line

    home = home_of(args)
    if args.address is None:
        joined = joining.become_head(home, _token(args.token), args.ip, args.name, output.talk)
    else:
        joined = joining.join(home, args.address, _token(args.token), args.ip, args.name, output.talk)
    node = joined.node
    for note in joined.notes:
        output.talk(line(note))
    if args.json:
        told = {"name": node.name, "address": node.head, "ip": node.ip, "head": node.is_head}
        output.result_json(
            told
            | {"token": joined.token and str(joined.token), "milliseconds": joined.milliseconds, "notes": joined.notes}
        )
    elif node.is_head:
        output.result(f"{line(node.name)} is the head of a cluster at {node.head}.")
        output.talk("Another machine joins with this line, typed there:")
        output.result(f"  {join_line(node.head, node.ip, joined.token)}")
        output.talk("`marlaas engine start` here trains over all of them; `marlaas cluster status` lists them.")
    else:
        output.result(
            f"{line(node.name)} has joined the cluster at {node.head}, {joined.milliseconds or 0:.1f} ms away."
        )
    return output.OK


def _token(given: str | None) -> str | None:
    """The token in a file, or from the standard input. Raises ``ConfigError``."""
    from marlaas.engine.errors import ConfigError

    if given is None:
        return None
    try:
        if given == "-":
            return sys.stdin.read(LONGEST)
        with open(given, encoding="utf-8") as file:
            return file.read(LONGEST)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"The token cannot be read: {why}.", where=given) from error


def leave(args: argparse.Namespace) -> int:
    """End this machine's Ray."""
    from ...home.cluster.leaving import leave as leave_cluster

    node = leave_cluster(home_of(args), args.force)
    if not node.pid:
        output.talk(f"This machine's Ray had ended; the cluster at {line(node.head)} is forgotten.")
    elif node.is_head:
        output.talk(f"The cluster at {node.head} has ended; its other machines notice within a minute.")
    else:
        output.talk(f"{line(node.name)} has left the cluster at {node.head}.")
    return output.OK
