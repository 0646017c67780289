"""One task's run: groups are admitted, run, trained on, committed, published and evaluated.

``TrainRun`` has a ``PolicyLearner`` for each trained policy. ``selfplay``: which policy acts as which agent;
``trial``: the speed of a machine.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
