from .clients import (
    Serving as Serving,
)
