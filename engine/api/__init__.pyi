from .figures import (
    Figure as Figure,
    FigureReader as FigureReader,
)
