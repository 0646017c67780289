"""The order of requests at shared workers: weighted shares of tenants, even shares of a tenant's tasks.

The clock is the virtual token counter of VTC (arXiv 2401.00588).
"""
