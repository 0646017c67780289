"""The machine's workers: their placement, memory, supervision and sharing.

``placement`` decides, ``supervisor`` keeps the workers alive, ``routing`` chooses a sampler for each policy,
``trainers`` shares the trainers among all tasks, ``yielding`` gives the machine back to people. A run gets all of it as
``Services``.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
