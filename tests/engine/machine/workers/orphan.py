"""A stand-in for an engine that is killed: starts a worker, says its process id, and waits."""

import asyncio
import sys
from pathlib import Path

from marlaas.engine.machine.workers.handle import LocalLauncher


async def main() -> None:
    factory = "tests.engine.machine.workers.dummy:DummyWorker"
    handle = await LocalLauncher().start("dummy", factory, {}, log_path=Path(sys.argv[1]))
    print(handle.pid, flush=True)
    await handle.call("wait_for", "never")


if __name__ == "__main__":
    asyncio.run(main())
