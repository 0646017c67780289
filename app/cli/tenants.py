"""``tenants``: who uses this home, with which share and quotas; ``tenants set`` asks the engine to change them."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from .. import output
from ..home.commands import unanswered, wait_for_outcomes
from ..words.format import count, duration, line
from .verbs import Verbs, add_home, home_of

if TYPE_CHECKING:
    from marlaas.engine.store import TenantRow


def register(verbs: Verbs) -> None:
    """Add the verb and the one below it."""
    summary = "list tenants, or set one's weight and quotas"
    family = verbs.add_parser("tenants", help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    family.set_defaults(run=run)
    add_home(family)
    family.add_argument("--json", action="store_true", help="print JSON on standard output")
    below = family.add_subparsers(title="verbs", metavar="VERB")
    change = below.add_parser(
        "set",
        help="set a tenant's weight and quotas",
        description="Set a tenant's weight and quotas. It takes effect at once; the tenant need not have tasks yet.",
    )
    change.set_defaults(run=run_set)
    add_home(change)
    change.add_argument("name", metavar="NAME", help="the tenant's name, as in task files")
    change.add_argument("--weight", type=number, metavar="W", help="its share beside the others' weights (default: 1)")
    change.add_argument("--tasks", type=number, metavar="N", help="tasks that may run at the same time; 0: no quota")
    change.add_argument("--tokens-per-day", type=number, metavar="N", help="tokens a day (UTC); 0: no quota")


def run(args: argparse.Namespace) -> int:
    """Print the tenants."""
    from marlaas.engine.store import day_of

    from ..reading.opening import reading

    with reading(home_of(args)) as reader:
        tenants = reader.tenants(day_of(time.time())) if reader else []
    if args.json:
        output.result_json([asdict(tenant) for tenant in tenants])
        return output.OK
    if not tenants:
        output.talk("No tenants yet. Submitting a task makes one, `marlaas tenants set NAME` sets one up before.")
        return output.OK
    headers = ("TENANT", "WEIGHT", "RUNNING", "WAITING", "BLOCKED", "PAUSED", "FINISHED", "TOKENS TODAY", "TIME")
    output.result_table(headers, [_row(tenant) for tenant in tenants], right=headers[1:])
    return output.OK


def run_set(args: argparse.Namespace) -> int:
    """Start the engine if need be, which alone writes tenants, and report what it answered."""
    from marlaas.engine.daemon import control
    from marlaas.engine.spec import LIMITS, tenant_change
    from marlaas.engine.store import command

    from ..reading.opening import reading

    home = home_of(args)
    given = {key: getattr(args, key) for key in LIMITS if getattr(args, key) is not None}
    name, changes = tenant_change({"name": args.name, **given})
    control.ensure_running(home, notice=output.talk)
    with reading(home) as reader:
        assert reader is not None
        known = any(tenant.name == name for tenant in reader.tenants(""))
        sent = command(home.database, "tenant", None, name=name, **changes)
        outcome = wait_for_outcomes(reader, [sent]).get(sent)
        tenant = next((tenant for tenant in reader.tenants("") if tenant.name == name), None)
    if outcome is None:
        raise unanswered()
    if outcome or tenant is None:
        output.complain(outcome)
        return output.USAGE
    output.talk(f"{'Tenant' if known else 'New tenant'} {line(name)}: {_in_words(tenant)}.")
    return output.OK


def number(text: str) -> float:
    """A number, kept whole where it was written so. Its limits are checked elsewhere."""
    plain = text.replace(",", "").replace("_", "")
    return int(plain) if plain.lstrip("-").isdigit() else float(plain)


def _row(tenant: TenantRow) -> tuple[str, ...]:
    return (
        line(tenant.name, 32),
        f"{tenant.weight:g}",
        f"{tenant.running} of {tenant.tasks}" if tenant.tasks else str(tenant.running),
        str(tenant.waiting),
        str(tenant.blocked),
        str(tenant.paused),
        str(tenant.finished),
        count(tenant.tokens_today) + (f" of {count(tenant.tokens_per_day)}" if tenant.tokens_per_day else ""),
        duration(tenant.seconds),
    )


def _in_words(tenant: TenantRow) -> str:
    tasks = f"{tenant.tasks} at most" if tenant.tasks else "any number"
    tokens = f"{tenant.tokens_per_day:,} tokens a day" if tenant.tokens_per_day else "no quota of tokens"
    return f"weight {tenant.weight:g}, tasks at the same time: {tasks}, {tokens}"
