"""inspect-ai evaluates a model through OpenAI's interface, on sums.

python serve_inspect.py MODEL
"""

import os
import sys
import tempfile

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

sums = Task(
    dataset=[Sample(input=f"{a}+{b}=", target=str(a + b)) for a, b in ((12, 34), (47, 85), (56, 21), (90, 13))],
    solver=generate(),
    scorer=includes(),
)
model = get_model(
    f"openai-api/marlaas/{sys.argv[1]}",
    base_url=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    config=GenerateConfig(max_tokens=8, temperature=0.0, seed=1, logprobs=True, top_logprobs=2),
)
(log,) = eval(sums, model=model, display="none", log_dir=tempfile.mkdtemp(), fail_on_error=True)
assert log.status == "success", log.error
assert all(sample.output.choices[0].logprobs is not None for sample in log.samples)
assert sum(usage.output_tokens for usage in log.stats.model_usage.values()) > 0
print(log.results.scores[0].metrics["accuracy"].value)
