"""Where the state of policies lies: tensors on the device, copies on the host, files on the disk.

A policy that trains has its adapter and its optimizer in a ``PolicyMemory``, flat vectors in the order of a ``Layout``;
the device has room for some of them. The others are a ``TrainingState`` each, which ``Pages`` keeps in the host's
memory, or in a file where that has no room. ``AdapterCache`` decides which are where.
"""
