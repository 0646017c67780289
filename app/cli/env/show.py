"""``env show`` and ``env log``: all that is known of one environment, and what its plugin has printed."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from ... import output
from ...words.format import clip, line, plain
from ..verbs import Verbs, add_verb, home_of

if TYPE_CHECKING:
    from marlaas.engine.home import Home
    from marlaas.engine.store import EnvironmentRow, EnvironmentUse

TAIL, WIDTH = 5, 160
"""Lines of the log that ``show`` prints, and how much of each."""
LINES = 50
LONGEST_TAIL = 1 << 20
"""Bytes of a log that are looked at."""


def register(family: Verbs) -> None:
    """Add both verbs."""
    show = add_verb(family, "show", run_show, "print all that is known of an environment", json=True)
    show.add_argument("name", metavar="NAME", help="an environment, or a plugin for all of its environments")
    log = add_verb(family, "log", run_log, "print what a plugin has printed, newest last")
    log.add_argument("name", metavar="NAME", help="a plugin, or one of its environments")
    log.add_argument(
        "-n", "--lines", type=int, default=LINES, metavar="N", help=f"at most the last N (default {LINES})"
    )


def run_show(args: argparse.Namespace) -> int:
    """Print one environment, or those of a plugin."""
    from marlaas.engine.store import EnvironmentUse

    from ...reading.opening import reading
    from ...words.environments.facts import lately_json, plugin_of

    home = home_of(args)
    rows = found(home, args.name)
    with reading(home) as reader:
        uses = reader.environment_use(time.time()) if reader else {}
    if args.json:
        output.result_json(
            [asdict(row) | {"last_hour": lately_json(uses.get(row.name, EnvironmentUse()))} for row in rows]
        )
        return output.OK
    for number, row in enumerate(rows):
        if number:
            output.result("")
        _show(row, uses.get(row.name, EnvironmentUse()))
    printed = tail(home, plugin_of(rows[0]), TAIL)
    if printed:
        output.result("  printed lately")
        for text in printed:
            output.quote(f"    {clip(text, WIDTH)}")
    return output.OK


def run_log(args: argparse.Namespace) -> int:
    """Print the end of a plugin's log."""
    from ...words.environments.facts import plugin_of

    home = home_of(args)
    plugin = plugin_of(found(home, args.name)[0])
    printed = tail(home, plugin, max(0, args.lines))
    for text in printed:
        output.quote(text)
    if not printed:
        output.talk(f"The plugin {line(plugin)} has printed nothing lately.")
    return output.OK


def found(home: Home, name: str) -> list[EnvironmentRow]:
    """The environments that a name means, as the engine last saw them. Raises ``EnvironmentMissing``."""
    from marlaas.engine.errors import EnvironmentMissing

    from ...reading.opening import reading
    from ...words.environments.facts import named

    with reading(home) as reader:
        rows = reader.environments() if reader else []
    if not rows:
        raise EnvironmentMissing(
            "No engine has looked for environments in this home yet.", "`marlaas engine start` starts one."
        )
    if reason := unwatched(home):
        output.talk(reason)
    return named(name, rows)


def unwatched(home: Home) -> str:
    """A warning where no engine is alive, so that what is shown is what the last one saw; else empty."""
    from marlaas.engine.daemon import control

    if control.alive(home):
        return ""
    where = line(str(home.plugins))
    return f"No engine looks at {where}: this is what the last one saw; `marlaas engine start` starts one."


def tail(home: Home, plugin: str, lines: int) -> list[str]:
    """The last lines that a plugin has printed, each made safe."""
    from marlaas.engine.environments import Folders

    try:
        with Folders.of(home.scratch, plugin).log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LONGEST_TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return plain(text).rstrip("\n").split("\n")[-lines:] if text.strip() and lines else []


def _show(row: EnvironmentRow, use: EnvironmentUse) -> None:
    from ...home.environments.source_lines import source_lines
    from ...words.environments.facts import facts

    output.result(f"{line(row.name)}: {line(row.description.partition(chr(10))[0])}".rstrip(": "))
    for fact in facts(row, use, time.time(), source_lines(row, use)):
        output.fact(fact.label, fact.text, 10)
    for text in plain(row.description).strip().split("\n")[1:]:
        output.result(f"  {text}".rstrip())
