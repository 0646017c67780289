"""Which learning rate is best? Submits a sweep from Python, waits, and takes the best adapter away.

Run it with ``python examples/learning_rates.py``; in a notebook the same lines work cell by cell.
"""

from pathlib import Path

from marlaas.app.client import Home, TaskRow

TASK = {
    "tenant": "me",
    "name": "learning rates",
    "environment": "arithmetic",
    "steps": 20,
    "environment_config": {"digits": 2},
    "sampling": {"max_tokens": 8},
    "train": {"learning_rate": [1e-4, 5e-4, 2e-3]},  # a list is a sweep: one task for each value
}


def sweep(home: Home, task: dict[str, object], out: Path) -> TaskRow:
    """Train the family, print what came of it, and export the adapter of its best member."""
    numbers = home.submit(task)
    tasks = home.wait(*numbers, progress=print)
    for member in tasks:
        rewards = [step.metrics["reward"] for step in home.metrics(member.id)]
        print(f"{member.name}: {member.state}, reward {rewards[0]:.2f} to {rewards[-1]:.2f}, held-out {member.score}")
    best = max(tasks, key=lambda member: member.best or 0.0)
    newest = home.rollouts(best.id, limit=1)[0]
    print(f"The best is task {best.id}. It was asked {newest.turns[-2].text!r} and said {newest.turns[-1].text!r}.")
    home.export(best.id, out)
    return best


if __name__ == "__main__":
    sweep(Home(), TASK, Path("best-adapter"))
