"""Words about the machine: devices, nodes, yields, the API."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from marlaas.engine.machine.yielding.decision import TAKEN_BACK, clock, state
from marlaas.engine.store.rows import HOURS, IDLE, YIELDED, EngineRow, Yielding

from .format import ago, count, counted, duration, line, share, short_path, size

if TYPE_CHECKING:
    from marlaas.engine.devices.machine import Gpu, Holder, Rates
    from marlaas.engine.devices.software import LlamaBuild
    from marlaas.engine.store.queries.machine import NodeRow
    from marlaas.engine.store.rows import ApiKeyRow, ApiRow


# The machine in words: devices, nodes, what the set-up builds, whether it is fast enough.

# What the set-up still does behind the application: llama.cpp that is being compiled. Pure.

DONE, FAILED = 60.0, 600.0
"""Seconds for which the end of it is shown."""


def llama_note(build: LlamaBuild | None, now: float, watched: bool) -> str:
    """What to tell at the time ``now``, in seconds since 1970; empty if there is nothing.

    ``watched``: it was told before that it is being compiled, so its good end is worth a word.
    """
    if build is None:
        return ""
    since = now - build.ended
    if build.state == "compiling":
        return f"compiling llama.cpp in the background, {duration(float(int(build.seconds)))}"
    if build.state == "done":
        return f"llama.cpp is compiled, after {duration(float(int(build.seconds)))}" if watched and since < DONE else ""
    if build.ended and since > FAILED:
        return ""
    log = f" (log {short_path(Path(build.log))})" if build.log else ""
    return f"llama.cpp could not be compiled{log}: {build.reason}"


# Processors and cards in words: short, safe texts. Pure.

SHOWN = 3
"""Holders that are named; the others are counted."""


def rates(found: Rates | None) -> str:
    """``780.0 Tflop/s, 4.0 TB/s``, and for a processor its bfloat16; empty if nothing was measured."""
    if found is None:
        return ""
    halves = f" ({flops(found.bfloat16)} in bfloat16)" if found.bfloat16 else ""
    return f"{flops(found.matrix)}{halves}, {size(found.bandwidth)}/s"


def flops(value: float) -> str:
    """Operations a second: 72 Gflop/s, 780.0 Tflop/s."""
    return f"{value / 1e12:.1f} Tflop/s" if value >= 1e12 else f"{value / 1e9:.0f} Gflop/s"


def memory(free: int, total: int) -> str:
    """The free memory of a card."""
    return f"{size(free)} of {size(total)} free"


def held(holders: Sequence[Holder], account: str = "") -> str:
    """Who holds memory, largest first: ``anna 12.3 GB, this engine 2.0 GB``; ``account`` is the reader's own."""
    sums: dict[str, int] = {}
    for holder in holders:
        who = _who(holder, account)
        sums[who] = sums.get(who, 0) + holder.memory
    told = [f"{who} {size(memory)}" if memory else who for who, memory in sums.items()]
    more = [f"{len(told) - SHOWN} more"] if len(told) > SHOWN else []
    return ", ".join([*told[:SHOWN], *more])


def _who(holder: Holder, account: str) -> str:
    if holder.ours:
        return "this engine"
    if holder.screen:
        return "the screen"
    if not holder.account:
        return "somebody unseen"
    return "you" if holder.account == account else line(holder.account, 24)


def card(gpu: Gpu, account: str) -> str:
    """All that is known of a card, on one line."""
    parts = [
        line(gpu.name, 40),
        memory(gpu.free, gpu.memory),
        "" if gpu.utilisation is None else f"{share(gpu.utilisation)} busy",
        f"held by {held(gpu.holders, account)}" if gpu.holders else "",
        rates(gpu.rates) or "not measured",
        "one process at a time" if gpu.mode == "exclusive" else "",
    ]
    return " · ".join(part for part in parts if part)


# Whether a machine is fast enough for a base, in words: a verdict on the seconds of a step. Pure.

QUICK, PATIENT, SLOW = 5.0, 60.0, 600.0
"""Seconds of a step up to which one can watch, leave for lunch, or leave for the night."""

