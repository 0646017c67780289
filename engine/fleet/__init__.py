"""The machine's workers: which are started, where, with how much memory; who supervises them; who may use them.

``placement`` decides, ``supervisor`` keeps the workers alive, ``routing`` chooses a sampler for each policy,
``trainers`` shares the trainers among all tasks, ``yielding`` gives the machine back to people. A run gets all of
it as ``Services``.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
