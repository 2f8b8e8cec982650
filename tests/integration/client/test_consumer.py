"""The consumer against a broker that fails as scripted: every record once, in order, from the position that holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from bus import BusError, Consumer, ConsumerRecord, ErrorCode, Producer, TopicPartition
from bus.client.connection.fetch_requests import FetchedPartition, FetchPosition
from bus.client.consumer.records import RecordDeserializationError
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.records.arrow_batches import encode_arrow
from bus.records.log_schema import HEADERS_TYPE
from tests.support.broker_process import free_port
from tests.support.fake_broker import Answer, BreakStream, Cluster, FakeBroker, Refuse
from tests.support.member_processes import wait_until

QUICK: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 10}
EARLIEST: dict[str, Any] = {"auto_offset_reset": "earliest", **QUICK}
WAIT_MS = 20_000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def fill(broker: FakeBroker, partition: int, numbers: range, *, timestamp_ms: int = 1_000) -> None:
    """One batch: the values are the numbers."""
    batch = pa.RecordBatch.from_arrays([pa.array([b"%d" % number for number in numbers])], names=["value"])
    with broker.cluster.changed:
        broker.append("t", partition, encode_arrow(batch), timestamp_ms)
        broker.cluster.changed.notify_all()


def take(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    while len(records) < count:
        more = consumer.poll(WAIT_MS)
        assert more, f"expected {count} records, found {len(records)}"
        records += more
    assert len(records) == count
    return records


def values(records: list[ConsumerRecord], partition: int = 0) -> list[int]:
    return [int(record.value or b"") for record in records if record.partition == partition]


def wait_for_fetches(broker: FakeBroker, accept: Callable[[list[pb.FetchRequest]], bool]) -> None:
    with broker.cluster.changed:
        assert broker.cluster.changed.wait_for(lambda: accept(broker.fetch_requests), WAIT_MS / 1000)


# ---------------------------------------------------------------- reading


def test_records_come_once_and_in_order_from_all_partitions(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    for start in range(0, 100, 10):
        fill(broker, 0, range(start, start + 10))
        fill(broker, 1, range(1_000 + start, 1_010 + start))
    with Consumer(broker.address, max_poll_records=7, **EARLIEST) as consumer:
        consumer.assign([T0, T1])
        records = take(consumer, 200)
        assert (consumer.position(T0), consumer.position(T1)) == (100, 100)
    assert values(records, 0) == list(range(100))
    assert values(records, 1) == list(range(1_000, 1_100))
    assert [record.offset for record in records if record.partition == 1] == list(range(100))


def test_poll_gives_no_more_than_asked_for(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    fill(broker, 0, range(100))
    with Consumer(broker.address, **EARLIEST) as consumer:
        consumer.assign([T0])
        assert len(consumer.poll(WAIT_MS, max_records=3)) == 3
        assert consumer.poll_arrow(WAIT_MS, max_records=40).num_rows == 40
        assert consumer.position(T0) == 43
        assert consumer.poll_arrow(WAIT_MS).column("value").to_pylist() == [b"%d" % number for number in range(43, 100)]


def test_waiting_poll_returns_as_soon_as_a_record_arrives(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Consumer(broker.address, fetch_max_wait_ms=WAIT_MS, **EARLIEST) as consumer:
        consumer.assign([T0])
        assert consumer.poll(0) == []
        wait_for_fetches(broker, lambda requests: len(requests) == 1)
        started = time.monotonic()
        fill(broker, 0, range(1))
        assert values(take(consumer, 1)) == [0]
        assert time.monotonic() - started < WAIT_MS / 2000


def test_empty_poll_returns_in_time_with_nothing(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Consumer(broker.address, fetch_max_wait_ms=WAIT_MS, **EARLIEST) as consumer:
        consumer.assign([T0])
        assert consumer.poll(10) == []
        assert consumer.poll_arrow(10).num_rows == 0


def test_iteration_gives_every_record_and_the_position_follows_each(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    fill(broker, 0, range(30))
    seen: list[int] = []
    with Consumer(broker.address, max_poll_records=8, **EARLIEST) as consumer:
        consumer.assign([T0])
        for record in consumer:
            seen.append(int(record.value or b""))
            assert consumer.position(T0) == record.offset + 1
            if len(seen) == 20:
                break
        # What the loop had read ahead is not lost to a poll after it.
        seen += values(consumer.poll(WAIT_MS, max_records=5))
        for record in consumer:
            seen.append(int(record.value or b""))
            if len(seen) == 30:
                break
    assert seen == list(range(30))


def test_wake_up_ends_the_iteration_and_a_waiting_poll(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Consumer(broker.address, **EARLIEST) as consumer:
        consumer.assign([T0])
        for waiting in (lambda: list(consumer), lambda: consumer.poll(WAIT_MS * 10)):
            waker = threading.Timer(0.01, consumer.wakeup)
            waker.start()
            assert waiting() == []
            waker.join()


def test_fetching_ahead_is_bounded_while_nobody_polls(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    for start in range(0, 2_000, 100):
        fill(broker, 0, range(start, start + 100))
    with Consumer(broker.address, max_partition_fetch_bytes=1, **EARLIEST) as consumer:
        consumer.assign([T0])
        assert len(consumer.poll(WAIT_MS, max_records=1)) == 1
        with broker.cluster.changed:
            assert not broker.cluster.changed.wait_for(lambda: len(broker.fetch_requests) > 3, timeout=0.1)
        assert values(take(consumer, 1_999)) == list(range(1, 2_000))


# ---------------------------------------------------------------- positions


def test_without_a_position_the_reset_policy_decides(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    fill(broker, 0, range(10))
    for policy, expected in (("earliest", 0), ("latest", 10)):
        with Consumer(broker.address, auto_offset_reset=policy) as consumer:
            consumer.assign([T0])
            assert consumer.position(T0) == expected
    with Consumer(broker.address, auto_offset_reset="none") as consumer:
        consumer.assign([T0])
        with pytest.raises(BusError, match="auto_offset_reset is none"):
            consumer.poll(WAIT_MS)
        consumer.seek(T0, 4)
        assert values(take(consumer, 6)) == list(range(4, 10))


def test_seeks_go_where_they_say_whatever_was_fetched_ahead(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    for start in range(0, 100, 10):
        fill(broker, 0, range(start, start + 10))
    with Consumer(broker.address, **EARLIEST) as consumer:
        consumer.assign([T0])
        take(consumer, 100)
        for offset in (95, 3, 50, 99, 0):
            consumer.seek(T0, offset)
            assert consumer.position(T0) == offset
            assert consumer.poll(WAIT_MS, max_records=1)[0].offset == offset
        consumer.seek_to_end([T0])
        assert consumer.position(T0) == 100
        consumer.seek_to_beginning()
        assert values(take(consumer, 100)) == list(range(100))


@pytest.mark.parametrize(("policy", "expected"), [("earliest", 5), ("latest", None)])
def test_position_outside_the_log_is_reset(broker: FakeBroker, policy: str, expected: int | None) -> None:
    log = broker.cluster.create("t").partitions[0]
    log.log_start = 5
    fill(broker, 0, range(5, 10))
    with Consumer(broker.address, auto_offset_reset=policy, **QUICK) as consumer:
        consumer.assign([T0])
        for offset in (0, 77):
            consumer.seek(T0, offset)
            if expected is None:
                wait_until(lambda: consumer.poll(50) == [] and consumer.position(T0) == 10, "it is reset")
            else:
                assert consumer.poll(WAIT_MS, max_records=1)[0].offset == expected


def test_position_outside_the_log_is_an_error_without_a_policy(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Consumer(broker.address, auto_offset_reset="none", **QUICK) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 9)
        with pytest.raises(BusError, match="expected an offset that is 0, found 9") as caught:
            consumer.poll(WAIT_MS)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert consumer.position(T0) == 9


def test_paused_partition_gives_nothing_and_goes_on_where_it_was(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    fill(broker, 0, range(10))
    fill(broker, 1, range(10))
    with Consumer(broker.address, **EARLIEST) as consumer:
        consumer.assign([T0, T1])
        take(consumer, 20)
        consumer.pause([T0])
        assert consumer.paused() == {T0}
        fill(broker, 0, range(10, 20))
        fill(broker, 1, range(10, 20))
        assert {record.partition for record in take(consumer, 10)} == {1}
        assert consumer.poll(10) == []
        consumer.resume([T0])
        assert values(take(consumer, 10)) == list(range(10, 20))


def test_partitions_may_come_from_a_generator_that_asks_the_consumer(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    fill(broker, 0, range(5))
    with Consumer(broker.address, **EARLIEST) as consumer:
        consumer.assign([T0, T1])
        consumer.pause(partition for partition in (T0, T1) if consumer.position(partition) == 0)
        assert consumer.paused() == {T0, T1}
        consumer.resume(partition for partition in (T0, T1) if consumer.position(partition) == 0)
        consumer.seek_to_end(partition for partition in (T0, T1) if consumer.position(partition) == 0)
        assert consumer.position(T0) == 5


def test_paused_partition_without_a_position_costs_nothing(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    with Consumer(broker.address, **EARLIEST) as consumer:
        consumer.assign([T0])
        consumer.pause([T0])
        consumer.poll(0)
        started = time.thread_time()
        assert consumer.poll(1_000) == []
        assert time.thread_time() - started < 0.4, "it spins instead of waiting"
        assert broker.calls.count("ListOffsets") == 0
        assert broker.calls.count("Metadata") <= 1


def test_new_assignment_keeps_positions_and_drops_the_others(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    fill(broker, 0, range(10))
    fill(broker, 1, range(10))
    with Consumer(broker.address, **EARLIEST) as consumer:
        consumer.assign([T0])
        consumer.poll(WAIT_MS, max_records=4)
        consumer.assign([T1, T0])
        assert consumer.assignment() == {T0, T1}
        assert values(take(consumer, 16), 0) == list(range(4, 10))
        consumer.assign([T1])
        with pytest.raises(BusError, match="t-0"):
            consumer.position(T0)


def test_partition_that_becomes_hungry_does_not_wait_for_the_long_poll_of_others(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    fill(broker, 1, range(5))
    with Consumer(broker.address, fetch_max_wait_ms=WAIT_MS, **EARLIEST) as consumer:
        consumer.assign([T0, T1])
        take(consumer, 5)
        wait_for_fetches(broker, lambda requests: len(requests[-1].partitions) == 2 and len(requests) > 1)
        started = time.monotonic()
        consumer.seek(T1, 0)
        assert values(take(consumer, 5), 1) == list(range(5))
        assert time.monotonic() - started < WAIT_MS / 2000


def test_resumed_partition_does_not_wait_for_the_long_poll_of_others(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    with Consumer(broker.address, fetch_max_wait_ms=WAIT_MS, **EARLIEST) as consumer:
        consumer.assign([T0, T1])
        assert consumer.poll(0) == []
        consumer.pause([T1])
        fill(broker, 0, range(1))
        take(consumer, 1)
        wait_for_fetches(broker, lambda requests: [share.partition for share in requests[-1].partitions] == [0])
        fill(broker, 1, range(5))
        started = time.monotonic()
        consumer.resume([T1])
        assert values(take(consumer, 5), 1) == list(range(5))
        assert time.monotonic() - started < WAIT_MS / 2000


def test_answer_for_a_position_that_was_left_is_not_used(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    fill(broker, 0, range(10))
    with Consumer(broker.address, **EARLIEST) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 7)
        stale = FetchedPartition(T0, BusError(ErrorCode.INVALID_REQUEST, "no"), -1, -1, [], 0)
        # Two leaders may have a request each under way; the slower one's answer is for where the consumer was.
        with consumer._fetcher.lock:
            assert not consumer._fetcher._take_answer(stale, {T0: FetchPosition(3, "", -1)}, 0.0)
        assert values(take(consumer, 3)) == [7, 8, 9]


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    "step",
    [
        *(Refuse(code) for code in ErrorCode if code.is_retriable and code is not ErrorCode.CORRUPT_MESSAGE),
        BreakStream(is_appended=False),
    ],
    ids=lambda step: step.code.name if isinstance(step, Refuse) else "broken stream",
)
def test_trouble_that_passes_loses_no_record(broker: FakeBroker, step: Any) -> None:
    broker.cluster.create("t")
    fill(broker, 0, range(10))
    with Consumer(broker.address, **EARLIEST) as consumer:
        consumer.assign([T0])
        broker.fetch_script.extend([step, step])
        assert values(take(consumer, 10)) == list(range(10))
        broker.fetch_script.append(step)
        fill(broker, 0, range(10, 20))
        assert values(take(consumer, 10)) == list(range(10, 20))


@pytest.mark.parametrize("code", [ErrorCode.INVALID_REQUEST, ErrorCode.CORRUPT_MESSAGE])
def test_final_error_is_raised_and_the_position_stays(broker: FakeBroker, code: ErrorCode) -> None:
    broker.cluster.create("t")
    fill(broker, 0, range(10))
    broker.fetch_script.append(Refuse(code, "no such column"))
    with Consumer(broker.address, **EARLIEST) as consumer:
        consumer.assign([T0])
        with pytest.raises(BusError, match="no such column"):
            consumer.poll(WAIT_MS)
        assert values(take(consumer, 10)) == list(range(10))


def test_corrupt_records_are_named_and_fetched_again(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    fill(broker, 0, range(10))
    garbage = pb.LogBatch(base_offset=0, next_offset=10, record_count=10, arrow=b"garbage")
    broker.fetch_script.append(Answer((garbage,)))
    with Consumer(broker.address, **EARLIEST) as consumer:
        consumer.assign([T0])
        with pytest.raises(BusError, match="t-0 at offset 0") as caught:
            consumer.poll(WAIT_MS)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        assert values(take(consumer, 10)) == list(range(10))


def null_header() -> pa.Array:
    """One header that is null, over a key that is not: no producer of the bus makes it, a stranger may."""
    child = pa.StructArray.from_arrays(
        [pa.array(["k"]), pa.array([b"v"])], fields=list(HEADERS_TYPE.value_type), mask=pa.array([True])
    )
    return pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), child, type=HEADERS_TYPE)


def fill_with_bad_record(broker: FakeBroker, partition: int, count: int, bad: int) -> None:
    none = pa.array([None], HEADERS_TYPE)
    headers = pa.concat_arrays([null_header() if number == bad else none for number in range(count)])
    values_ = pa.array([b"%d" % number for number in range(count)])
    broker.append(
        "t", partition, encode_arrow(pa.RecordBatch.from_arrays([values_, headers], names=["value", "headers"]))
    )


def test_record_that_cannot_be_built_costs_itself_alone(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    fill_with_bad_record(broker, 0, 10, bad=3)
    fill(broker, 1, range(10))
    with Consumer(broker.address, **EARLIEST) as consumer:
        consumer.assign([T0, T1])
        read: list[ConsumerRecord] = []
        raised: list[RecordDeserializationError] = []
        while len(read) < 19:
            try:
                read += consumer.poll(WAIT_MS)
            except RecordDeserializationError as error:
                raised.append(error)
                if len(raised) == 2:  # until the reader steps over it, it comes again
                    assert consumer.position(T0) == 3
                    consumer.seek(T0, 4)
        assert values(read, 0) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert values(read, 1) == list(range(10))
    assert [(error.partition, error.offset, error.field, error.record.value) for error in raised] == [
        (T0, 3, "headers", b"3")
    ] * 2
    assert "t-0 at offset 3: expected headers" in str(raised[0])


def test_iteration_stops_at_a_record_that_cannot_be_built_and_goes_on_behind_it(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    fill_with_bad_record(broker, 0, 5, bad=2)
    with Consumer(broker.address, **EARLIEST) as consumer:
        consumer.assign([T0])
        assert [next(consumer).offset for _ in range(2)] == [0, 1]
        for _ in range(2):
            with pytest.raises(RecordDeserializationError, match="t-0 at offset 2"):
                next(consumer)
        consumer.seek(T0, 3)
        assert [next(consumer).offset for _ in range(2)] == [3, 4]


def test_new_leader_is_found_and_nothing_is_read_twice() -> None:
    cluster = Cluster()
    cluster.create("t", 2)
    with FakeBroker(cluster, 0) as old, FakeBroker(cluster, 1) as new, Consumer(old.address, **EARLIEST) as consumer:
        fill(old, 0, range(10))
        fill(old, 1, range(10))
        consumer.assign([T0, T1])
        take(consumer, 20)
        cluster.move("t", 1, 1)
        fill(old, 0, range(10, 20))
        fill(new, 1, range(10, 20))
        records = take(consumer, 20)
        assert values(records, 0) == values(records, 1) == list(range(10, 20))
        assert {share.partition for request in new.fetch_requests for share in request.partitions} == {1}


def named(broker: FakeBroker) -> list[tuple[int, list[int], list[int]]]:
    """Return, for each message on a stream, its place in a session, the partitions that it names and those that it
    forgets."""
    with broker.cluster.changed:
        return [
            (
                message.session,
                sorted(share.partition for share in message.partitions),
                sorted(number for topic in message.forgotten for number in topic.partitions),
            )
            for message in broker.fetch_messages
        ]


def test_requests_name_only_what_has_changed_since_the_one_before(broker: FakeBroker) -> None:
    broker.cluster.create("t", 5)
    with Consumer(broker.address, fetch_max_wait_ms=10, **EARLIEST) as consumer:
        consumer.assign([TopicPartition("t", number) for number in range(5)])
        assert consumer.poll(50) == []
        wait_for_fetches(broker, lambda requests: len(requests) >= 3)
        assert named(broker)[0] == (pb.FETCH_SESSION_BEGIN, [0, 1, 2, 3, 4], [])
        assert (pb.FETCH_SESSION_CONTINUE, [], []) in named(broker), "nothing has changed"
        fill(broker, 3, range(10))
        assert values(take(consumer, 10), 3) == list(range(10))
        wait_for_fetches(broker, lambda _: (pb.FETCH_SESSION_CONTINUE, [3], []) in named(broker))
        consumer.pause([TopicPartition("t", 1)])
        wait_for_fetches(broker, lambda _: (pb.FETCH_SESSION_CONTINUE, [], [1]) in named(broker))
        consumer.resume([TopicPartition("t", 1)])
        consumer.poll(0)
        wait_for_fetches(broker, lambda _: any(1 in partitions for _, partitions, _ in named(broker)[1:]))
        fill(broker, 1, range(5))
        assert values(take(consumer, 5), 1) == list(range(5))


def test_broker_that_keeps_no_session_is_told_everything_each_time(broker: FakeBroker) -> None:
    broker.keeps_sessions = False
    broker.cluster.create("t", 2)
    with Consumer(broker.address, fetch_max_wait_ms=10, **EARLIEST) as consumer:
        consumer.assign([T0, T1])
        fill(broker, 0, range(10))
        assert values(take(consumer, 10)) == list(range(10))
        wait_for_fetches(broker, lambda requests: len(requests) >= 5)
        assert {tuple(partitions) for _, partitions, _ in named(broker)} == {(0, 1)}
        assert {session for session, _, _ in named(broker)} == {pb.FETCH_SESSION_BEGIN}


def fetched_at(broker: FakeBroker) -> list[int]:
    """Offsets, in the order of the requests."""
    with broker.cluster.changed:
        return [share.fetch_offset for request in broker.fetch_requests for share in request.partitions]


def test_replica_that_the_leader_names_is_read_and_its_rack_and_version_go_with_each_request() -> None:
    cluster = Cluster()
    cluster.create("t")
    cluster.read_replicas["b"] = 1
    with FakeBroker(cluster, 0) as leader, FakeBroker(cluster, 1) as replica:
        for start in range(0, 50, 10):
            fill(leader, 0, range(start, start + 10))
        settings: dict[str, Any] = {"client_rack": "b", "max_partition_fetch_bytes": 1, **EARLIEST}
        with Consumer(leader.address, **settings) as consumer:
            consumer.assign([T0])
            assert values(take(consumer, 50)) == list(range(50))
            assert fetched_at(leader) == [0], "the leader has named the replica in its first answer"
            assert fetched_at(replica)[:4] == [10, 20, 30, 40]
            first, second = (request.partitions[0] for request in (leader.fetch_requests[0], replica.fetch_requests[0]))
            assert not first.HasField("seen_version")
            assert second.seen_version == 5
            assert {request.rack_id for request in replica.fetch_requests} == {"b"}
            assert consumer.partition_metrics()[T0]["preferred-read-replica"] == 1.0


def test_consumer_without_a_rack_reads_leaders_only() -> None:
    cluster = Cluster()
    cluster.create("t")
    cluster.read_replicas["b"] = 1
    with FakeBroker(cluster, 0) as leader, FakeBroker(cluster, 1) as replica:
        fill(leader, 0, range(5))
        with Consumer(leader.address, **EARLIEST) as consumer:
            consumer.assign([T0])
            take(consumer, 5)
            assert consumer.partition_metrics()[T0]["preferred-read-replica"] == -1.0
        assert not replica.fetch_requests


@pytest.mark.parametrize(
    "fault",
    [
        Refuse(ErrorCode.OFFSET_OUT_OF_RANGE),
        Refuse(ErrorCode.OFFSET_NOT_AVAILABLE),
        Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        Refuse(ErrorCode.CORRUPT_MESSAGE),
        Refuse(ErrorCode.INVALID_REQUEST),
        BreakStream(is_appended=False),
    ],
)
def test_any_error_of_a_replica_sends_its_reader_back_to_the_leader_and_resets_no_position(
    fault: Refuse | BreakStream,
) -> None:
    cluster = Cluster()
    cluster.create("t")
    cluster.read_replicas["b"] = 1
    with FakeBroker(cluster, 0) as leader, FakeBroker(cluster, 1) as replica:
        replica.fetch_script.append(fault)
        for start in range(0, 30, 10):
            fill(leader, 0, range(start, start + 10))
        settings: dict[str, Any] = {"client_rack": "b", "max_partition_fetch_bytes": 1, **EARLIEST}
        with Consumer(leader.address, **{**settings, "auto_offset_reset": "none"}) as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 0)
            assert values(take(consumer, 30)) == list(range(30))
        assert fetched_at(replica) == [10], "it failed, and is not asked again at once though the leader names it"
        assert fetched_at(leader)[:3] == [0, 10, 20]


def test_leader_is_asked_again_after_metadata_max_age() -> None:
    cluster = Cluster()
    cluster.create("t")
    cluster.read_replicas["b"] = 1
    with FakeBroker(cluster, 0) as leader, FakeBroker(cluster, 1) as replica:
        fill(leader, 0, range(5))
        settings: dict[str, Any] = {"client_rack": "b", "metadata_max_age_ms": 50, "fetch_max_wait_ms": 10, **EARLIEST}
        with Consumer(leader.address, **settings) as consumer:
            consumer.assign([T0])
            take(consumer, 5)
            consumer.poll(20)
            deadline = time.monotonic() + WAIT_MS / 1000
            while len(fetched_at(leader)) < 3 or not fetched_at(replica):
                assert time.monotonic() < deadline
                consumer.poll(10)


def test_restarted_broker_is_found_again_and_reading_goes_on() -> None:
    cluster = Cluster()
    cluster.create("t")
    with FakeBroker(cluster) as first:
        consumer = Consumer(first.address, **EARLIEST)
        consumer.assign([T0])
        fill(first, 0, range(5))
        take(consumer, 5)
        address = first.address
    assert consumer.poll(20) == [], "an outage that may pass is no error once the cluster was reached"
    with FakeBroker(cluster, address=address) as second, consumer:
        fill(second, 0, range(5, 10))
        assert values(take(consumer, 5)) == list(range(5, 10))


def test_broker_that_does_not_answer_is_given_up_and_asked_again(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    # The broker holds the first fetch for longer than the client is told it may.
    held = Consumer(broker.address, fetch_max_wait_ms=0, fetch_min_bytes=0, request_timeout_ms=500, **EARLIEST)
    release = threading.Event()
    fetch, broker._fetch = broker._fetch, lambda request, context: release.wait(20) and fetch(request, context)  # type: ignore[method-assign]
    with held as consumer:
        consumer.assign([T0])
        assert consumer.poll(100) == []
        broker._fetch = fetch  # type: ignore[method-assign]
        fill(broker, 0, range(3))
        assert values(take(consumer, 3)) == [0, 1, 2]
        release.set()


def test_topic_created_again_is_read_from_its_own_start(broker: FakeBroker) -> None:
    broker.cluster.create("t")
    fill(broker, 0, range(5))
    with Consumer(broker.address, **EARLIEST) as consumer:
        consumer.assign([T0])
        take(consumer, 5)
        broker.cluster.create("t")
        fill(broker, 0, range(100, 110))
        assert values(take(consumer, 10)) == list(range(100, 110))


def test_topic_and_partition_that_do_not_exist_are_waited_for_and_told_once(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.cluster.create("t")
    missing = [TopicPartition("late", 0), TopicPartition("t", 1)]
    fill(broker, 0, range(3))
    with Consumer(broker.address, **EARLIEST) as consumer:
        consumer.assign([*missing, T0])
        assert len(take(consumer, 3)) == 3, "they cost no other partition its turn"

        def told() -> list[str]:
            lines = [record.message for record in caplog.records if "UNKNOWN_TOPIC_OR_PARTITION" in record.message]
            return sorted(line.split(" ")[0] for line in lines)

        wait_until(lambda: consumer.poll(50) == [] and len(told()) >= 2, "both are told")
        assert told() == ["late-0", "t-1"]
        for partition in missing:
            with pytest.raises(BusError) as caught:
                consumer.position(partition)
            assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        broker.cluster.create("late")
        broker.append("late", 0, encode_arrow(pa.RecordBatch.from_pydict({"value": [b"1"]})))
        assert take(consumer, 1)[0].topic == "late"


def test_no_broker_says_where_and_what_to_do() -> None:
    address = f"127.0.0.1:{free_port()}"
    with Consumer(address, default_api_timeout_ms=2_000) as consumer:
        consumer.assign([T0])
        assert consumer.poll(50) == []  # it may yet come
        with pytest.raises(BusError, match=f"bus serve --listen {address}"):
            consumer.end_offsets([T0])


def test_use_without_assignment_or_after_close_is_refused(broker: FakeBroker) -> None:
    consumer = Consumer(broker.address)
    with pytest.raises(BusError, match="assign"):
        consumer.poll(10)
    with pytest.raises(BusError, match="0 or more"):
        consumer.seek(T0, -1)
    consumer.close()
    consumer.close()
    for ask in (lambda: consumer.poll(10), lambda: consumer.assign([T0]), lambda: next(consumer)):
        with pytest.raises(BusError, match="closed"):
            ask()
    # The thread of the log's lines ends by itself, once there are none.
    wait_until(lambda: not any(thread.name.startswith("bus-") for thread in threading.enumerate()), "no thread is left")


# ---------------------------------------------------------------- questions


def test_offsets_are_answered_for_beginning_end_and_times(broker: FakeBroker) -> None:
    log = broker.cluster.create("t", 2).partitions[0]
    log.log_start = 5
    fill(broker, 0, range(5, 10), timestamp_ms=1_000)
    fill(broker, 0, range(10, 15), timestamp_ms=2_000)
    with Consumer(broker.address, **QUICK) as consumer:
        broker.control_script.append(Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        assert consumer.beginning_offsets([T0, T1]) == {T0: 5, T1: 0}
        assert consumer.end_offsets([T0, T1]) == {T0: 15, T1: 0}
        found = consumer.offsets_for_times({T0: 1_500, T1: 1_500})
        assert found[T1] is None
        assert found[T0] is not None
        assert (found[T0].offset, found[T0].timestamp_ms) == (10, 2_000)
        assert consumer.partitions_for("t") == {T0, T1}
        assert consumer.topics() == {"t"}
        with pytest.raises(BusError, match="found -7"):
            consumer.offsets_for_times({T0: -7})


def test_position_is_looked_up_at_the_next_leader_when_the_one_that_was_known_refuses() -> None:
    cluster = Cluster()
    with FakeBroker(cluster, 0) as first, FakeBroker(cluster, 1) as second:
        cluster.create("t", 2)
        with Consumer(first.address, auto_offset_reset="earliest") as consumer, Producer(second.address) as producer:
            consumer.assign([TopicPartition("t", 0)])
            assert consumer.position(TopicPartition("t", 0)) == 0
            cluster.move("t", 1, 1)
            producer.send("t", b"x", partition=1).result(30)
            consumer.assign([TopicPartition("t", 1)])
            deadline_s = time.monotonic() + 30
            while not (records := consumer.poll(100)):
                assert time.monotonic() < deadline_s
            assert [record.value for record in records] == [b"x"]
