"""A simulator: the real queue, runs, lines, router and store on virtual time, over workers that draw from a profile.

``recording`` makes the profile of a home, ``cluster_file`` reads what is simulated, ``simulation`` runs it, and
``figures`` reads what came of it, as it does of a real run.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
