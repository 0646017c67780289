"""What is trained while processes die: small tasks of several tenants, with losses and bounds that differ. Pure."""

from __future__ import annotations

from dataclasses import dataclass

STEPS = 24


@dataclass(frozen=True)
class TaskFile:
    """A task file's text; ``exact`` ones must end bit for bit as in a run without kills."""

    name: str
    text: str
    exact: bool = False


def exact(steps: int = STEPS) -> TaskFile:
    """The same file in every home, so that one uninterrupted run is the measure for all."""
    train = 'deterministic = true\nmax_staleness = 0\nkl = 0.02\nschedule = "linear"'
    return TaskFile("exact", _text("precise", "exact", "guess", train, keep=1, steps=steps), exact=True)


def exact_pair(steps: int = STEPS) -> TaskFile:
    """Two policies that step at different times, repeatable all the same."""
    text = _text("precise", "pair", "relay", "deterministic = true\nmax_staleness = 0", 1, steps, PAIR)
    return TaskFile("pair", text, exact=True)


def opponent_pool(number: int, steps: int = STEPS) -> TaskFile:
    """One policy against earlier versions of itself."""
    name = f"opponents-{number}"
    return TaskFile(name, _text("dee", name, "race", f"seed = {number}\nmax_staleness = 2", 1, steps, RIVALS))


def wave(number: int) -> list[TaskFile]:
    """Seven tasks of five tenants, with staleness 0, 2 and 4; the names and seeds of waves differ."""
    tasks = [
        ("ada", "kept", "arithmetic", 'loss = "dr_grpo"\nmax_staleness = 2\nimportance = "mask"', 1),
        ("ada", "pruned", "arithmetic", 'loss = "reinforce"\nmax_staleness = 4', 0),
        ("bo", "clipped", "guess", 'loss = "grpo"\nmax_staleness = 4\nkl = 0.01\nwarmup = 5\nredundant = 2', 1),
        ("cy", "weighted", "guess", 'loss = "cispo"\nmax_staleness = 2\nweight_decay = 0.01', 1),
    ]
    files = [
        TaskFile(f"{name}-{number}", _text(tenant, f"{name}-{number}", place, f"seed = {number}\n{train}", keep))
        for tenant, name, place, train, keep in tasks
    ]
    relay = _text("dee", f"relay-{number}", "relay", f"seed = {number}\nmax_staleness = 2", 1, policy=PAIR)
    return [exact(), *files, TaskFile(f"relay-{number}", relay), opponent_pool(number)]


ALONE = """\
[policy]
rank = 8
"""
PAIR = """\
[policies]
adder = {rank = 8}
sorter = {rank = 4, groups_per_step = 3}

[agents]
adder = "adder"
sorter = "sorter"
"""
RIVALS = """\
[policies]
player = {rank = 8}
past = {pool = "player", every = 2, size = 3}

[agents]
first = "player"
second = "past"
"""


def _text(
    tenant: str, name: str, environment: str, train: str, keep: int, steps: int = STEPS, policy: str = ALONE
) -> str:
    return f"""\
tenant = "{tenant}"
name = "{name}"
environment = "{environment}"
steps = {steps}

{policy}
[train]
groups_per_step = 2
group_size = 4
learning_rate = 1e-4
patience = 100000
{train}

[sampling]
max_tokens = 8
max_episode_tokens = 32

[eval]
prompts = 4
every = 4

[keep]
every = {keep}
"""
