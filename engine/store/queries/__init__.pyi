from . import rollouts as rollouts, timeline as timeline, timings as timings
