"""The machine's workers: their placement, memory, supervision and sharing. A run gets all of it as ``Services``.

``placement`` decides, ``supervisor`` keeps the workers alive, ``routing`` chooses samplers, ``trainers`` shares the
trainers, ``yielding`` gives the machine back to people.
"""
