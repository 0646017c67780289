"""Environments: each plugin version has a process that runs its episodes and scores them.

All output of a process is validated: its code may be broken or hostile.
"""
