"""``simulate``: the engine's own queue, fairness, routing and store on virtual time, over nodes of a file."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from marlaas.engine.home.paths import Home

from .. import output
from ..text.format import count, counted, duration, line, number, share, size
from .parser import Verbs, add_verb, arg, place_of

if TYPE_CHECKING:
    from marlaas.engine.simulate.simulation import Figures, Result

NOTABLE = 0.5
"""Least processor seconds per simulated second for a warning."""
MOST_REASONS = 5
"""Most shown reasons for waiting tasks and for worker placement."""
MOST_DEVICES = 24
"""Most devices listed singly; above it one line per stage."""


def register(verbs: Verbs) -> None:
    """Add the verb."""
    add_verb(
        verbs,
        "simulate",
        run,
        "predict what tasks would take on a cluster, from what a home has recorded",
        arg("file", nargs="?", type=Path, help="the cluster file, in TOML"),
        arg("--seed", type=int, metavar="N", help="draw otherwise than the file says"),
        arg("--keep", type=Path, metavar="FOLDER", help="keep the simulated home there, to look at it"),
        arg("--record", type=Path, help=argparse.SUPPRESS),  # refused with the way out
        arg("--out", type=Path, help=argparse.SUPPRESS),
        json=True,
        home=place_of,
        epilog="The file names nodes, links, tasks, failures, and the home that times and lengths are drawn from; see"
        " docs/operations/simulate.md. The same file and seed predict the same.",
    )


def run(home: Home, args: argparse.Namespace) -> int:
    """Simulate and print the result."""
    if args.record is not None or args.out is not None:
        hint = "Name the home itself as `from` in a cluster file: docs/operations/simulate.md shows one."
        return output.refuse("Profiles of homes are not written any more.", hint)
    if args.file is None:
        return output.refuse("Name a cluster file.", "`marlaas simulate --help` shows what it holds.")
    from marlaas.engine.simulate.cluster_file import read_case
    from marlaas.engine.simulate.simulation import simulate

    case = read_case(args.file)
    if args.seed is not None:
        case = replace(case, spec=replace(case.spec, seed=args.seed))
    if args.keep is not None and args.keep.exists() and any(args.keep.iterdir()):
        return output.refuse(f"The folder {args.keep} holds other things.", "Name one that is empty, or not there.")
    with tempfile.TemporaryDirectory(prefix="marlaas-simulate-") as scratch:
        result = simulate(case, args.keep or Path(scratch) / "home")
    if args.json:
        output.result_json(as_json(result))
    else:
        _print(result)
    if not case.profile.cards:
        output.talk(
            "The record is that of a processor: these figures are not comparable with those that others publish of"
            " clusters with cards."
        )
    for reason in result.figures.reasons[:MOST_REASONS]:
        output.talk(f"A task did not go on: {line(reason)}")
    wrong = result.figures.gaps or result.figures.beyond
    if wrong:
        output.complain("The simulation broke a promise: see gaps and staleness above.", "This is a bug of marlaas.")
    return output.FAILED if wrong else output.OK


def as_json(result: Result) -> dict[str, object]:
    """All figures, by name."""
    figures = result.figures
    return {
        **asdict(figures),
        "staleness": {str(age): groups for age, groups in figures.staleness.items()},
        "simulated_seconds": result.simulated,
        # Programs may read the two empty fields: the processor's seconds are not measured by package.
        "engine": {
            "processor_seconds": result.processor,
            "per_simulated_second": result.load,
            "by_package": {},
            "dearest": {},
        },
        "head": {"bytes": result.sent, "busy_seconds": result.head_busy},
        "placement": result.placement,
        "starts": result.starts,
        "node_failures": result.lost,
    }


def _print(result: Result) -> None:
    figures = result.figures
    facts = [
        ("tasks", f"{count(figures.done)} of {count(figures.tasks)} done, {counted(figures.steps, 'step')}"),
        ("makespan", duration(figures.makespan)),
        ("replies", f"95 % within {duration(figures.reply_wait)}, of {count(figures.turns)}"),
        ("starts of tasks", f"95 % within {duration(figures.start_wait)}"),
        ("staleness", ", ".join(f"{age}: {count(groups)}" for age, groups in figures.staleness.items()) or "none"),
        ("beyond the bound", counted(figures.beyond, "group")),
        ("gaps", count(figures.gaps)),
        ("node failures", f"{count(result.lost)}; all workers were started {counted(result.starts, 'time')}"),
        ("head's network", f"{size(result.sent)}, busy for {duration(result.head_busy)}"),
        ("placement", " ".join(result.placement[:MOST_REASONS])),
        ("processor", f"{number(1000 * result.load)} ms each simulated second"),
    ]
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        output.fact(name, value, width, mark="")
    output.result("")
    output.result_table(("DEVICE", "IDLE"), _idle(figures), right=("IDLE",))
    for stage, shares in figures.shares.items():
        output.result("")
        rows = [(line(tenant, 40), share(part)) for tenant, part in list(shares.items())[:MOST_DEVICES]]
        output.result_table((f"TENANT, {stage.upper()}", "SHARE"), rows, right=("SHARE",))
        if len(shares) > len(rows):
            output.talk(f"{len(shares) - len(rows)} more tenants are in `--json`.")
    if result.load >= NOTABLE:
        output.talk("An engine might come near to what one process can do.")


def _idle(figures: Figures) -> list[tuple[str, str]]:
    if len(figures.idle) <= MOST_DEVICES:
        return [(device, share(idle)) for device, idle in figures.idle.items()]
    stages = dict.fromkeys(device.partition(" ")[0].partition("-")[0] for device in figures.idle)
    return [(f"{stage}, the mean of all", share(figures.idle_of(stage))) for stage in stages]
