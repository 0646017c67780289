"""The process of a plugin. Private to marlaas: environment files never import it.

The engine starts it as ``python -P -m marlaas.plugins.host`` and talks to it over an inherited socket (``channel``);
standard output and standard error stay free for the plugin.
"""
