"""Trains the base, in place.

Learning rate and data depend on the step number only, never on the clock, so that a run of the same length repeats
itself.
"""

import math
import time

import torch
from torch.optim import AdamW, Muon, Optimizer

from tools.base.model import Network
from tools.base.packing import Packer

PEAK, WARM_UP, DECAY = 3e-3, 100, 0.05


def rate(step: int, steps: int) -> float:
    """A short warm-up, then half a cosine down to almost nothing."""
    return PEAK * min(1.0, (step + 1) / WARM_UP) * max(0.01, (1 + math.cos(math.pi * step / steps)) / 2)


def optimizers(model: Network) -> list[Optimizer]:
    """Muon for the layers' matrices, AdamW for embedding and norms: half as many steps as AdamW alone needs here."""
    matrices: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    for name, weight in model.named_parameters():
        (matrices if weight.ndim == 2 and "embed" not in name else others).append(weight)
    return [
        # Updates of the size that AdamW would make, so that both share one learning rate.
        Muon(matrices, lr=PEAK, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"),
        AdamW(others, lr=PEAK, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def train(model: Network, packer: Packer, steps: int) -> None:
    """Trains in place, on the model's device, and prints a line every 50 steps."""
    model.train()
    device, begun, both = model.device, time.monotonic(), optimizers(model)
    for step in range(steps):
        batch = packer.batch(step)
        # Products in bfloat16, weights and optimizer in float32: twice as fast, on a GPU as on a recent CPU.
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(
                input_ids=batch.ids.to(device),
                position_ids=batch.positions.to(device),
                labels=batch.labels.to(device),
                use_cache=False,  # a cache would switch off the mask between packed conversations
            ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in both:
            for group in optimizer.param_groups:
                group["lr"] = rate(step, steps)
            optimizer.step()
            optimizer.zero_grad()
        if step % 50 == 0 or step == steps - 1:
            speed = (step + 1) * batch.ids.numel() / (time.monotonic() - begun)
            print(f"step {step} of {steps}: loss {loss.item():.3f}, {speed:.0f} tokens/s", flush=True)
