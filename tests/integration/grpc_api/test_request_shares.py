"""Requests that wait on streams count against the share of their client, and count no longer when it has gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from bus.broker_api import broker_api
from bus.errors import ErrorCode
from bus.grpc_api.server.records.produce_decoding import parse_call
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.records.arrow_batches import encode_arrow
from bus.settings.broker import BrokerConfig
from tests.support.cancelled_calls import QuietBroker, QuietContext
from tests.support.memory_store import MemoryStore

KIB = 1024
CONFIG = BrokerConfig(queued_max_request_bytes=4 * KIB * KIB)


class UnreadContext(QuietContext):
    """The context of a client that reads no answer, or all of them if `is_read`."""

    def __init__(self, *, is_read: bool = False) -> None:
        self.is_read = is_read
        self.answers: list[Any] = []
        self.is_answered = asyncio.Event()

    async def write(self, answer: Any) -> None:
        self.answers.append(answer)
        self.is_answered.set()
        if not self.is_read:
            await asyncio.Event().wait()


class Sent:
    """The same request without end; how many of it were taken."""

    def __init__(self, request: Any, count: int = 10_000) -> None:
        self.request = request
        self.count = count
        self.taken = 0

    async def requests(self) -> AsyncIterator[Any]:
        while self.taken < self.count:
            self.taken += 1
            yield self.request
            await asyncio.sleep(0)
        await asyncio.Event().wait()


async def settle(of: Callable[[], Any]) -> None:
    """Wait until it has not changed for a hundred rounds of the loop."""
    before, unchanged = of(), 0
    while unchanged < 100:
        await asyncio.sleep(0)
        now = of()
        unchanged = unchanged + 1 if now == before else 0
        before = now


async def end(call: asyncio.Task[None]) -> None:
    call.cancel()
    await asyncio.wait([call])


def on_broker(do: Callable[[QuietBroker], Awaitable[None]], store: Any = None) -> None:
    async def live() -> None:
        broker = QuietBroker(store or MemoryStore(), CONFIG)
        await broker.start()
        try:
            await broker.call("CreateTopics", pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partitions=1)]))
            await do(broker)
        finally:
            await broker.stop()

    asyncio.run(live())


def commit_of(size_bytes: int) -> pb.GroupSessionRequest:
    unknown = pb.OffsetCommitPartition(topic="u" * 200, partition=0)
    return pb.GroupSessionRequest(
        offset_commit=pb.OffsetCommitRequest(group_id="g", generation=-1, partitions=[unknown] * (size_bytes // 200))
    )


def fetch_of(size_bytes: int) -> pb.FetchRequest:
    return pb.FetchRequest(max_wait_ms=60_000, partitions=[pb.FetchPartition(topic="t", topic_id="i" * size_bytes)])


@pytest.mark.parametrize(
    ("method", "request_of"), [("GroupSession", commit_of), ("Fetch", fetch_of)], ids=["group session", "fetch"]
)
def test_requests_that_wait_on_a_stream_count_against_the_share_of_their_client(
    method: str, request_of: Callable[[int], Any]
) -> None:
    async def do(broker: QuietBroker) -> None:
        memory = broker.calls_of._control_memory
        sent = Sent(request_of(100 * KIB))
        call = asyncio.create_task(getattr(broker.calls_of, method)(sent.requests(), UnreadContext()))
        await settle(lambda: (sent.taken, memory._bytes))
        assert 5 <= sent.taken <= 7, "as many as half of a quarter of queued.max.request.bytes holds, and one"
        assert memory._bytes >= 512 * KIB
        await end(call)
        await settle(lambda: memory._bytes)
        assert memory._bytes == 0

    on_broker(do)


@pytest.fixture
def small_overdraft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_api, "_OVERDRAFT_BYTES", KIB * KIB)
    monkeypatch.setattr(broker_api, "_CONTROL_OVERDRAFT_BYTES", 256 * KIB)


@pytest.mark.usefixtures("small_overdraft")
def test_streams_of_one_client_that_take_more_than_its_share_are_refused() -> None:
    async def do(broker: QuietBroker) -> None:
        memory = broker.calls_of._control_memory
        calls = []
        for _ in range(30):
            sent = Sent(fetch_of(100 * KIB), count=1)
            context = UnreadContext()
            calls.append(asyncio.create_task(broker.calls_of.Fetch(sent.requests(), context)))
        await settle(lambda: memory._bytes)
        assert memory._bytes <= 1024 * KIB
        refused = [call for call in calls if call.done() and "RESOURCE_EXHAUSTED" in str(call.exception())]
        assert len(refused) >= 20
        for call in calls:
            await end(call)
        await settle(lambda: memory._bytes)
        assert memory._bytes == 0

    on_broker(do)


class StuckStore:
    """Writes of records into the topic `t` wait until the gate is open."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self.gate = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write_unique(self, key: str, data: Any) -> None:
        if key.startswith("topics/t/"):
            assert self.gate.wait(50)
        self._store.write_unique(key, data)


@pytest.mark.usefixtures("small_overdraft")
def test_records_on_many_streams_of_one_client_are_refused_beyond_its_share() -> None:
    store = StuckStore()
    arrow = encode_arrow(pa.record_batch({"value": pa.array([b"v" * 250 * KIB])}))
    request = pb.ProduceRequest(partitions=[pb.PartitionProduceData(topic="t", arrow=arrow)])

    async def do(broker: QuietBroker) -> None:
        memory = broker.calls_of.handlers.produce._memory
        contexts = [UnreadContext(is_read=True) for _ in range(40)]
        calls = []
        for context in contexts:
            sent = Sent(parse_call(request.SerializeToString()), count=1)
            calls.append(asyncio.create_task(broker.calls_of.Produce(sent.requests(), context)))
        await settle(lambda: memory._bytes)
        assert memory._bytes <= 4 * KIB * KIB
        answers = [answer for context in contexts for answer in context.answers]
        assert len(answers) >= 20
        assert {answer.partitions[0].error_code for answer in answers} == {ErrorCode.THROTTLING_QUOTA_EXCEEDED}
        # Its heartbeats and the like go on.
        listed = await broker.call("ListViews", pb.ListViewsRequest())
        assert not listed.views
        store.gate.set()
        await asyncio.wait_for(asyncio.gather(*(context.is_answered.wait() for context in contexts)), 50)
        for call in calls:
            await end(call)
        await settle(lambda: memory._bytes)
        assert memory._bytes == 0

    try:
        on_broker(do, store)
    finally:
        store.gate.set()
