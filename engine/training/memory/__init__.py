"""The state of policies: tensors on the device, copies on the host, files on the disk.

A policy that trains is a ``PolicyMemory``, the others are each a ``TrainingState`` in ``Pages``. ``AdapterCache``
decides which are paged out.
"""
