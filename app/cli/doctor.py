"""``doctor``: what the machine has, what is missing, and what to do."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from .. import output
from .verbs import Verbs, add_verb, home_of

_MARKS = {"ok": "✓", "note": "!", "missing": "✗"}


def register(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "doctor", run, "look at this machine and say what is missing", json=True)
    parser.add_argument("--measure", action="store_true", help="measure anew how fast processor and cards are")


def run(args: argparse.Namespace) -> int:
    """Print the findings; exit 2 where something is missing."""
    from ..home.doctor.devices import look
    from ..home.doctor.machine import examine

    if args.measure:
        output.talk("Measuring processor and cards: some seconds for each …")
    home = home_of(args)
    devices = look(home, args.measure)
    findings = examine(home, devices)
    missing = [finding for finding in findings if finding.verdict == "missing"]
    if args.json:
        told = [asdict(finding) for finding in findings]
        output.result_json({"ok": not missing, "findings": told, "devices": devices.as_json()})
    else:
        for finding in findings:
            heard = f"{finding.verdict}, " if output.is_plain() else ""
            output.fact(finding.name, f"{heard}{finding.value}", 10, f"{_MARKS[finding.verdict]} ")
            if finding.advice:
                output.result(f"  {'':<10} → {finding.advice}")
        output.talk("Something is missing." if missing else "All that is needed is here.")
    return output.USAGE if missing else output.OK
