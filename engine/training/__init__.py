"""Training: groups of trajectories become gradients, gradients become steps, steps become state files.

``Trainer`` is the protocol of the worker; ``TorchTrainer`` implements it.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
