"""One task's run: groups are admitted, played, trained on, committed, published and evaluated.

``TrainRun`` has a ``PolicyLearner`` for each trained policy. Beneath: ``selfplay`` (who plays for which agent),
``evaluation`` (held-out scores and their baselines), ``serving`` (published versions, the canary, retention) and
``trial`` (a step of the default task, to see what a machine can do).
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
