"""The machine in words: devices, nodes, yields, the API."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from marlaas.engine.machine.yielding.decision import TAKEN_BACK, clock, state
from marlaas.engine.store.rows import HOURS, IDLE, YIELDED, ApiKeyRow, ApiRow, EngineRow, Yielding

from .format import ago, count, counted, duration, line, share, short_path, size

if TYPE_CHECKING:
    from marlaas.engine.devices.machine import Gpu, Holder, Rates
    from marlaas.engine.devices.software import LlamaBuild
    from marlaas.engine.store.queries.machine import NodeRow


DONE, FAILED = 60.0, 600.0
"""Seconds for which an end is shown."""


def llama_note(build: LlamaBuild | None, now: float, watched: bool) -> str:
    """The state of llama.cpp's compilation; empty: nothing to report.

    ``now``: Unix time; ``watched``: the compilation was shown before, so its end is shown, too.
    """
    if build is None:
        return ""
    since = now - build.ended
    log = f" (log {short_path(Path(build.log))})" if build.log else ""
    took = duration(float(int(build.seconds)))
    match build.state:
        case "compiling":
            return f"compiling llama.cpp in the background, {took}"
        case "done":
            return f"llama.cpp is compiled, after {took}" if watched and since < DONE else ""
        case _ if build.ended and since > FAILED:
            return ""
    return f"llama.cpp could not be compiled{log}: {build.reason}"


SHOWN = 3
"""Named holders."""


def rates(found: Rates | None) -> str:
    """``780.0 Tflop/s, 4.0 TB/s``, with a processor's bfloat16; empty without a measurement."""
    if found is None:
        return ""
    halves = f" ({flops(found.bfloat16)} in bfloat16)" if found.bfloat16 else ""
    return f"{flops(found.matrix)}{halves}, {size(found.bandwidth)}/s"


def flops(value: float) -> str:
    """Such as 72 Gflop/s, 780.0 Tflop/s."""
    return f"{value / 1e12:.1f} Tflop/s" if value >= 1e12 else f"{value / 1e9:.0f} Gflop/s"


def held(holders: Sequence[Holder], account: str = "") -> str:
    """Largest first: ``anna 12.3 GB, this engine 2.0 GB``; ``account`` is the reader's."""
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
    """A card on one line."""
    parts = [
        line(gpu.name, 40),
        f"{size(gpu.free)} of {size(gpu.memory)} free",
        "" if gpu.utilisation is None else f"{share(gpu.utilisation)} busy",
        f"held by {held(gpu.holders, account)}" if gpu.holders else "",
        rates(gpu.rates) or "not measured",
        "one process at a time" if gpu.mode == "exclusive" else "",
    ]
    return " · ".join(part for part in parts if part)


QUICK, PATIENT, SLOW = 5.0, 60.0, 600.0
"""Seconds of a step: one can watch, leave for lunch, leave for the night."""

UNITS = (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0), ("second", 1.0))

Word = Literal["fit", "slow", "unfit"]


def judge(seconds: float, steps: int, place: str = "on this CPU") -> tuple[Word, str]:
    """A verdict on steps that take this many seconds each: in a word, and what a person should expect."""
    whole = f"about {spoken(seconds)} a step {place}: {spoken(seconds * steps)} for {steps}"
    words: tuple[tuple[float, Word, str], ...] = (
        (QUICK, "fit", f"fit for it: {whole}."),
        (PATIENT, "fit", f"fit for it, with patience: {whole}."),
        (SLOW, "slow", f"slow for it: {whole}. Queue tasks overnight, or take a smaller base."),
    )
    unfit: Word = "unfit"
    otherwise = unfit, f"not fit for it: {whole}. Take a smaller base, or a machine with a GPU."
    word, text = next(((word, text) for most, word, text in words if seconds <= most), otherwise)
    return word, f"This machine is {text}"


