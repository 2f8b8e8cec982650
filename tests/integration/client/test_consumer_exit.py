"""Leaving a consumer: by an exception it commits nothing of what was in hand, in normal flow all that was given."""

from __future__ import annotations

import asyncio
import gc
import sys
from code import InteractiveInterpreter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from bus import Consumer, ConsumerRecord, TopicPartition
from bus.aio import Consumer as AsyncConsumer
from bus.client.connection.retrying import monotonic_ms
from bus.records.arrow_batches import encode_arrow
from tests.support.fake_broker import FakeBroker

GROUP: dict[str, Any] = {
    "group_id": "g",
    "auto_offset_reset": "earliest",
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
}
WAIT_MS = 20_000
T0 = TopicPartition("t", 0)


class WorkFailed(Exception):
    pass


@pytest.fixture(autouse=True)
def hundred_records(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    batch = pa.RecordBatch.from_arrays([pa.array([b"%d" % number for number in range(100)])], names=["value"])
    broker.append("t", 0, encode_arrow(batch), 1_000)


def committed(broker: FakeBroker) -> int | None:
    return broker.cluster.coordinator.committed("g").get(("t", 0))


def by_poll(consumer: Consumer) -> Iterator[int]:
    """Two polls of 20; the second is in hand from 20 on."""
    for _ in range(2):
        for record in consumer.poll(WAIT_MS, 20):
            yield record.offset


def by_poll_arrow(consumer: Consumer) -> Iterator[int]:
    for _ in range(2):
        yield from consumer.poll_arrow(WAIT_MS, 20).column("offset").to_pylist()


def by_iteration(consumer: Consumer) -> Iterator[int]:
    for record in consumer:
        yield record.offset


READERS = [(by_poll, 20), (by_poll_arrow, 20), (by_iteration, 30)]


def leave_by(
    error: type[BaseException], broker: FakeBroker, work: Callable[[Consumer], object], **configs: Any
) -> None:
    """A program whose work ends in an error, inside `with`."""
    with Consumer(broker.address, **GROUP, **configs) as consumer:
        consumer.subscribe(["t"])
        work(consumer)
        raise error


def up_to_record_30(read: Callable[[Consumer], Iterator[int]]) -> Callable[[Consumer], object]:
    return lambda consumer: next(offset for offset in read(consumer) if offset == 30)


@pytest.mark.parametrize("error", [WorkFailed, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize(("read", "expected"), READERS)
def test_leaving_by_an_exception_commits_nothing_that_was_not_done(
    broker: FakeBroker, read: Callable[[Consumer], Iterator[int]], expected: int, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        leave_by(error, broker, up_to_record_30(read))
    assert committed(broker) == expected


@pytest.mark.parametrize(("read", "expected"), READERS)
def test_assigned_partitions_are_left_the_same_way(
    broker: FakeBroker, read: Callable[[Consumer], Iterator[int]], expected: int
) -> None:
    def work(consumer: Consumer) -> None:
        consumer.unsubscribe()
        consumer.assign([T0])
        up_to_record_30(read)(consumer)

    with pytest.raises(WorkFailed):
        leave_by(WorkFailed, broker, work)
    assert committed(broker) == expected


def test_close_while_an_exception_is_on_its_way_is_leaving_by_it(broker: FakeBroker) -> None:
    def program() -> None:
        consumer = Consumer(broker.address, **GROUP)
        with closing(consumer):
            consumer.subscribe(["t"])
            assert len(consumer.poll(WAIT_MS)) == 100
            raise WorkFailed

    with pytest.raises(WorkFailed):
        program()
    assert committed(broker) == 0


@pytest.mark.parametrize("does_assign", [False, True])
def test_unsubscribing_while_an_exception_is_on_its_way_is_leaving_by_it(broker: FakeBroker, does_assign: bool) -> None:
    def program() -> None:
        consumer = Consumer(broker.address, **GROUP)
        try:
            if does_assign:
                consumer.assign([T0])
            else:
                consumer.subscribe(["t"])
            consumer.poll(WAIT_MS, 20)
            consumer.commit({T0: 5})
            raise WorkFailed
        finally:
            consumer.unsubscribe()
            consumer.close()

    with pytest.raises(WorkFailed):
        program()
    assert committed(broker) == 5


def test_normal_close_commits_all_that_was_given(broker: FakeBroker) -> None:
    with Consumer(broker.address, **GROUP) as consumer:
        consumer.subscribe(["t"])
        for record in consumer:
            if record.offset == 30:
                break
    assert committed(broker) == 31
    with Consumer(broker.address, **GROUP) as consumer:
        consumer.subscribe(["t"])
        assert len(consumer.poll(WAIT_MS, 20)) == 20
    assert committed(broker) == 51


def test_callback_that_commits_at_the_end_commits_no_more(broker: FakeBroker) -> None:
    def work(consumer: Consumer) -> None:
        consumer.subscribe(["t"], on_revoked=lambda partitions: consumer.commit())
        consumer.poll(WAIT_MS, 20)
        consumer.poll(WAIT_MS, 20)

    with pytest.raises(WorkFailed):
        leave_by(WorkFailed, broker, work, enable_auto_commit=False)
    assert committed(broker) == 20


@pytest.mark.parametrize(
    ("say", "expected"),
    [
        (lambda consumer, records: consumer.commit(records[6]), 7),
        (lambda consumer, records: consumer.commit({T0: 5}), 5),
        (lambda consumer, records: consumer.commit(asynchronous=True), 20),
        (lambda consumer, records: consumer.seek(T0, 13), 13),
    ],
)
def test_commit_or_seek_inside_a_batch_says_what_is_done(
    broker: FakeBroker, say: Callable[[Consumer, list[ConsumerRecord]], None], expected: int
) -> None:
    with pytest.raises(WorkFailed):
        leave_by(WorkFailed, broker, lambda consumer: say(consumer, consumer.poll(WAIT_MS, 20)))
    assert committed(broker) == expected


class Twice:
    """Makes two records of each."""

    is_broken = False

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        if self.is_broken:
            raise KeyboardInterrupt
        return [copy for record in records for copy in (record, record)]

    def on_commit(self, offsets: object) -> None: ...

    def close(self) -> None: ...


def test_record_of_which_an_interceptor_made_more_is_done_with_the_last_of_them(broker: FakeBroker) -> None:
    with Consumer(broker.address, interceptors=[Twice()], **GROUP) as consumer:
        consumer.subscribe(["t"])
        assert [next(consumer).offset for _ in range(3)] == [0, 0, 1]
    assert committed(broker) == 1


def test_interrupt_inside_a_poll_skips_nothing(broker: FakeBroker) -> None:
    interceptor = Twice()
    with Consumer(broker.address, interceptors=[interceptor], **GROUP) as consumer:
        consumer.subscribe(["t"])
        consumer.poll(WAIT_MS, 20)
        interceptor.is_broken = True
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(WAIT_MS, 20)
        assert consumer.position(T0) == 20
        interceptor.is_broken = False
        assert consumer.poll(WAIT_MS, 20)[0].offset == 20


def test_interrupted_close_leaves_the_group(broker: FakeBroker) -> None:
    def interrupt(partitions: list[TopicPartition]) -> None:
        raise KeyboardInterrupt

    consumer = Consumer(broker.address, **GROUP)
    consumer.subscribe(["t"], on_revoked=interrupt)
    consumer.poll(WAIT_MS, 20)
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    assert broker.cluster.coordinator.left == ["the consumer was interrupted while it was closed"]
    assert committed(broker) == 20


# ---------------------------------------------------------------- asyncio


async def poll_async(consumer: AsyncConsumer) -> Any:
    for _ in range(2):
        for record in await consumer.poll(WAIT_MS, 20):
            yield record.offset


async def poll_arrow_async(consumer: AsyncConsumer) -> Any:
    for _ in range(2):
        for offset in (await consumer.poll_arrow(WAIT_MS, 20)).column("offset").to_pylist():
            yield offset


async def iterate_async(consumer: AsyncConsumer) -> Any:
    async for record in consumer:
        yield record.offset


ASYNC_READERS = [(poll_async, 20), (poll_arrow_async, 20), (iterate_async, 30)]


@pytest.mark.parametrize("error", [WorkFailed, asyncio.CancelledError])
@pytest.mark.parametrize(("read", "expected"), ASYNC_READERS)
def test_leaving_async_with_by_an_exception_commits_nothing_that_was_not_done(
    broker: FakeBroker, read: Callable[[AsyncConsumer], Any], expected: int, error: type[BaseException]
) -> None:
    async def scenario() -> None:
        async with AsyncConsumer(broker.address, **GROUP) as consumer:
            await consumer.subscribe(["t"])
            async for offset in read(consumer):
                if offset == 30:
                    raise error

    with pytest.raises(error):
        asyncio.run(scenario())
    assert committed(broker) == expected


def test_cancelled_task_commits_nothing_that_was_not_done(broker: FakeBroker) -> None:
    async def scenario() -> None:
        is_working = asyncio.Event()

        async def work() -> None:
            async with AsyncConsumer(broker.address, **GROUP) as consumer:
                await consumer.subscribe(["t"])
                async for record in consumer:
                    if record.offset == 30:
                        is_working.set()
                        await asyncio.Event().wait()

        task = asyncio.ensure_future(work())
        await is_working.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert committed(broker) == 30


@pytest.mark.parametrize(
    "end",
    [
        lambda consumer: consumer.close(),
        lambda consumer: asyncio.wait_for(consumer.close(), WAIT_MS),
        lambda consumer: asyncio.shield(consumer.close()),
        lambda consumer: asyncio.create_task(consumer.close()),
        lambda consumer: asyncio.shield(consumer.unsubscribe()),
    ],
    ids=["await", "wait_for", "shield", "task", "unsubscribe"],
)
def test_awaited_close_while_an_exception_is_on_its_way_is_leaving_by_it(
    broker: FakeBroker, end: Callable[[AsyncConsumer], Awaitable[None]]
) -> None:
    async def scenario() -> None:
        consumer = AsyncConsumer(broker.address, **GROUP)
        try:
            await consumer.subscribe(["t"])
            await consumer.poll(WAIT_MS, 20)
            await consumer.commit({T0: 5})
            raise WorkFailed
        finally:
            await end(consumer)
            await consumer.close()

    with pytest.raises(WorkFailed):
        asyncio.run(scenario())
    assert committed(broker) == 5


def test_table_of_a_cancelled_poll_is_read_by_the_next_one(broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with AsyncConsumer(broker.address, **GROUP) as consumer:
            await consumer.assign([T0])
            waiting = asyncio.ensure_future(consumer.poll_arrow(WAIT_MS, 20))
            while not consumer._table_ahead:
                await asyncio.sleep(0)
                waiting.cancel()
            assert await consumer.position(T0) == 0
            assert [record.offset for record in await consumer.poll(WAIT_MS, 20)] == list(range(20))

    asyncio.run(scenario())


# ---------------------------------------------------------------- a consumer that is forgotten


def wait_until_left(broker: FakeBroker) -> None:
    gc.collect()
    coordinator = broker.cluster.coordinator
    with coordinator.changed:
        assert coordinator.changed.wait_for(lambda: bool(coordinator.left), WAIT_MS / 1000)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_forgotten_consumer_leaves_its_group_and_commits_nothing(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = Consumer(broker.address, **GROUP)
    consumer.subscribe(["t"])
    assert len(consumer.poll(WAIT_MS)) == 100
    del consumer
    wait_until_left(broker)
    assert broker.cluster.coordinator.left == ["the consumer was forgotten, and not closed"]
    assert committed(broker) is None
    assert "a consumer of group 'g' was never closed" in caplog.text


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_forgotten_consumer_of_asyncio_leaves_its_group(broker: FakeBroker) -> None:
    async def on_assigned(partitions: list[TopicPartition]) -> None: ...

    async def scenario() -> None:
        consumer = AsyncConsumer(broker.address, **GROUP)
        await consumer.subscribe(["t"], on_assigned=on_assigned)
        assert len(await consumer.poll(WAIT_MS)) == 100

    asyncio.run(scenario())
    wait_until_left(broker)


# ---------------------------------------------------------------- a cell of a notebook that is interrupted


def run_cell(code: str, names: dict[str, Any]) -> None:
    InteractiveInterpreter(names).runsource(code, symbol="exec")


def run_notebook_cell(code: str, names: dict[str, Any]) -> None:
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    shell.user_ns.update(names)
    shell.run_cell(code)


@pytest.mark.parametrize("run", [run_cell, run_notebook_cell])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_interrupted_cell_leaves_no_member_behind_for_longer_than_a_session(
    broker: FakeBroker,
    run: Callable[[str, dict[str, Any]], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        monkeypatch.setattr(sys, name, None, raising=False)
    consumer = Consumer(broker.address, session_timeout_ms=200_000, **GROUP)
    try:
        consumer.subscribe(["t"])
        run("records = consumer.poll(20_000)\nraise KeyboardInterrupt", {"consumer": consumer})
        group = consumer._group
        assert group is not None
        with group._lock:
            group.tick(monotonic_ms())
            group.tick(monotonic_ms() + 200_000)
        coordinator = broker.cluster.coordinator
        with coordinator.changed:
            assert coordinator.changed.wait_for(lambda: bool(coordinator.left), WAIT_MS / 1000)
        assert coordinator.left == ["the program that polled ended with an error"]
        assert "did not close it" in caplog.text
        assert consumer.poll(WAIT_MS), "a later cell goes on"
    finally:
        consumer.close()


def test_error_of_a_cell_is_nothing_to_a_consumer_of_another_thread(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    with Consumer(broker.address, **GROUP) as consumer:
        consumer.subscribe(["t"])
        with ThreadPoolExecutor(1) as pool:
            pool.submit(consumer.poll, WAIT_MS).result()
        monkeypatch.setattr(sys, "last_value", KeyboardInterrupt())
        group = consumer._group
        assert group is not None
        with group._lock:
            group.tick(monotonic_ms())
            assert group.membership._left_behind_at_ms is None
