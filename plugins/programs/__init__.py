"""External programs as environments: ``@env.program("python my_agent.py")``. Standard library only.

Each episode starts one in its own folder, and trains on its conversation.
"""

from .declaring import program
from .playing import ProgramFailed, ProgramRun

__all__ = ["ProgramFailed", "ProgramRun", "program"]
