"""Where ``tests.ray_nodes`` was: for tests that still import it from here."""

from tests.ray_nodes import MEMORY, ROOT, VARIABLES, RayNodes

__all__ = ["MEMORY", "ROOT", "VARIABLES", "RayNodes"]
