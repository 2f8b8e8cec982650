"""The producer of asyncio over gRPC: against a broker that is held back as scripted, and against the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from bus import Admin, BusError, Consumer, ErrorCode, NewTopic
from bus.aio import Producer
from tests.support.broker_thread import running_broker
from tests.support.fake_broker import FakeBroker, Refuse
from tests.support.murmur2 import partition_of_key

WAIT_S = 20
QUICK: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 10}
T = TypeVar("T")


def run(scenario: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await asyncio.wait_for(scenario(), 2 * WAIT_S)  # whatever waits inside fails first, and says what it was

    return asyncio.run(main())


def log_of(broker: FakeBroker, topic: str, partition: int = 0) -> list[bytes | None]:
    return broker.cluster.topics[topic].partitions[partition].values()


async def in_thread(call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, call)


async def wait_for_requests(broker: FakeBroker, count: int) -> None:
    def wait() -> bool:
        with broker.cluster.changed:
            return broker.cluster.changed.wait_for(lambda: len(broker.produce_requests) >= count, WAIT_S)

    assert await in_thread(wait)


def test_awaited_record_names_where_it_is(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)

    async def scenario() -> None:
        async with Producer(broker.address, linger_ms=0) as producer:
            assert await producer.partitions_for("t") == [0, 1]
            await producer.send("t", b"a", partition=1)
            found = await producer.send("t", b"b", key=b"k", headers=[("h", None)], partition=1, timestamp_ms=77)
            assert (found.topic, found.partition, found.offset, found.timestamp_ms) == ("t", 1, 1, 77)
            assert producer.metrics()["record-send-total"] == 2

    run(scenario)


def test_full_buffer_holds_the_records_back_and_not_the_loop(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.gate.clear()
    records = [b"%04d" % number + b"x" * 1_000 for number in range(200)]

    async def scenario() -> None:
        async with Producer(broker.address, buffer_memory=16_384, max_request_size=8_192, batch_size=4_096) as producer:
            futures = [producer.send("t", record) for record in records]
            await wait_for_requests(broker, 1)  # the loop is free, while most records have no room
            assert not any(future.done() for future in futures)
            broker.gate.set()
            found = await asyncio.gather(*futures)
        assert [metadata.offset for metadata in found] == list(range(200))

    run(scenario)
    assert log_of(broker, "t") == records


def test_batches_and_records_keep_their_order(broker: FakeBroker) -> None:
    broker.cluster.create("t")

    async def scenario() -> None:
        async with Producer(broker.address) as producer:
            futures: list[asyncio.Future[Any]] = []
            for number in range(20):
                futures.append(producer.send("t", b"r%d" % number))
                futures.append(producer.send_batch("t", pa.table({"value": [b"b%d" % number, b"c%d" % number]})))
            await producer.flush()
            assert all(future.done() for future in futures)
            await asyncio.gather(*futures)

    run(scenario)
    assert log_of(broker, "t") == [b"%s%d" % (kind, n) for n in range(20) for kind in (b"r", b"b", b"c")]


def test_record_whose_sender_was_cancelled_is_sent(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.gate.clear()

    async def scenario() -> None:
        async with Producer(broker.address, linger_ms=0) as producer:

            async def send() -> None:
                await producer.send("t", b"a")

            task = asyncio.create_task(send())
            await wait_for_requests(broker, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            broker.gate.set()
            await producer.send("t", b"b")

    run(scenario)
    assert log_of(broker, "t") == [b"a", b"b"]


def test_refusals_come_through_the_future(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    broker.produce_script.append(Refuse(ErrorCode.INVALID_RECORD))

    async def scenario() -> None:
        async with Producer(broker.address, max_block_ms=1_000, **QUICK) as producer:
            refused = await asyncio.gather(
                producer.send("t", b"a"),
                producer.send("t", b"x" * 2_000_000),
                producer.send("t", "text"),
                producer.send("nowhere", b"a"),
                return_exceptions=True,
            )
        assert [error.code for error in refused if isinstance(error, BusError)] == [
            ErrorCode.INVALID_RECORD,
            ErrorCode.MESSAGE_TOO_LARGE,
            ErrorCode.REQUEST_TIMED_OUT,
        ]
        assert isinstance(refused[2], TypeError)

    run(scenario)


def test_thousands_in_flight_come_back_from_the_real_broker_in_order(tmp_path: Path) -> None:
    keys = [b"key-%d" % (number % 31) for number in range(5_000)]
    values = [b"value-%d" % number for number in range(5_000)]

    async def scenario(address: str) -> list[Any]:
        async with Producer(address) as producer:
            futures = [producer.send("t", value, key) for value, key in zip(values, keys, strict=True)]
            return await asyncio.gather(*futures)

    with running_broker(tmp_path / "data") as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin:
            admin.create_topics([NewTopic("t", 3)])
        placed = run(lambda: scenario(address))
        with Consumer(address, auto_offset_reset="earliest", max_poll_records=5_000) as consumer:
            consumer.assign(consumer.partitions_for("t"))
            records: list[Any] = []
            while len(records) < len(values):
                found = consumer.poll(timeout_ms=WAIT_S * 1_000)
                assert found, f"expected {len(values) - len(records)} more records, found none"
                records += found
    where = {(record.partition, record.offset): record.value for record in records}
    assert [where[metadata.partition, metadata.offset] for metadata in placed] == values
    for partition in range(3):
        mine = [
            metadata.offset for metadata, key in zip(placed, keys, strict=True) if partition_of_key(key, 3) == partition
        ]
        assert mine == sorted(mine)
        assert len(mine) == sum(record.partition == partition for record in records)
