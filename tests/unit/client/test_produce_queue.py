from __future__ import annotations

from bus.client.produce_queue import Chunk, Part, PartitionQueue, Settled
from bus.client.values import BatchMetadata
from bus.errors import BusError, ErrorCode

TIMED_OUT = BusError(ErrorCode.REQUEST_TIMED_OUT, "slow")
TOO_LARGE = BusError(ErrorCode.MESSAGE_TOO_LARGE, "large")


class NoFuture:
    def resolve(self, slot: int, metadata: BatchMetadata | None, error: BusError | None) -> None:
        raise AssertionError("a queue leaves futures alone")


def chunk(number: int, *, deadline: float = 100.0, is_row: bool = True) -> Chunk:
    return Chunk(
        future=NoFuture(),
        slot=number,
        row=(None, b"%d" % number, None, 0) if is_row else None,
        payload=None if is_row else b"payload",
        record_count=1 if is_row else 10,
        size_bytes=10,
        timestamp_ms=0,
        deadline=deadline,
    )


def queue_of(*chunks: Chunk) -> PartitionQueue:
    queue = PartitionQueue("t", 3)
    queue.pending.extend(chunks)
    return queue


def send(queue: PartitionQueue, max_bytes: int = 1) -> Part:
    part = Part(queue, queue.take(max_bytes))
    queue.in_flight.append(part)
    return part


def numbers(queue: PartitionQueue) -> list[int]:
    return [waiting.slot for waiting in queue.pending]


def errors(settled: list[Settled]) -> list[tuple[int, ErrorCode]]:
    return [(failed.slot, error.code) for failed, _, error in settled if error is not None]


def fail_now(queue: PartitionQueue, part: Part, *, retries: int = 5, now: float = 0.0) -> list[Settled]:
    return queue.repeat(error=TIMED_OUT, failed=lambda other: other is part, retries=retries, now=now)


def test_single_records_that_wait_share_a_part_and_a_batch_does_not() -> None:
    queue = queue_of(chunk(1), chunk(2), chunk(3, is_row=False), chunk(4))
    assert [waiting.slot for waiting in queue.take(100)] == [1, 2]
    assert [waiting.slot for waiting in queue.take(100)] == [3]
    assert [waiting.slot for waiting in queue.take(100)] == [4]


def test_part_is_no_larger_than_allowed_but_has_one_chunk() -> None:
    queue = queue_of(*(chunk(number) for number in range(5)))
    assert len(queue.take(25)) == 2
    assert len(queue.take(1)) == 1


def test_acknowledged_records_of_one_part_get_dense_offsets() -> None:
    queue = queue_of(chunk(1), chunk(2, is_row=False))
    settled = queue.acknowledge(send(queue), 70, -1, 4)
    settled += queue.acknowledge(send(queue), 71, 555, 5)
    metadata = [found for _, found, _ in settled if found is not None]
    assert [(found.base_offset, found.record_count, found.timestamp_ms) for found in metadata] == [
        (70, 1, 0),
        (71, 10, 555),
    ]


def test_failure_hands_out_again_what_failed_and_all_that_followed_in_order() -> None:
    queue = queue_of(*(chunk(number) for number in range(5)))
    first, second, third = send(queue), send(queue), send(queue)
    queue.acknowledge(first, 0, -1, 1)
    assert fail_now(queue, second) == []
    assert numbers(queue) == [1, 2, 3, 4]
    assert not queue.is_current(third), "the answer of what is handed out again must not count"
    assert queue.is_current(send(queue))


def test_only_the_failed_part_uses_up_an_attempt() -> None:
    queue = queue_of(chunk(1), chunk(2))
    first, _ = send(queue), send(queue)
    assert errors(fail_now(queue, first, retries=0)) == [(1, ErrorCode.REQUEST_TIMED_OUT)]
    assert numbers(queue) == [2]


def test_repeat_gives_up_what_has_no_time_left_and_says_why() -> None:
    queue = queue_of(chunk(1, deadline=10.0), chunk(2, deadline=99.0))
    first, _ = send(queue), send(queue)
    settled = fail_now(queue, first, now=10.0)
    assert errors(settled) == [(1, ErrorCode.REQUEST_TIMED_OUT)]
    assert "delivery.timeout.ms" in str(settled[0][2])
    assert "slow" in str(settled[0][2])
    assert numbers(queue) == [2]


def test_refused_part_fails_alone() -> None:
    queue = queue_of(chunk(1, is_row=False), chunk(2, is_row=False))
    first, second = send(queue), send(queue)
    assert errors(queue.refuse(first, TOO_LARGE)) == [(1, ErrorCode.MESSAGE_TOO_LARGE)]
    assert queue.is_current(second)


def test_records_that_shared_a_refused_part_are_tried_one_by_one_in_order() -> None:
    queue = queue_of(*(chunk(number) for number in range(4)))
    shared, later = send(queue, 30), send(queue)
    assert queue.refuse(shared, TOO_LARGE) == []
    assert not queue.is_current(later)
    assert [[waiting.slot for waiting in queue.take(100)] for _ in range(4)] == [[0], [1], [2], [3]]


def test_delivery_time_out_reaches_what_waits_and_what_is_under_way() -> None:
    queue = queue_of(chunk(1, deadline=10.0), chunk(2, deadline=20.0))
    part = send(queue)
    assert queue.next_deadline() == 10.0
    settled = queue.expire(20.0)
    assert sorted(errors(settled)) == [(1, ErrorCode.REQUEST_TIMED_OUT), (2, ErrorCode.REQUEST_TIMED_OUT)]
    for late, _, _ in settled:
        late.is_settled = True
    assert queue.next_deadline() == float("inf")
    assert queue.expire(30.0) == []
    assert len(queue.acknowledge(part, 0, -1, 1)) == 1, "its late answer still belongs to it"


def test_window_back_off_and_emptiness_keep_a_queue_from_sending() -> None:
    queue = queue_of(chunk(1), chunk(2))
    assert queue.is_sendable(now=0.0, window=1)
    send(queue)
    assert not queue.is_sendable(now=0.0, window=1)
    assert queue.is_sendable(now=0.0, window=2)
    queue.retry_at = 5.0
    assert not queue.is_sendable(now=4.9, window=2)
    assert queue.is_sendable(now=5.0, window=2)
    queue.pending.clear()
    assert not queue.is_sendable(now=5.0, window=2)
