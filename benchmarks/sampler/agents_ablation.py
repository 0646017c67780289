"""The same two policies with parts of the engine left out, one after the other, as FlexMARL's ablation does.

What is left out: the slots that follow who is asked, training on groups as they arrive, groups that close when their
agents are done, going on without a partner whose versions are late, and in the end training both policies at once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from marlaas.engine.spec.policies import NamedPolicySpec
from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.train.loop import Without

from ..report.figures import Row, Series
from .agents_stage import Outcome, Part, Scene, Stage, stage

WRITER, JUDGE = "writer", "judge"
POLICIES = (WRITER, JUDGE)
SLOTS, CONTEXT, ONLY = 8, 256, "rollout"
HALVES: Mapping[str, Part] = {policy: Part(ONLY, SLOTS // 2) for policy in POLICIES}
FULL, ONE_BY_ONE = "full", "policies one after another"
ARMS: Mapping[str, Scene] = {
    FULL: Scene(),
    "without balance": Scene(HALVES),
    "without pipeline": Scene(without=Without(pipeline=True)),
    "without early groups": Scene(without=Without(early_groups=True)),
    "without balance and pipeline": Scene(HALVES, Without(pipeline=True, early_groups=True)),
}
LATE = {JUDGE: 2.0}
WAITING, TOGETHER = "the writer waits", "without early groups"
METHOD = """\
**Ablation.** The same environment, one sampler with {slots} slots; 4 groups of 4 episodes a step, staleness 0: strictly
on-policy, as in FlexMARL. The writer is asked 10 times in an episode, or once (1:1); it is paid finally before the
judge is asked. A figure is the time from one step to the next of the slower policy, of {steps} steps without the first
{settled}; {repetitions} repetitions, arms take turns.

- **without balance**: half of the slots for each policy, for ever. **without pipeline**: a step's groups are trained on
  once all of them are there, not as they arrive. **without early groups**: the writer's groups close with the judge's.
- **policies one after another**: two tasks, in each of which one policy is trained and the other is the base; the sum.
  What is trained so is not the same: nobody learns beside a partner that learns.
- **Late versions**: each version of the judge is served {late:g} s after it is made, as over a slow link. **A slow
  partner**: the judge runs a tool for {tool:g} s before it is asked. Asked 1:1, 2 groups of 2 episodes a step, replies
  of 4 tokens, so that the waiting counts and the sampler has time to spare; where it has none, the partner ends later.
  The time is until the last of {held} steps of each. The writer goes on without the judge; or it waits for it; or its
  groups close with the judge's.
