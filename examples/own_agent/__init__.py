"""An agent program that is there already, trained as it is: ``agent.py`` beside this file knows nothing of marlaas."""

from __future__ import annotations

from marlaas.plugins import Episode, env
from marlaas.plugins.programs import ProgramRun


def right(ep: Episode, run: ProgramRun) -> bool:
    """The last word that the agent printed is the answer."""
    return run.stdout.split()[-1:] == [str(ep.task["answer"])]


@env.program("python agent.py {prompt}", reward=right, timeout=60)
async def own_agent(ep: Episode, digits: int = 1) -> str:
    """Two numbers are added by an agent that speaks to its model over HTTP."""
    a, b = (ep.rng.randrange(10**digits) for _ in "ab")
    ep.task = {"answer": a + b}
    return f"{a}+{b}="
