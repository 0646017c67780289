"""The engine: rollouts, environments and training of many tasks on one shared base. Knows no screen."""
