from . import rollouts as rollouts, timeline as timeline
