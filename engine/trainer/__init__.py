"""Training: groups of trajectories become gradients, gradients become steps, steps become state files.

``Trainer`` is the protocol of the worker; ``TorchTrainer`` implements it.
"""
