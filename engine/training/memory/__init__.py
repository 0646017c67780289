"""The state of policies: tensors on the device, copies on the host, files on the disk.

A policy that trains has its adapter and optimizer in a ``PolicyMemory``: flat vectors in the order of a ``Layout``. The
device has room for some of them. The others are each a ``TrainingState``; ``Pages`` keeps it in host memory or in a
file. ``AdapterCache`` decides which are paged out.
"""
