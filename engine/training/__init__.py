"""Training: groups of trajectories become gradients, gradients become steps, steps become state files.

``Trainer`` is the protocol of the worker; ``TorchTrainer`` is that worker. The losses are in ``losses``, the passes
over the base in ``decoder``. Nothing here knows a task, a text or an environment.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