UNITS = (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0), ("second", 1.0))

Word = Literal["fit", "slow", "unfit"]


@dataclass(frozen=True)
class Verdict:
    """What a person should expect."""

    word: Word
    text: str


def judge(seconds: float, steps: int, place: str = "on this CPU") -> Verdict:
    """A verdict on steps that take this many seconds each."""
    whole = f"about {spoken(seconds)} a step {place}: {spoken(seconds * steps)} for {steps}"
    if seconds <= QUICK:
        return Verdict("fit", f"This machine is fit for it: {whole}.")
    if seconds <= PATIENT:
        return Verdict("fit", f"This machine is fit for it, with patience: {whole}.")
    if seconds <= SLOW:
        return Verdict("slow", f"This machine is slow for it: {whole}. Queue tasks overnight, or take a smaller base.")
    return Verdict("unfit", f"This machine is not fit for it: {whole}. Take a smaller base, or a machine with a GPU.")


def spoken(seconds: float) -> str:
    """A duration in everyday words: two figures, one unit."""
    unit, length = next(((unit, length) for unit, length in UNITS if seconds >= 1.5 * length), UNITS[-1])
    value = f"{float(f'{max(0.0, seconds) / length:.2g}'):g}"  # the inner one rounds, the outer writes no exponent
    return f"{value} {unit}{'' if value == '1' else 's'}"


# The nodes of a cluster in words: rows of a table, and what is to be said of one. Pure.


def join_line(head: str, ip: str, token: Path | None) -> str:
    """The line with which another machine joins; ``token`` is the file on the head, at ``ip``."""
    if token is None:
        return f"marlaas cluster join {head}"
    return f"ssh {ip} cat {shlex.quote(str(token))} | marlaas cluster join {head} --token -"


def headers(known: bool) -> tuple[str, ...]:
    """Of the table; ``known``: the engine has looked at the nodes."""
    plain = ("NODE", "ADDRESS", "STATE")
    return (*plain, "CORES", "MEMORY", "CARDS", "WORKERS") if known else plain


def row(node: NodeRow, known: bool) -> tuple[str, ...]:
    """A row of it."""
    name = f"{line(node.name, 32)} (here)" if node.here else line(node.name, 32)
    plain = (name, line(node.address, 45), node.state)
    if not known:
        return plain
    if not node.cores:
        return (*plain, "", "", "", "")
    return (*plain, str(node.cores), size(node.memory), cards(node), ", ".join(line(one, 24) for one in node.workers))


def cards(node: NodeRow) -> str:
    """How many of its cards are used: ``2 of 4``; empty if it has none."""
    all_cards = len(node.cards) + len(node.left_out)
    if not all_cards:
        return ""
    return str(all_cards) if not node.left_out else f"{len(node.cards)} of {all_cards}"


def remarks(node: NodeRow) -> Iterator[str]:
    """Sentences about a node: why it is not used, which cards are left alone, whether its clock is wrong."""
    if node.refused:
        yield f"{node.name} is not used: {node.refused}"
    for why in node.left_out:
        yield f"{node.name}: {why}"
    if node.clock is not None:
        from marlaas.engine.machine.cluster.node import clock_warning  # never loaded if there is no cluster

        yield from filter(None, (clock_warning(node.name, node.clock),))


def summary(nodes: Sequence[NodeRow]) -> str:
    """``3 nodes, 1 draining, 1 gone``."""
    states = [node.state for node in nodes]
    rest = [f"{states.count(state)} {state}" for state in ("draining", "refused", "gone") if state in states]
    return ", ".join([counted(len(nodes), "node"), *rest])


# Why an engine has no workers, in words for people.

IDLENESS = "Nothing runs: cards and memory were given back; the next task starts the workers."


def yielding_of(engine: EngineRow | None) -> Yielding | None:
    """Why an engine yields; None while it has workers, or does not live."""
    return Yielding(engine.rest, engine.rest_until) if engine is not None and engine.rest else None


