"""How long a consumer's calls take against brokers that hang, and what it waits for: a broker, a topic.

No test measures time. A call that takes longer than it was told meets the test's own time-out, since what it could wait
for instead lasts an hour.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from bus import BusError, Consumer, ErrorCode, TopicPartition
from bus.aio import Consumer as AsyncConsumer
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.records.arrow_batches import encode_arrow
from tests.support.broker_process import free_port
from tests.support.fake_broker import Cluster, FakeBroker, FakePartition
from tests.support.member_processes import wait_until

WAIT_MS = 20_000
HOUR_MS = 3_600_000
QUICK: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 10}
GROUP: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest", **QUICK}
PATIENT: dict[str, Any] = {"request_timeout_ms": HOUR_MS, "default_api_timeout_ms": HOUR_MS, **GROUP}
T0 = TopicPartition("t", 0)


class HangingBroker(FakeBroker):
    """Does not answer the calls that are named in `hung`, until `release`."""

    hung = frozenset[str]()

    def __init__(self, *, address: str = "127.0.0.1:0") -> None:
        self.release = threading.Event()
        self.is_hanging = threading.Event()
        super().__init__(Cluster(), address=address)

    def stop(self) -> None:
        self.release.set()
        super().stop()

    def hang(self, method: str) -> None:
        if method in self.hung:
            self.is_hanging.set()
            self.release.wait(WAIT_MS / 1000)


def hanging(method: str) -> Callable[..., Any]:
    def call(self: HangingBroker, request: Any, context: Any) -> Any:
        self.hang(method)
        return getattr(FakeBroker, method)(self, request, context)

    return call


for name in ("Metadata", "FindCoordinator", "JoinGroup", "SyncGroup", "OffsetFetch", "ListOffsets", "Fetch"):
    setattr(HangingBroker, name, hanging(name))


def fill(broker: FakeBroker, count: int, topic: str = "t", partition: int = 0) -> None:
    batch = pa.RecordBatch.from_pydict({"value": [b"%d" % number for number in range(count)]})
    with broker.cluster.changed:
        broker.append(topic, partition, encode_arrow(batch), 1_000)
        broker.cluster.changed.notify_all()


@pytest.fixture
def hung() -> Iterator[HangingBroker]:
    with HangingBroker() as broker:
        broker.cluster.create("t")
        fill(broker, 5)
        yield broker


@pytest.fixture
def silent() -> Iterator[str]:
    """Takes connections and says nothing, as a process that was stopped does."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def read(consumer: Consumer, count: int) -> list[int]:
    offsets: list[int] = []
    while len(offsets) < count:
        more = consumer.poll(WAIT_MS)
        assert more, f"expected {count} records, found {len(offsets)}"
        offsets += [record.offset for record in more]
    return offsets


# ---------------------------------------------------------------- brokers that hang


