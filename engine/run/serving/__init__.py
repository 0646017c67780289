"""Which versions samplers hold, whether these are what was trained (the canary), and which stay on the disk."""
