"""The state of policies: tensors on the device, copies on the host, files on the disk.

A policy that trains is a ``PolicyMemory``: flat vectors in the order of a ``Layout``. The others are each a
``TrainingState`` in host memory or in a file (``Pages``). ``AdapterCache`` decides which are paged out.
"""
