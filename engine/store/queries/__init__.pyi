from . import (
    timings as timings,
)
