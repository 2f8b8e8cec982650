from __future__ import annotations

import asyncio

import pytest

from bus.runtime.metadata.controller import TopicNamesInUse
from bus.runtime.tasks import TaskScope, together
from tests.support.virtual_time import run_virtually


def test_what_a_cancelled_caller_has_begun_runs_to_its_end_and_is_joined() -> None:
    async def run() -> None:
        scope, gate, done = TaskScope("t"), asyncio.Event(), []

        async def work() -> None:
            await gate.wait()
            done.append(1)

        caller = asyncio.create_task(scope.finish(work(), "work"))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert not done
        gate.set()
        await scope.join()
        assert done == [1]

    asyncio.run(run())


def test_error_of_what_was_begun_reaches_the_caller_and_not_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(TaskScope("t").finish(fail(), "fail"))
    assert caplog.messages == []


def test_error_of_what_a_cancelled_caller_has_begun_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        scope, gate = TaskScope("t"), asyncio.Event()

        async def fail() -> None:
            await gate.wait()
            raise ValueError("no")

        caller = asyncio.create_task(scope.finish(fail(), "fail"))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        gate.set()
        await scope.join()
        await asyncio.sleep(0)

    asyncio.run(run())
    assert caplog.messages == ["task t/fail failed"]


def test_join_says_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        scope = TaskScope("broker")
        scope.start(asyncio.sleep(12.0), "watch/1")
        await scope.join()

    run_virtually(run())
    assert caplog.messages == 2 * ["broker: waiting for 1 tasks to end: broker/watch/1"]


def test_names_that_collide_are_held_by_one_at_a_time_and_others_side_by_side() -> None:
    async def run() -> None:
        names, order, gate = TopicNamesInUse(), [], asyncio.Event()

        async def hold(*held: str) -> None:
            async with names.hold(held):
                order.append(held[0])
                if held[0] == "a.b":
                    await gate.wait()

        tasks = [asyncio.create_task(hold(*held)) for held in (["a.b", "c"], ["a_b"], ["d"], ["c", "e"])]
        for _ in range(5):
            await asyncio.sleep(0)
        assert order == ["a.b", "d"]
        gate.set()
        await asyncio.gather(*tasks)
        assert sorted(order) == ["a.b", "a_b", "c", "d"]
        assert not names._locks

    asyncio.run(run())


def test_several_run_beside_each_other_and_one_alone_in_the_task_of_its_caller() -> None:
    async def run() -> None:
        order: list[str] = []

        async def say(word: str) -> tuple[str, asyncio.Task[object] | None]:
            order.append(word)
            await asyncio.sleep(0)
            order.append(word)
            return word, asyncio.current_task()

        own = asyncio.current_task()
        assert list(await together([say("alone")])) == [("alone", own)]
        assert [word for word, _ in await together([say("one"), say("two")])] == ["one", "two"]
        assert order == ["alone", "alone", "one", "two", "one", "two"]
        assert list(await together([])) == []

    asyncio.run(run())
