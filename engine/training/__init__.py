"""Training: groups of trajectories become gradients, gradients become steps, steps become state files.

``Trainer`` is the protocol of the worker; ``TorchTrainer`` implements it. Losses are in ``losses``, passes over the
base in ``decoder``.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
