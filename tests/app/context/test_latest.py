"""Of wishes that come while a thread works, only the newest is worked on."""

from __future__ import annotations

import threading

from textual.app import App

from marlaas.app.context.latest import Latest


async def test_the_newest_wish_counts() -> None:
    app: App[None] = App()
    gate, worked, answers = threading.Event(), list[int](), list[int]()

    def work(wish: int) -> int:
        worked.append(wish)
        if wish == 1:
            gate.wait(20)
        return 10 * wish

    async with app.run_test() as pilot:
        latest = Latest(app.screen, work, answers.append)
        latest.ask(1)
        await pilot.pause()
        for wish in (2, 3, 4):
            latest.ask(wish)
        gate.set()
        await app.workers.wait_for_complete()
        assert worked == [1, 4] and answers == [10, 40]
        latest.ask(5)
        await app.workers.wait_for_complete()
        assert answers == [10, 40, 50], "and it can be asked again"


async def test_an_answer_for_nobody_is_dropped() -> None:
    app: App[None] = App()
    begun, gate, answers = threading.Event(), threading.Event(), list[int]()

    def work(wish: int) -> int:
        begun.set()
        gate.wait(20)
        return wish

    async with app.run_test() as pilot:
        Latest(app.screen, work, answers.append).ask(1)
        await pilot.pause()
        begun.wait(20)
    gate.set()
    assert answers == []
