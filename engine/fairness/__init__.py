"""Which request a shared worker serves next: weighted shares of tenants, even shares of a tenant's tasks.

The clock is the virtual token counter of VTC (arXiv 2401.00588). The ledger counts what each task has used. Pure.
"""

from ..door import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
