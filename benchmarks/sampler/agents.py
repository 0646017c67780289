"""Two agents of one task, one asked ten times as often, a policy for each: whether the sampler's capacity follows.

All slots for all, as the engine has it, beside slots that are divided in halves, or by the true ratio by hand; two
samplers that the router divides by what is asked for, beside one for each policy.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from marlaas.engine.devices.machine import SamplerKind
from marlaas.engine.spec.policies import NamedPolicySpec
from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec

from ..report.figures import Row, Section, Series
from . import agents_ablation
from .agents_stage import Outcome, Part, Scene, stage

WRITER, JUDGE = "writer", "judge"
POLICIES = (WRITER, JUDGE)
SKEW = 10
SLOTS = 8
"""Of a sampler: few, so that they are what is short."""
CONTEXT = 256
SETTLED = 3
"""Steps before time counts."""
KIND: SamplerKind = "torch"
"""What ``auto`` takes for the shipped base."""
FIRST, SECOND = "rollout", "rollout-2"
OURS, BY_HAND, IN_HALVES, APART = "ours", "slots divided by hand", "slots in halves", "one for each policy"
ONE: Mapping[str, Scene] = {
    OURS: Scene(),
    BY_HAND: Scene({WRITER: Part(FIRST, SLOTS - 1), JUDGE: Part(FIRST, 1)}),
    IN_HALVES: Scene({WRITER: Part(FIRST, SLOTS // 2), JUDGE: Part(FIRST, SLOTS // 2)}),
}
TWO: Mapping[str, Scene] = {OURS: Scene(), APART: Scene({WRITER: Part(FIRST, SLOTS), JUDGE: Part(SECOND, SLOTS)})}
GOALS = {BY_HAND: "at least 0.87 × (within 15 %)"}
METHOD = """\
The shipped base (1.28 M parameters), torch samples and trains, a core for each; two samplers have a core each, which
the trainer shares. `benchmarks/plugins/drafts`: in an episode a writer is asked {skew} times, all at once, then a judge
once. A policy of rank 16 for each, 2 groups of 4 episodes a step, staleness 1, replies of at most 16 tokens. A sampler
has {slots} slots, so that they are what is short. A figure is the time from one step of a policy to its next, of
{steps} steps without the first {settled}. {repetitions} repetitions; arms take turns.

- **ours**: the engine's own slots, given turn by turn to the policy that is behind; with two samplers, its own routes.
- **slots divided by hand**: 7 for the writer, 1 for the judge. **in halves**: 4 for each. **one for each policy**:
  the writer is served by one sampler, the judge by the other. Only the benchmark can divide so.
"""
Runs = Mapping[str, Sequence[Outcome]]


def measure(quick: bool) -> Section:
    """Takes about a quarter of an hour, or three minutes when quick."""
    return asyncio.run(_measure(quick, 6 if quick else 16, 1 if quick else 3))


async def _measure(quick: bool, steps: int, repetitions: int) -> Section:
    one, two = await _runs(1, ONE, steps, repetitions), await _runs(2, TWO, steps, repetitions)
    ablated = await agents_ablation.measure(quick)
    return Section(
        "agents",
        "Two policies of one task, one asked ten times as often",
        METHOD.format(skew=SKEW, slots=SLOTS, settled=SETTLED, steps=steps, repetitions=repetitions)
        + f"\n{agents_ablation.method(quick)}",
        (*rows(one, two), *agents_ablation.rows(ablated)),
        f"{remarks(one, two)}\n{agents_ablation.remarks(ablated)}",
    )


async def _runs(samplers: int, arms: Mapping[str, Scene], steps: int, repetitions: int) -> Runs:
    found: dict[str, list[Outcome]] = {name: [] for name in arms}
    with tempfile.TemporaryDirectory() as folder:
        async with stage(Path(folder) / "home", "drafts", (KIND,) * samplers, SLOTS, CONTEXT) as workers:
            for _ in range(repetitions):
                for name, scene in arms.items():
                    found[name].append(await workers.run(spec_of(steps), scene, SETTLED))
                    print(f"  {samplers} × {KIND}, {name}: {found[name][-1].step[WRITER]:.2f} s a step", flush=True)
    return found


def spec_of(steps: int) -> TaskSpec:
    """The task."""
    return TaskSpec(
        "bench",
        "drafts",
        "drafts",
        steps=steps,
        policies={policy: NamedPolicySpec(rank=16) for policy in POLICIES},
        agents={policy: policy for policy in POLICIES},
        environment_config={"count": SKEW},
        train=TrainSpec(groups_per_step=2, group_size=4, max_staleness=1, learning_rate=1e-6, patience=1000),
        sampling=SamplingSpec(max_tokens=16, max_episode_tokens=SKEW * 16),
        eval=EvalSpec(every=0, prompts=1),
    )


def rows(one: Runs, two: Runs) -> tuple[Row, ...]:
    """Each policy's step, ours beside every other way to divide what there is."""

    def row(samplers: str, runs: Runs, other: str, policy: str) -> Row:
        ours, theirs = (Series(tuple(outcome.step[policy] for outcome in runs[arm])) for arm in (OURS, other))
        return Row(f"{samplers}: a step of the {policy}", "s", ours, theirs, other, goal=GOALS.get(other, ""))

    pairs = [("one sampler", one, BY_HAND), ("one sampler", one, IN_HALVES), ("two samplers", two, APART)]
    return tuple(row(*pair, policy) for pair in pairs for policy in POLICIES)


def remarks(one: Runs, two: Runs) -> str:
    """How long turns waited for slots, and where the router had the policies."""
    waits = "; ".join(
        f"{name}: " + ", ".join(f"{policy} {1e3 * outcomes[-1].wait[policy]:,.0f} ms" for policy in POLICIES)
        for name, outcomes in one.items()
    )
    went = "; ".join(
        f"{policy}: " + ", ".join(f"{share.part:.0%} {share.sampler}" for share in two[OURS][-1].routes[policy])
        for policy in POLICIES
    )
    return f"Turns waited for a slot, on average, with one sampler. {waits}.\n\nTwo samplers, in the end. {went}.\n"
