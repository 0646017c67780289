from .scheduler import (
    Scheduler as Scheduler,
)
