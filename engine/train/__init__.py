"""One task's run: groups are admitted, run, trained on, committed, published and evaluated.

``TrainRun`` has a ``PolicyLearner`` for each trained policy. Beneath: ``selfplay`` (which policy acts as which agent),
``evaluation`` (held-out scores and their baselines), ``publishing`` (published versions, retention), ``canary`` and
``trial`` (a step of the default task, to measure a machine).
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