"""
Runs = Mapping[str, Sequence[Outcome]]


@dataclass(frozen=True)
class Case:
    """What the arms are measured on."""

    words: str
    count: int
    """Asks of the writer in an episode."""
    tool: float = 0.0
    groups: int = 4
    """Groups of a step."""
    members: int = 4
    tokens: int = 16
    """Most tokens of a reply."""


TOOL = 2.0
CASES = (Case("10:1", 10), Case("1:1", 1))
ALL = (*ARMS, ONE_BY_ONE)
WAITS = Case("", 1, groups=2, members=2, tokens=4)
HELD = {
    "late versions": (WAITS, LATE, (FULL, WAITING)),
    "a slow partner": (replace(WAITS, tool=TOOL), {}, (FULL, WAITING, TOGETHER)),
}
"""What may hold up the writer: the task, how late versions are, and the arms."""
LEFT_OUT = {FULL: Without(), WAITING: Without(going_ahead=True), TOGETHER: Without(early_groups=True)}


@dataclass(frozen=True)
class Ablated:
    """All that was measured."""

    cases: Mapping[str, Runs]
    """By the words of a case, and by arm."""
    held: Mapping[str, Runs]
    """Likewise, of ``HELD``."""
    exact: Mapping[str, Mapping[str, str]]
    """By arm, the checksums of the last versions of a deterministic run."""


def method(quick: bool) -> str:
    """How it is measured, in words."""
    return METHOD.format(slots=SLOTS, tool=TOOL, late=LATE[JUDGE], **_sizes(quick))


def _sizes(quick: bool) -> dict[str, int]:
    steps = 3 if quick else 8
    return {"steps": steps, "held": 4 if quick else 6, "settled": 1 if quick else 2, "repetitions": 1 if quick else 3}


async def measure(quick: bool) -> Ablated:
    """Takes about eleven minutes, or two when quick."""
    sizes = _sizes(quick)
    cases: dict[str, dict[str, list[Outcome]]] = {case.words: {arm: [] for arm in ALL} for case in CASES}
    held: dict[str, dict[str, list[Outcome]]] = {name: {arm: [] for arm in arms} for name, (*_, arms) in HELD.items()}
    with tempfile.TemporaryDirectory() as folder:
        async with stage(Path(folder) / "home", "drafts", ("torch",), SLOTS, CONTEXT) as workers:
            for _ in range(sizes["repetitions"]):
                for case in CASES:
                    for arm in ALL:
                        found = await run(workers, case, arm, sizes["steps"], sizes["settled"])
                        cases[case.words][arm].append(found)
                        print(f"  {case.words}, {arm}: {slower(found):.2f} s a step", flush=True)
                for name, (case, late, arms) in HELD.items():
                    for arm in arms:
                        found = await workers.run(spec_of(case, sizes["held"]), Scene(None, LEFT_OUT[arm], late), 1)
                        held[name][arm].append(found)
                        print(f"  {name}, {arm}: {found.last[WRITER]:.1f} s", flush=True)
            exact = {arm: (await workers.run(exact_spec(), scene, 1)).adapters for arm, scene in ARMS.items()}
    return Ablated(cases, held, exact)


async def run(workers: Stage, case: Case, arm: str, steps: int, settled: int) -> Outcome:
    """One run of an arm; of ``ONE_BY_ONE`` the two tasks as one."""
    spec = spec_of(case, steps)
    if arm != ONE_BY_ONE:
        return await workers.run(spec, ARMS[arm], settled)
    return together(
        [
            await workers.run(replace(spec, policies=spec.policies | {other: base}), Scene(), settled)
            for other in POLICIES
            for base in (NamedPolicySpec(frozen="base"),)
        ]
    )


def together(found: Sequence[Outcome]) -> Outcome:
    """Tasks that ran one after the other as one: a step of each."""
    step = sum(slower(one) for one in found)
    share = [slower(one) / step for one in found]
    return Outcome(
        dict.fromkeys(POLICIES, step),
        {},
        {},
        sum(one.sampling * part for one, part in zip(found, share, strict=True)),
        sum(one.training * part for one, part in zip(found, share, strict=True)),
    )


def slower(outcome: Outcome) -> float:
    """Seconds of a step of the policy that takes longer."""
    return max(outcome.step.values())


def spec_of(case: Case, steps: int) -> TaskSpec:
    """The task."""
    return TaskSpec(
        "bench",
        "drafts",
        "drafts",
        steps=steps,
        policies={policy: NamedPolicySpec(rank=16) for policy in POLICIES},
        agents={policy: policy for policy in POLICIES},
        environment_config={"count": case.count, "tool": case.tool},
        train=TrainSpec(
            groups_per_step=case.groups,
            group_size=case.members,
            max_staleness=0,
            learning_rate=1e-4,
            patience=1000,
        ),
        sampling=SamplingSpec(max_tokens=case.tokens, max_episode_tokens=max(2, case.count) * case.tokens),
        eval=EvalSpec(every=0, prompts=1),
    )


def exact_spec() -> TaskSpec:
    """A small task whose adapters do not depend on any timing."""
    spec = spec_of(Case("", 3), 3)
    return replace(spec, train=replace(spec.train, groups_per_step=2, deterministic=True))


def rows(found: Ablated) -> tuple[Row, ...]:
    """A step in full beside every arm, and the writer whose partner is late."""

    def row(case: Case, arm: str) -> Row:
        ours, theirs = (Series(tuple(map(slower, found.cases[case.words][one]))) for one in (FULL, arm))
        return Row(f"{case.words}: a step", "s", ours, theirs, arm)

    def held(name: str, arm: str, policy: str) -> Row:
        ours, theirs = (Series(tuple(one.last[policy] for one in found.held[name][which])) for which in (FULL, arm))
        return Row(f"{name}: to the {policy}'s last step", "s", ours, theirs, arm)

    ablated = [row(case, arm) for case in CASES for arm in ALL if arm != FULL]
    apart = [held(name, arm, one) for name, (*_, arms) in HELD.items() for arm in arms[1:] for one in POLICIES]
    return (*ablated, *apart)


def remarks(found: Ablated) -> str:
    """The share of the time in which each stage computed, and whether the arms train the same adapters."""
    lines = [
        f"- {words}, {arm}: sampler {_mean([one.sampling for one in outcomes]):.0%}, trainer"
        f" {_mean([one.training for one in outcomes]):.0%}"
        for words, runs in found.cases.items()
        for arm, outcomes in runs.items()
    ]
    exact = [arm for arm, adapters in found.exact.items() if adapters != found.exact[FULL]]
    same = "bit for bit the same" if not exact else f"others in {', '.join(exact)}"
    return (
        "Share of a run's time in which each stage computed:\n\n"
        + "\n".join(lines)
        + f"\n\nThe last adapters of a deterministic task (3 steps) in the first {len(found.exact)} arms: {same}.\n"
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
