"""mini-swe-agent: its default agent with its own prompts in a shell here; it ends after three calls of the model.

python mini_swe_agent.py
"""

import json
import os
import tempfile
from pathlib import Path

HOME = tempfile.mkdtemp()
os.environ |= {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
    "MSWEA_GLOBAL_CONFIG_DIR": HOME,
}

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

told = []


class Model(LitellmModel):
    """Writes down what it is told."""

    def _query(self, *words, **more):
        response = super()._query(*words, **more)
        told.append({"text": response.choices[0].message.content or "", "logprobs": None})
        return response


config = yaml.safe_load((builtin_config_dir / "default.yaml").read_text())
model = Model(
    **{
        **config.get("model", {}),
        "model_name": "openai/none",
        "cost_tracking": "ignore_errors",
        "model_kwargs": {"max_tokens": 12, "drop_params": True},
    }
)
agent = DefaultAgent(model, LocalEnvironment(cwd=HOME), **{**config["agent"], "step_limit": 3, "cost_limit": 0.0})
agent.run("Say what 2+3 is.")
assert len(told) == 3

Path("told.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))