def yielding_text(yielding: Yielding, now: float) -> str:
    """Why it yields and what that means, in a sentence."""
    if yielding.kind == YIELDED:
        yields = f"The engine has {state(yielding, now).replace('yielded', 'yielded the machine')}"
        return f"{yields}: its workers have ended, cards and memory are free, and tasks wait; {TAKEN_BACK}."
    if yielding.kind == HOURS:
        return f"The engine is {state(yielding, now)}, and tasks wait."
    return IDLENESS


def yielding_hint(yielding: Yielding | None, now: float) -> str:
    """Why tasks wait while the engine has no workers, and how to take the machine again, for screens; empty: no more
    than that nothing runs."""
    if yielding is None or not yielding.holds:
        return ""
    until = "" if yielding.until is None else f" until {clock(yielding.until, now)}"
    if yielding.kind == YIELDED:
        return f"The machine is yielded{until}; tasks wait. 6, then B takes it back."
    return f"It is outside of the active hours{until}, and tasks wait."


def yielding_effect(yielding: Yielding) -> str:
    """The same in few words, for a screen that says already until when."""
    if yielding.kind == IDLE:
        return IDLENESS
    ends = "B takes it back" if yielding.kind == YIELDED else "it is outside of the active hours"
    return f"The machine is free of workers and tasks wait; {ends}."


# The API in words: whether it is open, what a key may, and how a program is pointed at it.

OPEN, CLOSED, FAILED_API = "open", "closed", "failed"
GLYPHS = {OPEN: "●", CLOSED: "○", FAILED_API: "✗"}
MAY = {
    "chat": "talk to the base and to its tenant's adapters",
    "train": "train adapters of its tenant",
    "admin": "do what a person at the command line may",
}
"""What each scope allows."""


def api_state(row: ApiRow, alive: bool) -> str:
    """Open, closed, or failed where it should be open; without a live engine nothing answers, whatever it wrote."""
    if not alive:
        return CLOSED
    return OPEN if row.open else FAILED_API if row.note else CLOSED


def state_text(row: ApiRow, alive: bool, now: float) -> str:
    """The state in one line: where it is, since when, or why not."""
    state = api_state(row, alive)
    since = "" if row.since is None or not alive else f" for {duration(float(int(max(0.0, now - row.since))))}"
    if state == OPEN:
        return f"open at {line(row.url, 80)}{since}"
    if state == FAILED_API:
        return f"closed, although it should be open: {line(row.note, 300)}"
    if alive:
        return f"closed{since}."
    return "closed: no engine runs" + (", and the next one opens it." if row.switched else ".")


def used_text(keys: Sequence[ApiKeyRow]) -> str:
    """How many keys there are, of how many tenants, and what they have used."""
    holding = [key for key in keys if key.revoked is None]
    tenants = len({key.tenant for key in holding})
    whose = f"{counted(len(holding), 'key')} of {counted(tenants, 'tenant')}" if holding else "no key that holds"
    requests = sum(key.requests for key in keys)
    tokens_in, tokens_out = sum(key.tokens_in for key in keys), sum(key.tokens_out for key in keys)
    return f"{whose} · {requests_text(requests)} · {count(tokens_in)} tokens read, {count(tokens_out)} sampled"


def requests_text(requests: int) -> str:
    """How many were answered: 1 request, 1,204 requests."""
    return "1 request" if requests == 1 else f"{requests:,} requests"


def last_use(key: ApiKeyRow, now: float) -> str:
    """When a key was used last."""
    return "never" if key.last_use is None else ago(key.last_use, now)


def may_text(scopes: Sequence[str]) -> str:
    """What a key with these scopes may, by scope."""
    return "; ".join(f"{line(scope, 12)}: {MAY.get(scope, '?')}" for scope in scopes)


def key_name(key: ApiKeyRow) -> str:
    """How people know a key: its beginning, and what somebody called it."""
    return f"{line(key.prefix, 40)}…" + (f" ({line(key.name, 40)})" if key.name else "")


def variables(url: str) -> list[str]:
    """The environment variables that point programs at the API, one a line; the key is left out."""
    return [f"OPENAI_BASE_URL={url}/v1", "OPENAI_API_KEY=…", f"ANTHROPIC_BASE_URL={url}", "ANTHROPIC_API_KEY=…"]
