"""Order of sending stamped parts: in order, each until it is in the log, never past its patience."""

from __future__ import annotations

import random

import pytest

from bus.errors import BusError, ErrorCode
from bus.model import TopicPartition
from bus.spark.sink.stamped_writer import Part, StampedLanes

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
LOST = BusError(ErrorCode.NETWORK_EXCEPTION, "the stream ended")


def lanes(in_flight_max: int = 5, patience_s: float = 60.0) -> StampedLanes:
    return StampedLanes(in_flight_max=in_flight_max, patience_s=patience_s, backoff_s=lambda attempts: 1.0 + attempts)


def part(partition: TopicPartition, base_sequence: int) -> Part:
    return Part(partition, base_sequence, 10, 100, None)


def filled(count: int, *partitions: TopicPartition, machine: StampedLanes | None = None) -> StampedLanes:
    machine = machine or lanes()
    for partition in partitions or (P0,):
        for number in range(count):
            machine.add(part(partition, number * 10), 0.0)
    return machine


def sequences(parts: list[Part]) -> list[tuple[int, int]]:
    return [(taken.partition.partition, taken.base_sequence) for taken in parts]


def answer(
    machine: StampedLanes, taken: Part, code: ErrorCode = ErrorCode.NONE, *, now_s: float = 0.0, throttle_s: float = 0.0
) -> None:
    machine.on_answer(taken, code, "as the test wants it", throttle_s=throttle_s, now_s=now_s)


def test_second_part_of_a_partition_waits_until_the_first_is_in_the_log() -> None:
    machine = filled(3, P0, P1)
    first = machine.take_ready(0.0)
    assert sequences(first) == [(0, 0), (1, 0)]
    assert machine.take_ready(0.0) == []
    answer(machine, first[1])
    assert sequences(machine.take_ready(0.0)) == [(1, 10), (1, 20)]


def test_no_more_are_under_way_than_the_broker_remembers() -> None:
    machine = filled(9, machine=lanes(in_flight_max=3))
    answer(machine, machine.take_ready(0.0)[0])
    under_way = machine.take_ready(0.0)
    assert sequences(under_way) == [(0, 10), (0, 20), (0, 30)]
    answer(machine, under_way[0])
    assert sequences(machine.take_ready(0.0)) == [(0, 40)]


def test_after_a_refusal_nothing_is_sent_until_all_have_answered_then_first_things_first_and_alone() -> None:
    machine = filled(5)
    answer(machine, machine.take_ready(0.0)[0])
    second, third, fourth, fifth = machine.take_ready(0.0)
    answer(machine, second, ErrorCode.KAFKA_STORAGE_ERROR)
    answer(machine, third, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert machine.take_ready(100.0) == []
    machine.on_lost(fifth, LOST, 0.0)
    machine.on_lost(fourth, LOST, 0.0)
    assert machine.failure is None
    assert machine.take_ready(0.5) == [], "the back-off is not over"
    assert machine.take_ready(5.0) == [second]
    answer(machine, second)
    assert machine.take_ready(5.0) == [third, fourth, fifth]


def test_part_that_was_there_already_is_settled() -> None:
    machine = filled(1)
    answer(machine, machine.take_ready(0.0)[0], ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert machine.is_done
    assert machine.failure is None


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,  # nothing before it is missing
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_RECORD,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    ],
)
def test_what_no_repetition_helps_against_ends_it(code: ErrorCode) -> None:
    machine = filled(1, P0, P1)
    refused, other = machine.take_ready(0.0)
    answer(machine, refused, code)
    assert machine.failure is not None
    assert machine.failure.code is code
    assert machine.failure.message == "t-0: as the test wants it"
    machine.on_lost(other, LOST, 0.0)
    assert machine.take_ready(100.0) == []


