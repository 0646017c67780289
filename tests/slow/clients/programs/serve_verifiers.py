"""verifiers evaluates a model on sums, by chat completions.

python serve_verifiers.py MODEL
"""

import os
import sys

import verifiers as vf
from datasets import Dataset
from openai import AsyncOpenAI

rows = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in (12, 47) for b in (34, 85)]


def right(completion, answer, **others):
    return float(completion[-1]["content"].strip() == answer)


environment = vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[right]))
client = AsyncOpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
found = environment.evaluate_sync(
    client, model=sys.argv[1], num_examples=4, rollouts_per_example=2, sampling_args={"max_tokens": 8}
)
rewards = found["reward"] if isinstance(found, dict) else found.reward
assert len(rewards) == 8
print(sum(rewards) / len(rewards))
