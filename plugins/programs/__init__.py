"""External programs as environments: ``@env.program("python my_agent.py")``. Standard library only.

Each episode starts a program in its own folder, with the model's address in its environment variables. Its conversation
there is trained on. Its exit code, a file, or a function gives the reward.
"""

from .declaring import program
from .run import ProgramFailed, ProgramRun

__all__ = ["ProgramFailed", "ProgramRun", "program"]
