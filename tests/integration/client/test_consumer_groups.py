"""Consumers of one group against a coordinator that fails as scripted: who reads what, and what is committed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from bus import BusError, Consumer, ConsumerRecord, ErrorCode, OffsetAndMetadata, TopicPartition
from bus.client.connection.retrying import monotonic_ms
from bus.client.consumer.records import RecordDeserializationError
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.records.arrow_batches import encode_arrow
from tests.support.fake_broker import FakeBroker

QUICK: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "reconnect_backoff_ms": 10}
GROUP: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest", **QUICK}
COOPERATIVE: dict[str, Any] = {"partition_assignment_strategy": "cooperative-sticky", **GROUP}
WAIT_S = 20.0
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Listener:
    """Keeps the calls of a subscription's callbacks, in order."""

    def __init__(self, log: list[tuple[str, list[TopicPartition]]] | None = None) -> None:
        self.log = [] if log is None else log

    def callbacks(self, name: str = "") -> dict[str, Any]:
        def noting(word: str) -> Callable[[list[TopicPartition]], None]:
            return lambda partitions: self.log.append((name + word, partitions))

        return {"on_assigned": noting("+"), "on_revoked": noting("-"), "on_lost": noting("!")}


def fill(broker: FakeBroker, partition: int, numbers: range, topic: str = "t") -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"%d" % number for number in numbers])], names=["value"])
    with broker.cluster.changed:
        broker.append(topic, partition, encode_arrow(batch), 1_000)
        broker.cluster.changed.notify_all()


def poll_until(done: Callable[[], bool], *consumers: Consumer) -> list[ConsumerRecord]:
    """Poll the consumers in turn, as programs of their own would."""
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, "it did not come to pass"
        for consumer in consumers:
            records += consumer.poll(20)
    return records


