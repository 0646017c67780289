"""The process of a plugin, private to marlaas.

It talks to the engine over an inherited socket (``channel``); standard output and error are the plugin's.
"""
