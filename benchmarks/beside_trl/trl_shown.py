"""One run of TRL's ``SFTTrainer`` or ``DPOTrainer``. Runs inside TRL's virtual environment: imports nothing of marlaas.

    python trl_shown.py KIND BASE ROWS.jsonl OUTCOME.json STEPS BATCH RATE

Rows are taken in the order of the file. Out: the loss and the end of every step, and when the training began.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer


class Clock(TrainerCallback):
    """Notes when the training begins, and when each step ends."""

    def __init__(self) -> None:
        self.begun = 0.0
        self.ends: list[float] = []

    def on_train_begin(self, *unused: Any, **more: Any) -> None:
        """Called by the trainer."""
        self.begun = time.time()

    def on_step_end(self, *unused: Any, **more: Any) -> None:
        """Called by the trainer."""
        self.ends.append(time.time())


def main(kind: str, base: str, rows: str, outcome: str, steps: str, batch: str, rate: str) -> None:
    """Train, and write down what was seen."""
    settings = {
        "output_dir": str(Path(outcome).parent / "out"),
        "max_steps": int(steps),
        "per_device_train_batch_size": int(batch),
        "learning_rate": float(rate),
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch_fused",
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "adam_epsilon": 1e-15,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "max_length": 1024,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
    }
    clock, lines = Clock(), Path(rows).read_text(encoding="utf-8").splitlines()
    common: dict[str, Any] = {
        "model": AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        "train_dataset": Dataset.from_list([json.loads(line) for line in lines]),
        "processing_class": AutoTokenizer.from_pretrained(base),
        "peft_config": LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
        "callbacks": [clock],
    }
    trainer: Any = (
        SFTTrainer(args=SFTConfig(completion_only_loss=True, **settings), **common)
        if kind == "sft"
        else DPOTrainer(args=DPOConfig(beta=0.1, **settings), **common)
    )
    trainer._get_train_sampler = lambda *unused, **more: SequentialSampler(trainer.train_dataset)
    trainer.train()
    made = [entry for entry in trainer.state.log_history if "loss" in entry]
    seen = {"losses": [entry["loss"] for entry in made], "margins": [entry.get("rewards/margins") for entry in made]}
    Path(outcome).write_text(json.dumps(seen | {"ends": clock.ends, "begun": clock.begun}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
