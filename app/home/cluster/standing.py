"""How this machine stands in its cluster, by files and locks alone: Ray is neither started nor asked."""

from __future__ import annotations

from importlib.util import find_spec

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home import ClusterSettings, Home, load_settings

from ...reading.opening import reading


def standing(home: Home, settings: ClusterSettings) -> tuple[str, str, str]:
    """A verdict of ``doctor``, what is, and what to do. Raises ``ConfigError`` where the token is not safe."""
    if not settings.address and not home.node_lock.exists():
        return "ok", "none: this machine works alone", ""
    from marlaas.engine.cluster import AUTO, check_token, local_node

    node = local_node(home)
    if node is None and not settings.address:
        return "ok", "none: this machine works alone", ""
    if find_spec("ray") is None:
        return (
            "missing",
            "Ray is not installed",
            "`pip install 'marlaas[cluster]'`, or take `address` out of [cluster].",
        )
    check_token(home, settings)
    if node is not None:
        role = "its head" if node.is_head else f"as {node.name}"
        notes = "whoever reaches its ports runs programs here" if settings.insecure else ""
        return "note" if notes else "ok", f"in that at {node.head}, {role}", notes
    if settings.address == AUTO:
        return "ok", "over whatever Ray runs on this machine", ""
    return (
        "missing",
        f"{settings.address} is set, but this machine's Ray does not run",
        "`marlaas cluster leave` forgets it; then `marlaas cluster join` begins anew.",
    )


def last_event(home: Home) -> int:
    """The number of the last event of a home, for ``warning_since``; 0 where there is none."""
    with reading(home) as reader:
        events = reader.events(limit=1) if reader else []
    return events[-1].id if events else 0


def warning_since(home: Home, event: int) -> str:
    """What an engine has warned of the cluster first since that event: that it does not answer, say; else empty."""
    with reading(home) as reader:
        events = reader.events(after=event) if reader else []
    return next((each.message for each in events if each.kind == "node" and each.level == "warning"), "")


def unanswering(home: Home) -> str:
    """The address of the cluster that the settings name, for an engine that knows no machine of it; empty: there is
    none."""
    try:
        return load_settings(home).cluster.address
    except MarlaasError:  # who works on the settings is told elsewhere what is wrong with them
        return ""
