"""The new form of the real verifiers: modules with a ``Taskset``, dropped as they are."""

from __future__ import annotations

import pytest

from marlaas.plugins.messages import Ask

from .conftest import PATIENCE, PublishedVersions

pytestmark = [pytest.mark.libraries, pytest.mark.processes, pytest.mark.timeout(PATIENCE)]

SUMS = """
# /// script
# dependencies = ["verifiers==0.4.0"]
# ///
import verifiers.v1 as vf

__all__ = ["SumsTaskset"]


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.stop
    async def single_turn(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return len(trace.last_reply)


class SumsConfig(vf.TasksetConfig):
    most: int = 6


class SumsTaskset(vf.Taskset[SumTask, SumsConfig]):
    def load(self):
        for a in range(self.config.most):
            for b in range(self.config.most):
                data = SumData(idx=a * 10 + b, prompt=f"{a}+{b}?", system_prompt="Add.", answer=str(a + b))
                yield SumTask(data, self.config.task)
"""
IN_A_MACHINE = SUMS.replace(
    "    @vf.metric",
    """    @vf.reward
    async def ran(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        return 1.0

    @vf.metric""",
)
OWN_ENV = (
    SUMS.replace('["SumsTaskset"]', '["SumsTaskset", "Duel"]')
    + """

class Duel(vf.Env[vf.EnvConfig]):
    async def run(self, task, agents):
        raise NotImplementedError
"""
)


async def test_tasksets(published: PublishedVersions) -> None:
    for name, text in {"sums": SUMS, "machine": IN_A_MACHINE, "duel": OWN_ENV}.items():
        published.save(f"{name}.py", text)
    failures = await published.start()
    assert failures["sums"] is None, failures["sums"]
    for name, says in {
        "machine": "has the reward ran, which needs a running machine",
        "duel": "an Env of its own",
    }.items():
        failure = failures[name]
        assert failure is not None and says in failure.message and "not supported" in failure.message

    def adds(ask: Ask) -> str:
        assert [message.role for message in ask.messages] == ["system", "user"]
        return str(eval(ask.messages[-1].content.rstrip("?")))

    outcome = await published.episode("sums/sums", adds, index=13)
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": 2.0}), outcome.failure
    assert outcome.metrics["right"] == 1.0 and outcome.metrics["length"] in (1, 2)
    assert (await published.episode("sums/sums", lambda ask: "x")).rewards == {"agent": 0.0}

    train, held_out = [await published.prompts("sums/sums", split, 36) for split in ("train", "eval")]
    assert not train & held_out and (len(train), len(held_out)) == (33, 3)
