"""An environment of every kind that people write: what each pays depends on the question and the reply alone.

Rewards are drawn out of a checksum of both, so that no two replies of a group earn the same, and a reward that came of
anything else is seen at once.
"""

from __future__ import annotations

from zlib import crc32

GRADE = '''
import zlib

from marlaas.plugins import env


def grade(question, reply):
    """A number from 0 to 1 that depends on every character of both."""
    return zlib.crc32(f"{question}{reply}".encode()) % 1009 / 1008


def sum_of(ep):
    return "+".join(str(ep.rng.randrange(100)) for _ in "ab") + "="
'''


def graded(question: str, reply: str) -> float:
    """What an environment pays, unless it fails."""
    return crc32(f"{question}{reply}".encode()) % 1009 / 1008


def fails(question: str, reply: str) -> bool:
    """Whether the environment ``raising`` fails on a reply: on a fifth of them, whatever the machine does."""
    return crc32(f"{reply}{question}".encode()) % 5 == 0


KINDS = {
    "coroutine": f"""{GRADE}

@env
async def coroutine(ep):
    question = sum_of(ep)
    return grade(question, (await ep.ask(question)).text)
""",
    "plain": f"""{GRADE}

@env
def plain(ep):
    question = sum_of(ep)
    return grade(question, ep.ask(question).text)
""",
    "aclass": f"""{GRADE}

@env
class aclass:
    async def setup(self):
        self.table = [grade(str(number), "") for number in range(1000)]

    async def play(self, ep):
        question = sum_of(ep)
        reply = (await ep.ask(question)).text
        assert len(self.table) == 1000
        return grade(question, reply)
""",
    "tools": f"""{GRADE}
import time


@env(timeout=10)
async def tools(ep):
    amounts = ep.rng.randint(12, 98), ep.rng.randint(2, 9), ep.rng.randint(2, 9)
    question = "Tom has %d bags of %d nuts and sells %d. How many nuts are left?" % amounts

    def calc(expression: str) -> int:
        \"\"\"Value of an arithmetic expression.\"\"\"
        time.sleep(0.2)  # what a database or a network does: an event loop must not wait for it
        return amounts[0] * amounts[1] - amounts[2]

    reply = await ep.agent("solver", tools=[calc]).act(question, max_turns=2)
    return grade(question, reply.text)
""",
    "sandboxed": f"""{GRADE}

PROGRAM = '''
total = 0
for number in range(1_000_000):  # a tenth of a second of computing
    total += number
print(total, input())
'''


@env
async def sandboxed(ep):
    question = sum_of(ep)
    reply = (await ep.ask(question)).text
    ran = await ep.sandbox.python(PROGRAM, stdin=repr(reply), seconds=1.0)
    return grade(question, reply) if ran.ok and ran.stdout == f"499999500000 {{reply!r}}\\n" else -1.0
""",
    "blocking": f"""{GRADE}
import time


@env(timeout=5)
async def blocking(ep):
    question = sum_of(ep)
    reply = (await ep.ask(question)).text
    end = time.thread_time() + 0.05  # what sympy or a compiler does: computing, without an await
    while time.thread_time() < end:
        value = grade(question, reply)
    return value
""",
    "program": f"""{GRADE}
import asyncio
import sys

PROGRAM = "import sys, zlib; print(zlib.crc32(sys.stdin.buffer.read()) % 1009 / 1008)"


@env(timeout=10)
async def program(ep):
    question = sum_of(ep)
    reply = (await ep.ask(question)).text
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", PROGRAM, stdin=pipe, stdout=pipe)
    said, _ = await child.communicate((question + reply).encode())
    return float(said)
""",
    "leaking": f"""# /// script
# [tool.marlaas]
# memory_mb = 256
# ///
{GRADE}
kept = []


@env
async def leaking(ep):
    question = sum_of(ep)
    reply = (await ep.ask(question)).text
    kept.append(bytearray(2 << 20))  # its process is full after some eighty episodes
    return grade(question, reply)
""",
    "raising": f"""{GRADE}

@env
async def raising(ep):
    question = sum_of(ep)
    reply = (await ep.ask(question)).text
    if zlib.crc32(f"{{reply}}{{question}}".encode()) % 5 == 0:
        raise ValueError("this parser does not like that reply")
    return grade(question, reply)
""",
}
"""The text of a plugin, by the name of the plugin and of the environment in it."""