def test_code_of_a_newer_broker_ends_it_by_its_number() -> None:
    machine = filled(1)
    machine.on_answer(machine.take_ready(0.0)[0], 12345, "new", throttle_s=0.0, now_s=0.0)
    assert machine.failure is not None
    assert machine.failure.message == "error code 12345: t-0: new"


def test_throttled_partition_waits_as_long_as_it_was_told() -> None:
    machine = filled(1, P0, P1)
    throttled, other = machine.take_ready(0.0)
    answer(machine, throttled, ErrorCode.THROTTLING_QUOTA_EXCEEDED, throttle_s=7.0)
    answer(machine, other)
    assert machine.take_ready(6.9) == []
    assert machine.wait_s(6.0) == pytest.approx(1.0, abs=0.01)
    assert machine.wait_s(7.1) == pytest.approx(0.0, abs=0.01), "the pause has ended since anything was taken"
    assert machine.take_ready(7.0) == [throttled]


def test_failure_without_progress_names_the_last_refusal_of_the_first_part() -> None:
    machine = filled(2, machine=lanes(patience_s=10.0))
    answer(machine, machine.take_ready(0.0)[0], now_s=4.0)
    second = machine.take_ready(4.0)[0]
    machine.on_lost(second, LOST, 5.0)
    machine.check_patience(14.0)
    assert machine.failure is None
    machine.check_patience(14.1)
    assert machine.failure is not None
    assert machine.failure.code is ErrorCode.REQUEST_TIMED_OUT
    assert "nothing was acknowledged for 10 s" in machine.failure.message
    assert "NETWORK_EXCEPTION: the stream ended" in machine.failure.message


def test_patience_begins_with_what_there_is_to_do() -> None:
    machine = lanes(patience_s=10.0)
    machine.add(part(P0, 0), 1_000.0)
    machine.check_patience(1_009.0)
    assert machine.failure is None
    machine.take_ready(1_009.0)
    assert machine.wait_s(1_009.0) == pytest.approx(1.0, abs=0.01)


class NaiveLog:
    """A partition of the broker's: takes the next sequence of a producer, and repeats."""

    def __init__(self, older_epoch_ended_at: int) -> None:
        self.following = {0, older_epoch_ended_at}
        self.sequences: list[int] = []

    def take(self, sent: Part) -> ErrorCode:
        if sent.base_sequence in self.sequences:
            return ErrorCode.NONE
        if sent.base_sequence not in self.following:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self.sequences.append(sent.base_sequence)
        self.following = {sent.base_sequence + sent.record_count}
        return ErrorCode.NONE


@pytest.mark.parametrize("seed", range(200))
def test_every_part_is_in_the_log_once_and_in_order_whatever_is_refused_or_lost(seed: int) -> None:
    chance = random.Random(seed)
    machine = filled(12, P0, P1)
    # Where the older epoch ended a part of this one might be taken for its continuation.
    logs = {partition: NaiveLog(chance.choice([10, 20, 50])) for partition in (P0, P1)}
    now_s = 0.0
    under_way: list[Part] = []
    while not machine.is_done:
        assert machine.failure is None, machine.failure
        under_way += machine.take_ready(now_s)
        now_s += machine.wait_s(now_s) or 0.0 if not under_way else 0.01
        while under_way and chance.random() < 0.8:
            sent = under_way.pop(0)
            match chance.choice(["taken", "taken", "taken", "refused", "lost", "late"]):
                case "taken":
                    answer(machine, sent, logs[sent.partition].take(sent), now_s=now_s)
                case "refused":
                    answer(machine, sent, ErrorCode.THROTTLING_QUOTA_EXCEEDED, now_s=now_s)
                case "lost":
                    machine.on_lost(sent, LOST, now_s)
                case "late":
                    logs[sent.partition].take(sent)
                    answer(machine, sent, ErrorCode.REQUEST_TIMED_OUT, now_s=now_s)
    assert [log.sequences for log in logs.values()] == [list(range(0, 120, 10))] * 2
