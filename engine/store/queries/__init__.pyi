from . import rollouts as rollouts
from . import timeline as timeline
