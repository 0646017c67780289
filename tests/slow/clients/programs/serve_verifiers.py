"""verifiers evaluates a model on sums: its runner and its client, with a harness that asks once by the openai SDK.

The harnesses that come with it install what they run from the internet.

python serve_verifiers.py MODEL
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.cli.eval.runner import run_eval
from verifiers.v1.configs.cli.eval import EvalConfig

__all__ = ["OneAsk", "Sums"]
NAME = "serve_verifiers"


class SumData(vf.TaskData):
    answer: str


class Sum(vf.Task[SumData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        for number, (a, b) in enumerate((a, b) for a in (12, 47) for b in (34, 85)):
            yield Sum(SumData(idx=number, prompt=f"{a}+{b}=", answer=str(a + b)), self.config.task)


class OneAsk(vf.Harness[vf.HarnessConfig]):
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        _, prompt = self.resolve_prompt(data)
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            reply = await client.chat.completions.create(
                model=ctx.model, messages=[{"role": "user", "content": str(prompt)}]
            )
        return vf.ProgramResult(exit_code=0, stdout=reply.choices[0].message.content or "", stderr="")


async def evaluate(model: str) -> list[float]:
    config = EvalConfig(
        env={"taskset": {"id": NAME}, "agent": {"harness": {"id": NAME}, "runtime": {"type": "subprocess"}}},
        model=model,
        client=vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY"),
        sampling=vf.SamplingConfig(max_tokens=8, temperature=1.0),
        num_rollouts=2,
        rich=None,
        push=False,
        output_dir=Path(tempfile.mkdtemp()),
    )
    rewards = []
    for episode in await run_eval(config):
        for trace in episode.traces:
            assert not trace.errors, trace.errors
            assert trace.num_turns == 1
            rewards.append(trace.reward)
    return rewards


if __name__ == "__main__":
    rewards = asyncio.run(evaluate(sys.argv[1]))
    assert len(rewards) == 8
    print(sum(rewards) / len(rewards))
