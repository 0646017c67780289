"""Who goes next where many want the same worker: weighted shares of tenants, even shares of a tenant's tasks.

The clock is the virtual token counter of VTC (arXiv 2401.00588). The ledger says what everybody has used. Pure but for
the futures of those who wait in a line.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
