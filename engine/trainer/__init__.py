"""Groups of trajectories become gradients, steps and state files.

``Trainer`` is the worker's protocol; ``TorchTrainer`` implements it.
"""
