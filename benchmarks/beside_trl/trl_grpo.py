"""One run of TRL's ``GRPOTrainer``. Runs inside TRL's virtual environment: imports nothing of marlaas.

    python trl_grpo.py SETTINGS.json OUTCOME.json

In: the settings that ``trl_side`` writes. Out: when each step ended, the processor time used until then, the mean
reward and completion length of its episodes. If held-out rows are named, also the rewards of the policy's greedy
replies to them at the end, and with ``before`` at the beginning. Nothing is saved or logged, and gradient checkpointing
is off: TRL at its fastest.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """Notes the time, and the processor time used so far, at the end of every step; and when the training begins."""

    def __init__(self) -> None:
        self.begun = 0.0
        self.ends: list[float] = []
        self.used: list[float] = []

    def on_train_begin(self, *unused: Any, **more: Any) -> None:
        """Called by the trainer."""
        self.begun = time.time()

    def on_step_end(self, *unused: Any, **more: Any) -> None:
        """Called by the trainer."""
        self.ends.append(time.time())
        self.used.append(time.process_time())


class Reward:
    """The reward function; notes the mean of every batch that it sees, and how long its completions are."""

    __name__ = "sums"

    def __init__(self, plugin: str, graded: bool | str) -> None:
        """``graded``: what ``reward`` of that folder's ``grading.py`` takes as its third argument."""
        sys.path.insert(0, plugin)
        self._reward = importlib.import_module("grading").reward  # the file that marlaas's environment imports too
        self._graded = graded
        self.means: list[float] = []
        self.lengths: list[float] = []

    def of(self, text: str, answer: str) -> float:
        """The reward of one reply."""
        return float(self._reward(text, answer, self._graded))

    def __call__(
        self, completions: list[Any], completion_ids: list[list[int]], answer: list[str], **unused: Any
    ) -> list[float]:
        """Rewards of one batch."""
        texts = [messages[0]["content"] for messages in completions]
        rewards = [self.of(text, right) for text, right in zip(texts, answer, strict=True)]
        self.means.append(sum(rewards) / len(rewards))
        self.lengths.append(sum(map(len, completion_ids)) / len(completion_ids))
        return rewards


def conversations(path: str) -> list[dict[str, Any]]:
    """The rows as conversations."""
    rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    return [
        {
            "prompt": [
                *([{"role": "system", "content": row["preamble"]}] if row["preamble"] else []),
                {"role": "user", "content": row["prompt"]},
            ],
            "answer": row["answer"],
        }
        for row in rows
    ]


@torch.no_grad()
def scores(model: Any, tokenizer: Any, settings: dict[str, Any], at_once: int = 64) -> list[float]:
    """The rewards of greedy replies to the held-out rows."""
    reward, rows = Reward(settings["plugin"], settings["graded"]), conversations(settings["held_out"])
    model.eval()
    tokenizer.padding_side = "left"  # chat templates do not pass it on
    rewards: list[float] = []
    for first in range(0, len(rows), at_once):
        part = rows[first : first + at_once]
        asked = tokenizer.apply_chat_template(
            [row["prompt"] for row in part],
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        said = model.generate(**asked, max_new_tokens=settings["max_tokens"], do_sample=False)
        texts = tokenizer.batch_decode(said[:, asked["input_ids"].shape[1] :], skip_special_tokens=True)
        rewards += [reward.of(text, row["answer"]) for text, row in zip(texts, part, strict=True)]
    return rewards


def config(settings: dict[str, Any]) -> GRPOConfig:
    """One generation and one optimizer step for each batch; as few passes as its logits have memory for."""
    batch = settings["groups"] * settings["group_size"]
    at_once = min(batch, settings["at_once"])
    return GRPOConfig(
        output_dir=settings["folder"],
        max_steps=settings["steps"],
        per_device_train_batch_size=at_once,
        generation_batch_size=batch,
        gradient_accumulation_steps=batch // at_once,
        num_generations=settings["group_size"],
        num_iterations=1,
        max_completion_length=settings["max_tokens"],
        temperature=settings["temperature"],
        top_k=0,
        beta=0.0,
        loss_type="dr_grpo",
        scale_rewards="none",
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        adam_beta1=settings["betas"][0],
        adam_beta2=settings["betas"][1],
        weight_decay=0.0,
        max_grad_norm=settings["clip_norm"],
        shuffle_dataset=False,
        seed=settings["seed"],
        use_cpu=True,
        bf16=settings.get("bf16", False),
        gradient_checkpointing=False,
        use_transformers_continuous_batching=settings.get("continuous_batching", False),
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def main(settings_path: str, outcome_path: str) -> None:
    """Train and write the outcome."""
    settings = json.loads(Path(settings_path).read_text(encoding="utf-8"))
    torch.set_num_threads(settings["threads"])
    clock, reward = Clock(), Reward(settings["plugin"], settings["graded"])
    tokenizer = AutoTokenizer.from_pretrained(settings["base"])
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(settings["base"], dtype=torch.float32),
        reward_funcs=reward,
        args=config(settings),
        train_dataset=Dataset.from_list(conversations(settings["rows"])),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=settings["rank"], lora_alpha=settings["alpha"], target_modules="all-linear", task_type="CAUSAL_LM"
        ),
        callbacks=[clock],
    )
    before = scores(trainer.model, tokenizer, settings) if settings.get("before") else []
    trainer.train()
    outcome: dict[str, Any] = {
        "begun": clock.begun,
        "ends": clock.ends,
        "used": clock.used,
        "rewards": reward.means,
        "lengths": reward.lengths,
        "before": before,
    }
    if settings["held_out"]:
        outcome["after"] = scores(trainer.model, tokenizer, settings)
    Path(outcome_path).write_text(json.dumps(outcome), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
