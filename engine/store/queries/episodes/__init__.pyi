from . import rollouts as rollouts
