"""Trackers of experiments that ``engine/tracking`` has clients for."""

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
