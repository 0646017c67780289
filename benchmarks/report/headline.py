"""The one table of BENCHMARKS.md: the rows of the sections that say most, for better and for worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .figures import Row
from .machine import Machine
from .noise import published
from .results import Result
from .tables import line, percent, ruler, spread


@dataclass(frozen=True)
class Pick:
    """One row of a section: by its name, and by what the name of the other side contains."""

    section: str
    row: str
    other: str
    what: str
    """What the headline calls it."""

    def of(self, rows: Sequence[Row]) -> Row | None:
        """The row in question."""
        return next((row for row in rows if row.what == self.row and self.other in row.other), None)


_EIGHT = "8 tasks of 20 steps, from nothing to all done, shipped defaults"
_TENANTS = "prompts of 100 tokens, answers of 60: 8 tenants fused"
_SHORT = "prompts of 12 tokens, answers of 6: 8 tenants by the line"
_TORCH = 'sampler = "torch"'
_FEW = f"1 sequence, 1 adapter, {_TORCH}"
_MANY = "64 sequences, 8 adapters, {}"
PICKS = (
    Pick(
        "concurrency",
        "32 tasks, from submission to the end of the last, shipped defaults",
        "one after another",
        "32 tasks with slow tools, at once",
    ),
    Pick(
        "compute_mix",
        "32 tasks, from submission to the end of the last",
        "one after another",
        "32 tasks that only compute, at once",
    ),
    Pick(
        "trajectories",
        "a step, deviation 1 s: each episode by itself",
        "turn by turn",
        "a synchronous step of episodes whose tools take 0.5 ± 1 s",
    ),
    Pick(
        "trajectories",
        "a step, deviation 0.3 s, 20% fail or hang: the same, redundant 2",
        "each episode by itself",
        "the same where 20 % of the tools fail, two redundant members",
    ),
    Pick("eight_trl", _EIGHT, "one after another", "8 tasks of 20 steps"),
    Pick("eight_trl", _EIGHT, "all at once", "8 tasks of 20 steps"),
    Pick(
        "one_task",
        "a step: prompts of 13 tokens, 1 core, staleness 0",
        "TRL",
        "a synchronous step on one core, prompts of 13 tokens",
    ),
    Pick(
        "one_task",
        "a step: prompts of 256 tokens, 1 core, staleness 0",
        "TRL",
        "a synchronous step on one core, prompts of 256 tokens",
    ),
    Pick(
        "one_task",
        "start to step 40: prompts of 13 tokens, 2 cores, staleness 2",
        "TRL",
        "from the command to step 40 on two cores",
    ),
    Pick("real", "number: a step", "TRL", "a step of SmolLM2-135M, short replies"),
    Pick("real", "facts: a step", "TRL", "a step of SmolLM2-135M, replies in JSON"),
    Pick("large_vocabulary", "a step: llama.cpp, q8_0", "TRL", "a step at a vocabulary of 151,936, llama.cpp"),
    Pick("trainer", "prompts of 12 tokens, answers of 6", "transformers", "a training pass, short prompts and answers"),
    Pick(
        "trainer", "prompts of 100 tokens, answers of 60", "transformers", "a training pass, longer prompts and answers"
    ),
    Pick("tenants", _TENANTS, "in turn", "8 tenants trained in shared passes"),
    Pick("tenants", _TENANTS, "PEFT", "8 tenants trained in shared passes"),
    Pick("tenants", f"{_SHORT}, 3 slots", "all in memory", "8 tenants on a trainer with room for 3"),
    Pick(
        "tenants",
        "prompts of 12 tokens, answers of 6: 8 tenants, two trainers of one core",
        "one trainer with both cores",
        "8 tenants on two trainers, short prompts",
    ),
    Pick("sampler", "1 sequence, 1 adapter, exact", "torch loop", "sampling 1 sequence, llama.cpp"),
    Pick("sampler", _FEW, "plain", "sampling 1 sequence, torch sampler"),
    Pick("sampler", _MANY.format("exact"), "plain", "sampling 64 sequences under 8 adapters, llama.cpp"),
    Pick("sampler", _MANY.format(_TORCH), "plain", "sampling 64 sequences under 8 adapters, torch sampler"),
    Pick("sampler", "64 sequences, 1 adapter, exact", "torch loop", "sampling 64 sequences under 1 adapter, llama.cpp"),
    Pick("routing", "all tasks, routed by their mix", "evenly", "4 tasks routed over two kinds of samplers"),
    Pick(
        "routing",
        "four tasks with their trainer: from submission to the end of the last",
        "evenly",
        "4 whole tasks routed over two kinds of samplers",
    ),
    Pick("agents", "one sampler: a step of the writer", "by hand", "two policies, one asked ten times as often"),
    Pick("agents", "10:1: a step", "policies one after another", "both trained at once, not one after another"),
    Pick("adapters", "0.5 B, f32: 8 adapters, 2 conversations each", "one pass", "8 adapters on a 0.5 B shape, f32"),
    Pick(
        "adapters",
        "0.5 B, f32: 32 adapters, 2 conversations each",
        "one pass",
        "32 adapters on a 0.5 B shape, f32",
    ),
    Pick("adapters", "0.5 B, q8_0: 8 adapters, 2 conversations each", "one pass", "8 adapters on a 0.5 B shape, q8_0"),
    Pick("quality", "held-out score, mean of all tasks, at once", "one after another", "what 32 tasks learn at once"),
    Pick("quality", "held-out score, sums, at once", "TRL", "what 8 of them learn at once, on sums"),
    Pick("quantised", "0.5 B shape: a step, q8_0", "f32", "a synchronous step of a 0.5 B shape, sampled in q8_0"),
    Pick("rewards", "a step, grader of 50 ms", "inline", "graders of 50 ms, in scoring workers"),
    Pick("rewards", "a step, grader of 2 s", "one worker", "graders of 2 s, as many scoring workers as needed"),
    Pick("rewards", "a step, grader of 2 s", "inline", "graders of 2 s, in scoring workers"),
    Pick(
        "weight_sync",
        "a step: the shipped base, torch, staleness 2, 0 ms of delay",
        "blocking",
        "a step of one task, published beside the next one",
    ),
    Pick("fairness", "the single task beside 8 tasks", "alone", "a tenant's only task beside 8 of another's"),
    Pick("terminal", "first paint", "an empty", "first paint of the terminal application"),
)


def table(results: Sequence[Result], folder: str) -> str:
    """The table, and a line that names what is too noisy for it; sections are linked in ``folder``."""
    lines, left_out = [], []
    by_name = {result.section.name: result for result in results}
    for pick in PICKS:
        if (result := by_name.get(pick.section)) is None or (measured := pick.of(result.section.rows)) is None:
            continue
        link = f"[{pick.what}]({folder}{pick.section}.md)"
        row = pick.of(published(result).section.rows)
        if row is None:
            left_out.append(f"{link} ({percent(max(measured.noise, result.machine.noise))})")
        else:
            lines.append(_line(link, row, result.machine))
    below = f"Too noisy for this table, with their noise: {', '.join(left_out)}." if left_out else ""
    titles = [line("what", "unit", "marlaas", "beside", "ratio", "noise", "machine"), ruler(7)]
    shown = "\n".join([*titles, *lines]) if lines else "None of the rows of this table is published."
    return "\n\n".join(part for part in (shown, below) if part)


def _line(link: str, row: Row, machine: Machine) -> str:
    ratio = row.ratio
    assert row.theirs and ratio, "a pick has another side"
    noise = "measured once" if ratio.noise is None else percent(ratio.noise)
    beside = f"{spread(row.theirs)} {row.other}"
    return line(link, row.unit, spread(row.ours), beside, spread(ratio, " ×"), noise, short(machine))


def short(machine: Machine) -> str:
    """The processor and its cores."""
    name = machine.cpu.replace("(R)", "").replace("(TM)", "").removesuffix(" Processor").strip()
    return f"{name}, {machine.cores} cores"