@pytest.mark.parametrize("method", ["Metadata", "FindCoordinator", "JoinGroup", "SyncGroup", "OffsetFetch", "Fetch"])
def test_poll_of_a_member_ends_in_time_and_a_later_one_has_the_records(hung: HangingBroker, method: str) -> None:
    hung.hung = frozenset({method})
    with Consumer(hung.address, **PATIENT) as consumer:
        consumer.subscribe(["t"])
        for _ in range(20):
            assert consumer.poll(5) == []
        hung.release.set()
        assert read(consumer, 5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("method", ["Metadata", "OffsetFetch", "ListOffsets", "Fetch"])
def test_poll_of_assigned_partitions_ends_in_time(hung: HangingBroker, method: str) -> None:
    hung.hung = frozenset({method})
    with Consumer(hung.address, **PATIENT) as consumer:
        consumer.assign([T0])
        for _ in range(20):
            assert consumer.poll(5) == []
        assert consumer.poll_arrow(5).num_rows == 0
        hung.release.set()
        assert read(consumer, 5) == [0, 1, 2, 3, 4]


def test_polls_without_time_come_to_records_too(hung: HangingBroker) -> None:
    with Consumer(hung.address, **PATIENT) as consumer:
        consumer.subscribe(["t"])
        while not consumer.poll(0):
            pass


def test_seek_during_a_look_up_decides(hung: HangingBroker) -> None:
    hung.hung = frozenset({"ListOffsets"})
    with Consumer(hung.address, **PATIENT) as consumer:
        consumer.assign([T0])
        while "ListOffsets" not in hung.calls and not hung.release.is_set():
            assert consumer.poll(5) == []
            if consumer._positions._lookup.is_under_way:
                consumer.seek(T0, 3)
                hung.release.set()
        assert read(consumer, 2) == [3, 4]


def test_revocation_whose_commit_hangs_ends_no_poll_late_and_gives_out_nothing(hung: HangingBroker) -> None:
    revoked: list[list[TopicPartition]] = []
    coordinator, release = hung.cluster.coordinator, threading.Event()
    with Consumer(hung.address, **PATIENT) as consumer:
        consumer.subscribe(["t"], on_revoked=revoked.append)
        read(consumer, 5)
        fill(hung, 5)
        commit = coordinator.commit

        def commit_late(request: Any) -> Any:
            coordinator.changed.wait_for(release.is_set, WAIT_MS / 1000)
            return commit(request)

        coordinator.commit = commit_late  # type: ignore[method-assign]
        consumer.enforce_rebalance()
        for _ in range(20):
            assert consumer.poll(5) == []
        assert revoked == []
        release.set()
        with coordinator.changed:
            coordinator.changed.notify_all()
        assert read(consumer, 5) == [5, 6, 7, 8, 9]
    assert revoked == [[T0], [T0]]
    assert coordinator.committed("g") == {("t", 0): 10}


QUESTIONS: list[Callable[[Any], Any]] = [
    lambda consumer: consumer.position(T0, timeout_ms=5),
    lambda consumer: consumer.lag(T0, timeout_ms=5),
    lambda consumer: consumer.commit({T0: 1}, timeout_ms=5),
    lambda consumer: consumer.committed([T0], timeout_ms=5),
    lambda consumer: consumer.beginning_offsets([T0], timeout_ms=5),
    lambda consumer: consumer.end_offsets([T0], timeout_ms=5),
    lambda consumer: consumer.offsets_for_times({T0: 0}, timeout_ms=5),
    lambda consumer: consumer.partitions_for("t", timeout_ms=5),
    lambda consumer: consumer.topics(timeout_ms=5),
]
SHORT_QUESTIONS: list[Callable[[Any], Any]] = [
    lambda consumer: consumer.position(T0),
    lambda consumer: consumer.commit({T0: 1}),
    lambda consumer: consumer.committed([T0]),
    lambda consumer: consumer.end_offsets([T0]),
    lambda consumer: consumer.partitions_for("t"),
    lambda consumer: consumer.topics(),
]


@pytest.mark.parametrize("ask", QUESTIONS)
def test_time_that_is_given_to_a_question_holds(silent: str, ask: Callable[[Consumer], Any]) -> None:
    consumer = Consumer(silent, **PATIENT)
    consumer.assign([T0])
    with pytest.raises(BusError) as caught:
        ask(consumer)
    assert caught.value.retriable
    consumer.close(timeout=0.05)


@pytest.mark.parametrize("ask", SHORT_QUESTIONS)
def test_default_time_of_questions_holds(silent: str, ask: Callable[[Consumer], Any]) -> None:
    consumer = Consumer(silent, **{**PATIENT, "default_api_timeout_ms": 5})
    consumer.assign([T0])
    with pytest.raises(BusError) as caught:
        ask(consumer)
    assert caught.value.retriable
    consumer.close(timeout=0.05)


def test_time_that_is_given_to_closing_holds(hung: HangingBroker) -> None:
    consumer = Consumer(hung.address, **PATIENT)
    consumer.subscribe(["t"])
    read(consumer, 5)
    coordinator = hung.cluster.coordinator
    coordinator.commit = lambda request: hung.release.wait(WAIT_MS / 1000)  # type: ignore[method-assign,assignment,return-value]
    consumer.close(timeout=0.05)


@pytest.mark.parametrize("is_loading", [False, True], ids=["search-hangs", "pause-after-a-refusal"])
def test_question_to_the_group_ends_when_the_consumer_is_closed(hung: HangingBroker, is_loading: bool) -> None:
    """The look-up of positions asks on a thread of its own."""
    is_asked = hung.is_hanging
    if is_loading:
        is_asked = threading.Event()
        loading = pb.OffsetFetchGroupResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

        def refuse(request: pb.OffsetFetchRequest) -> pb.OffsetFetchResponse:
            is_asked.set()
            return pb.OffsetFetchResponse(groups=[loading])

        hung.cluster.coordinator.fetch_offsets = refuse  # type: ignore[method-assign]
    else:
        hung.hung = frozenset({"FindCoordinator"})
    before = set(threading.enumerate())
    pause = {"retry_backoff_ms": HOUR_MS, "retry_backoff_max_ms": HOUR_MS} if is_loading else {}
    consumer = Consumer(hung.address, **{**PATIENT, **pause})
    consumer.assign([T0])
    consumer.poll(1)
    asking = [thread for thread in set(threading.enumerate()) - before if thread.name == "bus-positions"]
    assert is_asked.wait(WAIT_MS / 1000)
    consumer.close(timeout=0.05)
    assert len(asking) == 1
    asking[0].join(WAIT_MS / 1000)
    assert not asking[0].is_alive()


def test_asyncio_calls_keep_to_their_time(silent: str) -> None:
    async def scenario() -> None:
        consumer = AsyncConsumer(silent, **PATIENT)
        await consumer.assign([T0])
        assert await consumer.poll(5) == []
        for ask in QUESTIONS:
            with pytest.raises(BusError):
                await ask(consumer)
        await consumer.close(timeout=0.05)

    asyncio.run(scenario())


def test_closing_in_asyncio_does_not_wait_for_a_call_that_hangs(silent: str) -> None:
    async def scenario() -> None:
        consumer = AsyncConsumer(silent, **PATIENT)
        await consumer.assign([T0])
        asking = asyncio.ensure_future(consumer.end_offsets([T0]))
        await asyncio.sleep(0)
        await consumer.close(timeout=0.05)
        with pytest.raises(BusError):
            await asking

    asyncio.run(scenario())


# ---------------------------------------------------------------- what is not there yet


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("subscribes", [True, False])
def test_consumer_waits_for_a_broker_that_starts_later(subscribes: bool, caplog: pytest.LogCaptureFixture) -> None:
    address = f"127.0.0.1:{free_port()}"
    consumer = Consumer(address, **GROUP)
    if subscribes:
        consumer.subscribe(["t"])
    else:
        consumer.assign([T0])
    wait_until(lambda: consumer.poll(20) == [] and bool(warnings_in(caplog)), "the log says what is waited for")
    assert all("no broker listens" in line for line in warnings_in(caplog))
    with FakeBroker(address=address) as broker, consumer:
        broker.cluster.create("t")
        fill(broker, 5)
        assert read(consumer, 5) == [0, 1, 2, 3, 4]


def test_subscribed_topic_that_does_not_exist_is_told_once_and_read_once_it_is_there(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with Consumer(broker.address, allow_auto_create_topics=False, **GROUP) as consumer:
        consumer.subscribe(["late"])
        wait_until(lambda: consumer.poll(20) == [] and bool(warnings_in(caplog)), "it is said")
        for _ in range(10):
            assert consumer.poll(20) == []
        assert warnings_in(caplog) == ["topic 'late' is waited for: UNKNOWN_TOPIC_OR_PARTITION: it does not exist yet"]
        broker.cluster.create("late")
        fill(broker, 5, "late")
        assert read(consumer, 5) == [0, 1, 2, 3, 4]


class QuestionedBroker(FakeBroker):
    """Keeps the names that each request for metadata had."""

    def __init__(self) -> None:
        self.asked_for: list[list[str]] = []
        super().__init__()

    def Metadata(self, request: pb.MetadataRequest, context: Any) -> pb.MetadataResponse:
        answer = super().Metadata(request, context)
        self.asked_for.append(list(request.topics))
        return answer


def test_assigned_partition_that_does_not_exist_is_told_at_once_and_again_after_a_while_and_read_once_it_is_there(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    few = broker.cluster.create("few", partitions=2)
    expected = "few-2 is waited for: UNKNOWN_TOPIC_OR_PARTITION: expected a partition from 0 to 1, found 2"

    with Consumer(broker.address, **GROUP) as consumer:
        consumer.assign([TopicPartition("few", 2)])
        wait_until(lambda: consumer.poll(20) == [] and warnings_in(caplog) == [expected], "it is said")
        for _ in range(10):
            assert consumer.poll(20) == []
        assert warnings_in(caplog) == [expected], "not again with each look"
        consumer._positions._missing_due_ms[TopicPartition("few", 2)] = 0.0  # ten minutes later
        wait_until(lambda: consumer.poll(20) == [] and warnings_in(caplog) == [expected] * 2, "it is said again")
        few.partitions.append(FakePartition())
        fill(broker, 5, "few", 2)
        wait_until(lambda: [record.offset for record in consumer.poll(20)] == [0, 1, 2, 3, 4], "it is read")


@pytest.mark.parametrize("may_create", [True, False])
def test_broker_is_asked_to_create_what_is_subscribed_to_by_name(may_create: bool) -> None:
    with QuestionedBroker() as broker:
        with Consumer(broker.address, allow_auto_create_topics=may_create, **GROUP) as consumer:
            consumer.subscribe(["late"])
            # One look asks twice if it may create: for what is there, then for what is missing.
            while broker.asked_for.count(["late"]) < 3:
                consumer.poll(5)
        assert set(broker.created) == ({"late"} if may_create else set())


@pytest.mark.parametrize("may_create", [True, False])
def test_broker_is_not_asked_to_create_what_a_pattern_or_a_question_names(may_create: bool) -> None:
    with QuestionedBroker() as broker:
        with Consumer(broker.address, allow_auto_create_topics=may_create, **GROUP) as consumer:
            consumer.subscribe(pattern="late.*")
            while [] not in broker.asked_for:
                consumer.poll(5)
            with pytest.raises(BusError) as caught:
                consumer.partitions_for("never")
            assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert ["never"] in broker.asked_for
        assert broker.created == []
