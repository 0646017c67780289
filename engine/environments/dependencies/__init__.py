"""Libraries that plugins bring along: what a plugin declares, whether a person allowed it, and the Python that has it.

A plugin that declares nothing runs on marlaas's own Python. Any other gets a virtual environment, shared by all plugins
that declare the same; nothing is installed before somebody has seen the list.
"""
