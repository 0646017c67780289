"""External programs as environments: ``@env.program("python my_agent.py")``. Standard library only.

A program is started for each episode, in a folder of its own, and finds the model at an address in its environment
variables. What it says there is trained on; how it ends, what it leaves in a file, or a function says what it is worth.
"""

from .declaring import program
from .run import ProgramFailed, ProgramRun

__all__ = ["ProgramFailed", "ProgramRun", "program"]