def take(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    while len(records) < count:
        more = consumer.poll(int(WAIT_S * 1000))
        assert more, f"expected {count} records, found {len(records)}"
        records += more
    assert len(records) == count
    return records


# ---------------------------------------------------------------- membership


def test_single_member_gets_all_partitions_and_reads_them(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    fill(broker, 0, range(5))
    fill(broker, 1, range(5, 10))
    listener = Listener()
    with Consumer(broker.address, **GROUP) as consumer:
        consumer.subscribe(["t"], **listener.callbacks())
        values = sorted(int(record.value) for record in take(consumer, 10))
        assert consumer.assignment() == {T0, T1}
        assert consumer.subscription() == {"t"}
        assert consumer.group_metadata().generation == 1
    assert values == list(range(10))
    assert listener.log == [("+", [T0, T1]), ("-", [T0, T1])]
    assert broker.cluster.coordinator.left == ["the consumer is closed"]


def test_second_member_takes_over_a_part_where_the_first_one_has_committed(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    fill(broker, 0, range(5))
    fill(broker, 1, range(5))
    listener = Listener()
    with Consumer(broker.address, **GROUP) as first, Consumer(broker.address, **GROUP) as second:
        first.subscribe(["t"], **listener.callbacks("a"))
        take(first, 10)
        second.subscribe(["t"], **listener.callbacks("b"))
        again = poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 1, first, second)
        assert first.assignment() | second.assignment() == {T0, T1}
        fill(broker, 0, range(5, 6))
        fill(broker, 1, range(5, 6))
        new: list[ConsumerRecord] = []
        poll_until(lambda: bool(new.extend([*first.poll(0), *second.poll(0)])) or len(new) >= 2)
    assert again == []
    assert [record.offset for record in new] == [5, 5]
    assert listener.log[:2] == [("a+", [T0, T1]), ("a-", [T0, T1])]


def test_cooperative_member_gives_up_only_what_moves_and_keeps_its_pauses(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    listener = Listener()
    with Consumer(broker.address, **COOPERATIVE) as first, Consumer(broker.address, **COOPERATIVE) as second:
        first.subscribe(["t"], **listener.callbacks("a"))
        poll_until(lambda: len(first.assignment()) == 2, first)
        first.pause([T0, T1])
        second.subscribe(["t"], **listener.callbacks("b"))
        poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 1, first, second)
        (moved,), (kept,) = second.assignment(), first.assignment()
        assert first.paused() == {kept}
        assert second.paused() == set()
    told = [entry for entry in listener.log if entry[1]]
    assert told[:3] == [("a+", [T0, T1]), ("a-", [moved]), ("b+", [moved])]


def test_member_that_is_put_out_loses_its_partitions_and_joins_again(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    listener = Listener()
    with Consumer(broker.address, heartbeat_interval_ms=20, **GROUP) as consumer:
        consumer.subscribe(["t"], **listener.callbacks())
        poll_until(lambda: bool(consumer.assignment()), consumer)
        broker.cluster.coordinator.expire("g", consumer.group_metadata().member_id)
        poll_until(lambda: len(listener.log) == 3, consumer)
    assert listener.log[:3] == [("+", [T0]), ("!", [T0]), ("+", [T0])]


def test_without_on_lost_lost_partitions_are_told_to_on_revoked(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    revoked: list[list[TopicPartition]] = []
    with Consumer(broker.address, heartbeat_interval_ms=20, **GROUP) as consumer:
        consumer.subscribe(["t"], on_revoked=revoked.append)
        poll_until(lambda: bool(consumer.assignment()), consumer)
        broker.cluster.coordinator.expire("g", consumer.group_metadata().member_id)
        poll_until(lambda: bool(revoked), consumer)
    assert revoked[0] == [T0]


def test_member_that_polls_too_seldom_leaves_and_comes_back_with_the_next_poll(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    listener = Listener()
    with Consumer(broker.address, max_poll_interval_ms=1_000, heartbeat_interval_ms=20, **GROUP) as consumer:
        consumer.subscribe(["t"], **listener.callbacks())
        poll_until(lambda: bool(consumer.assignment()), consumer)
        broker.cluster.coordinator.wait_for_state("g", "Empty", 0)
        assert broker.cluster.coordinator.left == ["max.poll.interval.ms is over"]
        with pytest.raises(BusError, match="no member of group") as caught:
            consumer.commit({T0: 0})
        assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
        poll_until(lambda: len(listener.log) == 3, consumer)
    assert [word for word, _ in listener.log[:3]] == ["+", "!", "+"]


def test_waiting_in_poll_is_polling(broker: FakeBroker) -> None:
    """The wait ends in a third of the interval, and what it goes back to counts as a poll."""
    broker.cluster.create("t", 1)
    calm = {"enable_auto_commit": False, "heartbeat_interval_ms": 100_000, "session_timeout_ms": 400_000}
    with Consumer(broker.address, max_poll_interval_ms=90_000, **calm, **GROUP) as consumer:
        consumer.subscribe(["t"])
        poll_until(lambda: bool(consumer.assignment()), consumer)
        group = consumer._group
        assert group is not None
        with group._lock:
            now_ms = monotonic_ms()
            assert group.next_event(now_ms) <= now_ms + 30_000
            before_ms = group.membership._polled_at_ms
        consumer.poll(0)
        assert before_ms < group.membership._polled_at_ms


def test_static_member_stays_when_it_is_closed_and_its_restart_moves_nothing(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    with Consumer(broker.address, group_instance_id="a", **GROUP) as consumer:
        consumer.subscribe(["t"])
        poll_until(lambda: bool(consumer.assignment()), consumer)
        assert consumer.group_metadata().group_instance_id == "a"
    assert broker.cluster.coordinator.left == []
    assert [member.instance_id for member in broker.cluster.coordinator.groups["g"].members.values()] == ["a"]


def test_older_twin_of_a_static_member_is_fenced_for_good(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    listener = Listener()
    static = {"group_instance_id": "a", "heartbeat_interval_ms": 20, **GROUP}
    with Consumer(broker.address, **static) as older, Consumer(broker.address, **static) as younger:
        older.subscribe(["t"], **listener.callbacks())
        poll_until(lambda: bool(older.assignment()), older)
        younger.subscribe(["t"])
        poll_until(lambda: bool(younger.assignment()), younger)
        with pytest.raises(BusError, match="refused") as caught:
            poll_until(lambda: False, older)
        assert caught.value.code is ErrorCode.FENCED_INSTANCE_ID
        with pytest.raises(BusError):
            older.poll(0)
        assert (older.assignment(), younger.assignment()) == (set(), {T0})
    assert listener.log == [("+", [T0]), ("!", [T0])]


@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR])
@pytest.mark.parametrize("method", ["FindCoordinator", "JoinGroup", "SyncGroup", "OffsetFetch"])
def test_coordinator_that_cannot_answer_yet_is_asked_again(broker: FakeBroker, method: str, code: ErrorCode) -> None:
    broker.cluster.create("t", 1)
    fill(broker, 0, range(3))
    broker.cluster.coordinator.script[method].extend([code, code])
    with Consumer(broker.address, **GROUP) as consumer:
        consumer.subscribe(["t"])
        assert len(take(consumer, 3)) == 3
    assert not broker.cluster.coordinator.script[method]


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_SESSION_TIMEOUT, ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.INCONSISTENT_GROUP_PROTOCOL]
)
def test_what_joining_again_does_not_mend_is_raised_and_the_next_poll_tries_anew(
    broker: FakeBroker, code: ErrorCode
) -> None:
    broker.cluster.create("t", 1)
    broker.cluster.coordinator.script["JoinGroup"].append(code)
    with Consumer(broker.address, **GROUP) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(BusError) as caught:
            poll_until(lambda: bool(consumer.assignment()), consumer)
        assert caught.value.code is code
        poll_until(lambda: bool(consumer.assignment()), consumer)


def test_group_goes_on_with_another_coordinator(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    with (
        FakeBroker(broker.cluster, 1) as other,
        Consumer(broker.address, heartbeat_interval_ms=20, **GROUP) as consumer,
    ):
        consumer.subscribe(["t"])
        poll_until(lambda: bool(consumer.assignment()), consumer)
        broker.cluster.coordinator_id = 1
        broker.cluster.coordinator.script["Heartbeat"].append(ErrorCode.NOT_COORDINATOR)
        poll_until(lambda: "FindCoordinator" in broker.calls[1:] + other.calls, consumer)
        consumer.commit({T0: 0})
        assert consumer.assignment() == {T0}
    assert broker.cluster.coordinator.groups["g"].rebalances == 1


# ---------------------------------------------------------------- subscriptions


def test_topics_and_partitions_that_come_to_be_are_found(broker: FakeBroker) -> None:
    broker.cluster.create("orders-a", 1)
    broker.cluster.create("other", 1)
    broker.cluster.create("__orders-internal", 1)
    with Consumer(broker.address, metadata_max_age_ms=50, **GROUP) as consumer:
        consumer.subscribe(pattern="(__)?orders-.*")
        poll_until(lambda: bool(consumer.assignment()), consumer)
        assert consumer.subscription() == {"orders-a"}
        broker.cluster.create("orders-b", 2)
        poll_until(lambda: len(consumer.assignment()) == 3, consumer)
        with broker.cluster.changed:
            grown = broker.cluster.topics["orders-a"].partitions
            grown.append(type(grown[0])())
        poll_until(lambda: TopicPartition("orders-a", 1) in consumer.assignment(), consumer)
    assert {partition.topic for partition in consumer.assignment()} <= {"orders-a", "orders-b"}


def test_topic_that_does_not_exist_yet_is_waited_for(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    with Consumer(broker.address, metadata_max_age_ms=50, **GROUP) as consumer:
        consumer.subscribe(["t", "later"])
        poll_until(lambda: consumer.assignment() == {T0}, consumer)
        broker.cluster.create("later", 1)
        poll_until(lambda: len(consumer.assignment()) == 2, consumer)


def test_other_subscription_is_taken_up_by_the_next_poll(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    broker.cluster.create("u", 1)
    with Consumer(broker.address, **GROUP) as consumer:
        consumer.subscribe(["t"])
        poll_until(lambda: bool(consumer.assignment()), consumer)
        consumer.subscribe(["u"])
        poll_until(lambda: consumer.assignment() == {TopicPartition("u", 0)}, consumer)


def test_unsubscribing_leaves_the_group_and_makes_room_for_assign(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    with Consumer(broker.address, **GROUP) as consumer:
        consumer.subscribe(["t"])
        poll_until(lambda: bool(consumer.assignment()), consumer)
        with pytest.raises(BusError, match="assign after subscribe"):
            consumer.assign([T0])
        consumer.unsubscribe()
        assert (consumer.assignment(), consumer.subscription()) == (set(), set())
        assert broker.cluster.coordinator.groups["g"].members == {}
        consumer.assign([T0])
        with pytest.raises(BusError, match="subscribe after assign") as caught:
            consumer.subscribe(["t"])
        assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"pattern": "(a"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"topics": "t"}, ErrorCode.INVALID_REQUEST),
        ({"topics": [" "]}, ErrorCode.INVALID_REQUEST),
        ({}, ErrorCode.INVALID_REQUEST),
        ({"topics": ["t"], "pattern": "t"}, ErrorCode.INVALID_REQUEST),
        ({"topics": ["t"], "on_assigned": 3}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_subscription_that_makes_no_sense_is_refused(broker: FakeBroker, arguments: Any, code: ErrorCode) -> None:
    with Consumer(broker.address, **GROUP) as consumer:
        with pytest.raises(BusError) as caught:
            consumer.subscribe(**arguments)
        assert caught.value.code is code


def test_what_needs_a_group_is_refused_without_one(broker: FakeBroker) -> None:
    with Consumer(broker.address, **QUICK) as consumer:
        for call in (lambda: consumer.subscribe(["t"]), consumer.commit, lambda: consumer.committed([T0])):
            with pytest.raises(BusError, match="a group_id") as caught:
                call()
            assert caught.value.code is ErrorCode.INVALID_GROUP_ID


def test_second_thread_is_refused_and_may_wake_up_the_first(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    with Consumer(broker.address, **GROUP) as consumer:
        consumer.subscribe(["t"])
        is_inside = threading.Event()
        consumer.enforce_rebalance()
        poller = threading.Thread(target=lambda: (is_inside.set(), consumer.poll(int(WAIT_S * 1000))), name="poller")
        poller.start()
        assert is_inside.wait(WAIT_S)
        broker.cluster.coordinator.wait_for_state("g", "Stable", 1)
        with pytest.raises(BusError, match=r"expected pause\(\) from thread 'poller'.*found thread 'MainThread'"):
            consumer.pause([])
        consumer.wakeup()
        poller.join(WAIT_S)
        assert not poller.is_alive()
        consumer.pause([])


# ---------------------------------------------------------------- committing


def test_manual_commits_are_where_the_next_consumer_goes_on(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    fill(broker, 0, range(10))
    manual = {"enable_auto_commit": False, **GROUP}
    with Consumer(broker.address, **manual) as consumer:
        consumer.subscribe(["t"])
        records = take(consumer, 10)
        consumer.commit(records[3])
        assert consumer.committed([T0, T1]) == {T0: OffsetAndMetadata(4, "", 0), T1: None}
        consumer.commit({T0: OffsetAndMetadata(6, "half"), T1: 0})
        assert consumer.committed([T0])[T0] == OffsetAndMetadata(6, "half")
    with Consumer(broker.address, **manual) as consumer:
        consumer.subscribe(["t"])
        assert [record.offset for record in take(consumer, 4)] == [6, 7, 8, 9]
        consumer.commit()
    assert broker.cluster.coordinator.committed("g") == {("t", 0): 10, ("t", 1): 0}


def test_automatic_commit_covers_what_earlier_polls_gave(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    fill(broker, 0, range(10))
    with Consumer(broker.address, auto_commit_interval_ms=0, **GROUP) as consumer:
        consumer.subscribe(["t"])
        poll_until(lambda: consumer.position(T0) > 0 if consumer.assignment() else False, consumer)
        assert broker.cluster.coordinator.committed("g").get(("t", 0), 0) == 0
        poll_until(lambda: broker.cluster.coordinator.committed("g") == {("t", 0): 10}, consumer)
        commits = len(broker.cluster.coordinator.commits)
        for _ in range(3):
            consumer.poll(1)
        consumer.commit({T0: 10})
        assert len(broker.cluster.coordinator.commits) == commits + 1, "an offset that did not move is committed once"


def test_closing_commits_what_was_consumed_and_without_automatic_commit_nothing(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    fill(broker, 0, range(10))
    for enabled, expected in ((False, {}), (True, {("t", 0): 10})):
        with Consumer(broker.address, enable_auto_commit=enabled, **GROUP) as consumer:
            consumer.subscribe(["t"])
            take(consumer, 10)
        assert broker.cluster.coordinator.committed("g") == expected


def test_iteration_commits_no_record_before_the_next_one_is_asked_for(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    fill(broker, 0, range(3))
    with Consumer(broker.address, auto_commit_interval_ms=0, **GROUP) as consumer:
        consumer.subscribe(["t"])
        for record in consumer:
            assert broker.cluster.coordinator.committed("g").get(("t", 0), 0) <= record.offset
            if record.offset == 2:
                break
    assert broker.cluster.coordinator.committed("g") == {("t", 0): 3}


def test_rebalance_takes_place_between_two_records_of_an_iteration(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    fill(broker, 0, range(10))
    listener = Listener()
    seen: list[int] = []
    with Consumer(broker.address, **GROUP) as consumer:
        consumer.subscribe(["t"], **listener.callbacks())
        for record in consumer:
            seen.append(record.offset)
            if record.offset == 4 and len(listener.log) == 1:
                consumer.enforce_rebalance()
            if record.offset == 9:
                break
        assert [word for word, _ in listener.log] == ["+", "-", "+"]
    assert seen == list(range(10))


def test_lasting_commit_is_repeated_and_an_asynchronous_one_is_not(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    outcomes: list[tuple[Mapping[TopicPartition, OffsetAndMetadata], BusError | None]] = []
    with Consumer(broker.address, enable_auto_commit=False, **GROUP) as consumer:
        consumer.subscribe(["t"])
        poll_until(lambda: bool(consumer.assignment()), consumer)
        script = broker.cluster.coordinator.script["OffsetCommit"]
        script.extend([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR])
        consumer.commit({T0: 1})
        script.append(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        consumer.commit({T0: 2}, asynchronous=True, callback=lambda *outcome: outcomes.append(outcome))
        consumer.commit({T0: 3}, asynchronous=True, callback=lambda *outcome: outcomes.append(outcome))
        poll_until(lambda: len(outcomes) == 2, consumer)
    (first, failure), (second, success) = outcomes
    assert (first[T0].offset, second[T0].offset) == (2, 3)
    assert failure is not None
    assert failure.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert success is None
    assert broker.cluster.coordinator.committed("g") == {("t", 0): 3}


def test_zombies_commit_is_refused(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    with Consumer(broker.address, enable_auto_commit=False, **GROUP) as consumer:
        consumer.subscribe(["t"])
        poll_until(lambda: bool(consumer.assignment()), consumer)
        broker.cluster.coordinator.expire("g", consumer.group_metadata().member_id)
        with pytest.raises(BusError) as caught:
            consumer.commit({T0: 5})
        assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert broker.cluster.coordinator.committed("g") == {}


def test_offset_of_a_partition_of_another_member_is_never_sent(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    with Consumer(broker.address, **GROUP) as consumer:
        consumer.subscribe(["t"])
        poll_until(lambda: bool(consumer.assignment()), consumer)
        with pytest.raises(BusError, match="t-7 is not assigned") as caught:
            consumer.commit({T0: 1, TopicPartition("t", 7): 1})
        assert caught.value.code is ErrorCode.ILLEGAL_GENERATION
        assert all(share.partition != 7 for commit in broker.cluster.coordinator.commits for share in commit.partitions)


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_consumer_begins_at_no_offset_that_an_open_transaction_may_replace_and_reads_its_other_partitions(
    broker: FakeBroker, isolation_level: str
) -> None:
    broker.cluster.create("t", 2)
    for partition in range(2):
        fill(broker, partition, range(5))
    group = broker.cluster.coordinator.groups["g"]
    group.unstable.add(("t", 0))
    with Consumer(broker.address, isolation_level=isolation_level, **GROUP) as consumer:
        consumer.subscribe(["t"])
        assert {record.partition for record in take(consumer, 5)} == {1}
        with pytest.raises(BusError) as caught:
            consumer.position(T0, timeout_ms=500)
        assert caught.value.code is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert consumer.poll(20) == []
        group.offsets["t", 0] = pb.OffsetCommitPartition(topic="t", partition=0, offset=3, leader_epoch=-1)
        group.unstable.clear()
        assert [record.offset for record in take(consumer, 2)] == [3, 4]


def test_committed_offsets_are_waited_for_only_by_who_reads_committed(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    group = broker.cluster.coordinator.groups["g"]
    group.offsets["t", 0] = pb.OffsetCommitPartition(topic="t", partition=0, offset=3, leader_epoch=-1)
    group.unstable.add(("t", 0))
    with Consumer(broker.address, **GROUP) as consumer:
        assert consumer.committed([T0]) == {T0: OffsetAndMetadata(3)}
    once = GROUP | {"retry_backoff_ms": 2_000, "retry_backoff_max_ms": 2_000}  # no attempt is cut short
    with Consumer(broker.address, isolation_level="read_committed", **once) as consumer:
        with pytest.raises(BusError) as caught:
            consumer.committed([T0], timeout_ms=1_000)
        assert caught.value.code is ErrorCode.UNSTABLE_OFFSET_COMMIT
        group.unstable.clear()
        assert consumer.committed([T0]) == {T0: OffsetAndMetadata(3)}


def test_callback_of_a_revocation_may_still_commit(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    with Consumer(broker.address, enable_auto_commit=False, **GROUP) as consumer:
        consumer.subscribe(["t"], on_revoked=lambda partitions: consumer.commit(dict.fromkeys(partitions, 7)))
        poll_until(lambda: bool(consumer.assignment()), consumer)
    assert broker.cluster.coordinator.committed("g") == {("t", 0): 7}


def test_error_of_a_callback_is_raised_after_the_rebalance_is_through(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)

    def fail(partitions: list[TopicPartition]) -> None:
        raise RuntimeError("no room")

    with Consumer(broker.address, **GROUP) as consumer:
        consumer.subscribe(["t"], on_assigned=fail)
        with pytest.raises(RuntimeError, match="no room"):
            poll_until(lambda: False, consumer)
        assert consumer.assignment() == {T0}
        assert consumer.poll(0) == []


def test_consumer_that_is_no_member_commits_and_goes_on_there(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    fill(broker, 0, range(10))
    with Consumer(broker.address, **GROUP) as consumer:
        consumer.assign([T0])
        take(consumer, 10)
        consumer.commit({T0: 4})
        assert consumer.lag(T0) == 0
        consumer.seek(T0, 4)
    assert broker.cluster.coordinator.commits[0].generation == -1
    with Consumer(broker.address, **GROUP) as consumer:
        consumer.assign([T0])
        assert consumer.position(T0) == 4
        consumer.seek(T0, 9)
        assert consumer.lag(T0) == 1


def test_group_without_an_offset_begins_where_the_reset_says(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    fill(broker, 0, range(10))
    with Consumer(broker.address, **{**GROUP, "auto_offset_reset": "none"}) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(BusError, match="auto_offset_reset is none"):
            poll_until(lambda: False, consumer)
    with Consumer(broker.address, **{**GROUP, "auto_offset_reset": "by_duration:PT1S"}) as consumer:
        consumer.subscribe(["t"])
        poll_until(lambda: bool(consumer.assignment()), consumer)
        assert consumer.position(T0) == 10, "all records are older, so it begins behind them"
    broker.cluster.coordinator.groups.clear()
    with Consumer(broker.address, **{**GROUP, "auto_offset_reset": "by_duration:P100000D"}) as consumer:
        consumer.subscribe(["t"])
        assert take(consumer, 10)[0].offset == 0


# ---------------------------------------------------------------- deserializers and interceptors


def test_deserializer_names_the_record_that_it_rejects_and_seek_goes_past_it(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"1", b"2", b"poison", None, b"5"])})
    broker.append("t", 0, encode_arrow(batch), 1_000)
    with Consumer(broker.address, value_deserializer=int, auto_offset_reset="earliest", **QUICK) as consumer:
        consumer.assign([T0])
        assert [record.value for record in take(consumer, 2)] == [1, 2]
        for _ in range(2):
            with pytest.raises(RecordDeserializationError, match="t-0 at offset 2: expected a value") as caught:
                consumer.poll(int(WAIT_S * 1000))
        assert (caught.value.partition, caught.value.offset, caught.value.record.value) == (T0, 2, b"poison")
        assert consumer.position(T0) == 2
        with pytest.raises(RecordDeserializationError):
            next(consumer)
        consumer.seek(T0, 3)
        assert [record.value for record in take(consumer, 2)] == [None, 5]
        consumer.seek(T0, 0)
        assert consumer.poll_arrow(int(WAIT_S * 1000)).column("value")[2].as_py() == b"poison"


class Interceptor:
    def __init__(self) -> None:
        self.committed: list[int] = []
        self.is_closed = False

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        return [record._replace(value=record.value + b"!") for record in records if record.offset != 1]

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.committed += [committed.offset for committed in offsets.values()]
        raise RuntimeError("an interceptor breaks nothing")

    def close(self) -> None:
        self.is_closed = True


def test_interceptors_see_records_and_commits_and_break_nothing(broker: FakeBroker) -> None:
    broker.cluster.create("t", 1)
    fill(broker, 0, range(3))
    interceptor = Interceptor()
    with Consumer(broker.address, interceptors=[interceptor], **GROUP) as consumer:
        consumer.subscribe(["t"])
        assert [record.value for record in take(consumer, 2)] == [b"0!", b"2!"]
        consumer.commit()
        consumer.seek(T0, 0)
        assert [next(consumer).value, next(consumer).value] == [b"0!", b"2!"]
    assert interceptor.committed[0] == 3
    assert interceptor.is_closed


def test_metrics_have_kafkas_names_and_the_lag_of_each_partition(broker: FakeBroker) -> None:
    broker.cluster.create("t", 2)
    fill(broker, 0, range(10))
    with Consumer(broker.address, max_poll_records=4, **GROUP) as consumer:
        consumer.subscribe(["t"])
        take(consumer, 4)
        consumer.commit()
        consumer.committed([T0])
        metrics, partitions = consumer.metrics(), consumer.partition_metrics()
        assert partitions.keys() == {T0, T1}
        assert (partitions[T0]["records-lag"], partitions[T0]["records-lead"]) == (6, 4)
        assert (metrics["t-0.records-lag"], metrics["records-lag-max"], metrics["assigned-partitions"]) == (6, 6, 2)
        assert (metrics["records-consumed-total"], metrics["commit-total"], metrics["rebalance-total"]) == (4, 1, 1)
        for name in ("fetch-latency-avg", "fetch-size-avg", "join-time-avg", "sync-time-avg", "commit-latency-max"):
            assert metrics[name] > 0, name
        for name in ("bytes-consumed-total", "commit-sync-time-ns-total", "committed-time-ns-total", "join-total"):
            assert metrics[name] > 0, name
        assert consumer.topic_metrics()["t"]["records-consumed-total"] == 4
