"""The consumer of asyncio over gRPC, against a scripted broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from bus import BusError, ErrorCode, TopicPartition
from bus.aio import Consumer
from bus.records.arrow_batches import encode_arrow
from tests.support.fake_broker import FakeBroker

WAIT_S = 20
GROUP: dict[str, Any] = {
    "group_id": "g",
    "auto_offset_reset": "earliest",
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
}
T0 = TopicPartition("t", 0)
T = TypeVar("T")


def run(scenario: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await asyncio.wait_for(scenario(), WAIT_S)

    return asyncio.run(main())


def fill(broker: FakeBroker, numbers: range) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"%d" % number for number in numbers])], names=["value"])
    with broker.cluster.changed:
        broker.append("t", 0, encode_arrow(batch), 1_000)
        broker.cluster.changed.notify_all()


async def take(consumer: Consumer, count: int) -> list[int]:
    offsets: list[int] = []
    while len(offsets) < count:
        offsets += [record.offset for record in await consumer.poll(1_000, count - len(offsets))]
    return offsets


def test_iteration_gives_records_and_commits_no_more_than_it_gave(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    fill(broker, range(10))

    async def scenario() -> None:
        async with Consumer(broker.address, **GROUP) as consumer:
            await consumer.subscribe(["t"])
            seen: list[int] = []
            async for record in consumer:
                seen.append(record.offset)
                if record.offset == 3:
                    await consumer.commit()
                    assert broker.cluster.coordinator.committed("g") == {("t", 0): 4}
                    assert await consumer.position(T0) == 4
                    assert await consumer.lag(T0) == 6
                if record.offset == 5:
                    break
            assert seen == list(range(6))

    run(scenario)
    assert broker.cluster.coordinator.committed("g") == {("t", 0): 6}, "closing commits what was given, nothing more"


def test_records_of_a_cancelled_poll_are_given_by_the_next_one(broker: FakeBroker) -> None:
    broker.cluster.create("t")

    async def scenario() -> None:
        async with Consumer(broker.address, **GROUP) as consumer:
            await consumer.assign([T0])
            assert await consumer.poll(0) == []
            waiting = asyncio.ensure_future(consumer.poll(WAIT_S * 1_000))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            fill(broker, range(5))
            assert await take(consumer, 5) == [0, 1, 2, 3, 4]

    run(scenario)


def test_callback_that_is_a_coroutine_may_commit_while_a_poll_waits_for_it(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    fill(broker, range(5))
    told: list[tuple[str, list[TopicPartition]]] = []

    async def scenario() -> None:
        consumer = Consumer(broker.address, enable_auto_commit=False, **GROUP)

        async def on_revoked(partitions: list[TopicPartition]) -> None:
            await consumer.commit(dict.fromkeys(partitions, 2))
            told.append(("-", partitions))

        def on_assigned(partitions: list[TopicPartition]) -> None:
            told.append(("+", partitions))

        await consumer.subscribe(["t"], on_assigned=on_assigned, on_revoked=on_revoked)
        await take(consumer, 5)
        await consumer.close()
        await consumer.close()

    run(scenario)
    assert told == [("+", [T0]), ("-", [T0])]
    assert broker.cluster.coordinator.committed("g") == {("t", 0): 2}


def test_tasks_take_turns_and_errors_come_to_who_awaits(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    fill(broker, range(10))

    async def scenario() -> None:
        async with Consumer(broker.address, **GROUP) as consumer:
            await consumer.assign([T0])
            halves = await asyncio.gather(take(consumer, 5), take(consumer, 5))
            assert sorted(halves[0] + halves[1]) == list(range(10))
            assert await consumer.end_offsets([T0]) == {T0: 10}
            with pytest.raises(BusError) as caught:
                await consumer.subscribe(["t"])
            assert caught.value.code is ErrorCode.INVALID_REQUEST

    run(scenario)


def test_closing_ends_an_iteration_that_waits(broker: FakeBroker) -> None:
    broker.cluster.create("t")

    async def scenario() -> None:
        consumer = Consumer(broker.address, **GROUP)
        await consumer.subscribe(["t"])

        async def read() -> list[int]:
            return [record.offset async for record in consumer]

        reading = asyncio.ensure_future(read())
        await asyncio.sleep(0.05)
        await consumer.close()
        assert await reading == []

    run(scenario)


def test_wake_up_ends_the_iteration(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    fill(broker, range(3))

    async def scenario() -> None:
        async with Consumer(broker.address, **GROUP) as consumer:
            await consumer.subscribe(["t"])
            seen = []
            async for record in consumer:
                seen.append(record.offset)
                if record.offset == 2:
                    consumer.wakeup()
            assert seen == [0, 1, 2]

    run(scenario)
