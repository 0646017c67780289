"""One task's run: groups are admitted, run, trained on, committed, published and evaluated.

``TrainRun`` has a ``PolicyLearner`` for each trained policy. ``selfplay``: which policy acts as which agent;
``trial``: the speed of a machine.
"""
