from . import timeline as timeline, timings as timings