def spoken(seconds: float) -> str:
    """Everyday words: two figures, one unit."""
    unit, length = next(((unit, length) for unit, length in UNITS if seconds >= 1.5 * length), UNITS[-1])
    value = f"{float(f'{max(0.0, seconds) / length:.2g}'):g}"  # the inner one rounds, the outer writes no exponent
    return f"{value} {unit}{'' if value == '1' else 's'}"


def join_line(head: str, ip: str, token: Path | None) -> str:
    """The line for another machine; ``token`` is the file on the head, at ``ip``."""
    if token is None:
        return f"marlaas cluster join {head}"
    return f"ssh {ip} cat {shlex.quote(str(token))} | marlaas cluster join {head} --token -"


def headers(known: bool) -> tuple[str, ...]:
    """``known``: the engine has looked at the nodes."""
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
    """``2 of 4`` used; empty without cards."""
    all_cards = len(node.cards) + len(node.left_out)
    if not all_cards:
        return ""
    return str(all_cards) if not node.left_out else f"{len(node.cards)} of {all_cards}"


def remarks(node: NodeRow) -> Iterator[str]:
    """Why a node is not used, which cards are left out, a wrong clock."""
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


IDLENESS = "Nothing runs: cards and memory were given back; the next task starts the workers."


def yielding_of(engine: EngineRow | None) -> Yielding | None:
    """None while the engine has workers, or is dead."""
    return Yielding(engine.rest, engine.rest_until) if engine is not None and engine.rest else None


def yielding_text(yielding: Yielding, now: float) -> str:
    """Why it yields, and what that means."""
    if yielding.kind == YIELDED:
        yields = f"The engine has {state(yielding, now).replace('yielded', 'yielded the machine')}"
        return f"{yields}: its workers have ended, cards and memory are free, and tasks wait; {TAKEN_BACK}."
    if yielding.kind == HOURS:
        return f"The engine is {state(yielding, now)}, and tasks wait."
    return IDLENESS


def yielding_hint(yielding: Yielding | None, now: float) -> str:
    """Why tasks wait, and how to end the yield; empty: nothing more to know."""
    if yielding is None or not yielding.holds:
        return ""
    until = "" if yielding.until is None else f" until {clock(yielding.until, now)}"
    if yielding.kind == YIELDED:
        return f"The machine is yielded{until}; tasks wait. 6, then B takes it back."
    return f"It is outside of the active hours{until}, and tasks wait."


def yielding_effect(yielding: Yielding) -> str:
    """In few words, next to the end of the yield."""
    if yielding.kind == IDLE:
        return IDLENESS
    ends = "B takes it back" if yielding.kind == YIELDED else "it is outside of the active hours"
    return f"The machine is free of workers and tasks wait; {ends}."


OPEN, CLOSED, FAILED_API = "open", "closed", "failed"
GLYPHS = {OPEN: "●", CLOSED: "○", FAILED_API: "✗"}
MAY = {
    "chat": "talk to the base and to its tenant's adapters",
    "train": "train adapters of its tenant",
    "admin": "do what a person at the command line may",
}
"""By scope."""


def api_state(row: ApiRow, alive: bool) -> str:
    """Open, closed, or failed; nothing answers without a live engine."""
    if not alive:
        return CLOSED
    return OPEN if row.open else FAILED_API if row.note else CLOSED


def state_text(row: ApiRow, alive: bool, now: float) -> str:
    """Address and time, or the reason."""
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
    """Numbers of keys and tenants, and their use."""
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
    """By scope."""
    return "; ".join(f"{line(scope, 12)}: {MAY.get(scope, '?')}" for scope in scopes)


def key_name(key: ApiKeyRow) -> str:
    """Its beginning and its name."""
    return f"{line(key.prefix, 40)}…" + (f" ({line(key.name, 40)})" if key.name else "")


def variables(url: str) -> list[str]:
    """Environment variables for programs, one a line, without the key."""
    return [f"OPENAI_BASE_URL={url}/v1", "OPENAI_API_KEY=…", f"ANTHROPIC_BASE_URL={url}", "ANTHROPIC_API_KEY=…"]
