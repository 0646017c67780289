"""Knows which process imported it."""

import os

PROCESS = os.getpid()
