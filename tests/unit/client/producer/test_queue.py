from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from bus.client.producer.queue import FULL_BYTES, Part, PartitionQueue
from bus.client.values import BatchMetadata
from bus.errors import BusError, ErrorCode
from bus.model import SEQUENCE_MODULUS, ProducerStamp

BUSY = BusError(ErrorCode.KAFKA_STORAGE_ERROR, "busy")
TOO_LARGE = BusError(ErrorCode.MESSAGE_TOO_LARGE, "large")
ONE = BusError(ErrorCode.INVALID_RECORD, "one")
SEQUENCE_MAX = SEQUENCE_MODULUS - 1


@dataclass
class FakeChunk:
    number: int
    record_count: int = 1
    size_bytes: int = 10
    payload: Any = None
    due_at_ms: float = 0.0
    deadline_ms: float = 100.0
    is_settled: bool = False
    metadata: BatchMetadata | None = None
    error: BusError | None = None
    offsets: Sequence[int] | None = None
    refused: dict[int, BusError] = field(default_factory=dict)

    @property
    def reserved_bytes(self) -> int:
        return self.size_bytes

    def settle(
        self, metadata: BatchMetadata | None, error: BusError | None, offsets: Sequence[int] | None = None
    ) -> None:
        assert not self.is_settled, f"chunk {self.number} is settled twice"
        self.is_settled, self.metadata, self.error, self.offsets = True, metadata, error, offsets

    def announce(self) -> None:
        raise AssertionError("a queue leaves futures alone")

    def refuse_records(self, errors: Mapping[int, BusError]) -> None:
        self.refused.update(errors)
        self.record_count -= len(errors)


def rows(number: int, **values: Any) -> FakeChunk:
    return FakeChunk(number, **values)


def run(number: int, **values: Any) -> FakeChunk:
    return FakeChunk(number, payload=b"payload", **values)


def queue_of(
    *chunks: FakeChunk, epoch: int = 0, sequence: int = 0, is_idempotent: bool = True, is_strict: bool = False
) -> PartitionQueue:
    queue = PartitionQueue("t", 3, is_strict=is_strict)
    if is_idempotent:
        queue.begin(ProducerStamp(7, epoch, sequence))
    for chunk in chunks:
        assert queue.push(chunk) == []
    return queue


def send(queue: PartitionQueue, max_bytes: int = 1, *, is_idempotent: bool = True) -> Part:
    """A part of one chunk, unless `max_bytes` allows for more; encoded, as a part that was sent is."""
    part = queue.take(max_bytes, is_idempotent=is_idempotent)
    part.payload = "encoded"
    return part


def numbers(part: Part) -> list[int]:
    return [chunk.number for chunk in part.chunks]  # type: ignore[attr-defined]


def sequences(parts: Sequence[Part]) -> list[tuple[int, int]]:
    return [(part.stamp.producer_epoch, part.stamp.base_sequence) for part in parts if part.stamp is not None]


def failures(settled: Sequence[Any]) -> list[tuple[int, ErrorCode]]:
    return [(chunk.number, chunk.error.code) for chunk in settled if chunk.error is not None]


# ---------------------------------------------------------------- sending


def test_rows_that_wait_share_a_part_and_a_run_of_a_batch_has_its_own() -> None:
    queue = queue_of(rows(1), rows(2), run(3), run(4), rows(5))
    assert [numbers(send(queue, 100)) for _ in range(4)] == [[1, 2], [3], [4], [5]]
    assert queue.pending_bytes == 0


def test_part_is_no_larger_than_allowed_but_has_one_chunk() -> None:
    queue = queue_of(*(rows(number) for number in range(5)))
    assert numbers(send(queue, 25)) == [0, 1]
    assert numbers(send(queue, 1)) == [2]


def test_sequences_follow_one_another_through_parts() -> None:
    queue = queue_of(rows(1, record_count=3), rows(2, record_count=2), run(3, record_count=10), rows(4))
    parts = [send(queue, 100) for _ in range(3)]
    assert sequences(parts) == [(0, 0), (0, 5), (0, 15)]


def test_sequences_go_round_after_the_largest() -> None:
    queue = queue_of(rows(1, record_count=2), rows(2, record_count=2), rows(3), sequence=SEQUENCE_MAX - 2)
    assert sequences([send(queue), send(queue), send(queue)]) == [
        (0, SEQUENCE_MAX - 2),
        (0, SEQUENCE_MAX),
        (0, 1),
    ]


def test_without_idempotence_nothing_is_stamped() -> None:
    queue = queue_of(rows(1), is_idempotent=False)
    assert send(queue, is_idempotent=False).stamp is None


def test_what_waits_leaves_when_it_is_due_full_hurried_or_alone() -> None:
    queue = queue_of(rows(1), rows(2, due_at_ms=5.0))
    assert queue.is_ready(0.0, is_hurried=False), "nothing is under way"
    send(queue)
    assert not queue.is_ready(4.9, is_hurried=False), "what is under way leaves time for company"
    assert queue.is_ready(5.0, is_hurried=False)
    assert queue.is_ready(0.0, is_hurried=True)
    queue.push(rows(3, size_bytes=FULL_BYTES, due_at_ms=5.0))
    assert queue.is_ready(0.0, is_hurried=False), "so much is worth a request of its own"


def test_empty_or_backing_off_or_resuming_queue_sends_nothing_however_hurried() -> None:
    queue = queue_of()
    assert not queue.is_ready(0.0, is_hurried=True)
    queue.push(rows(1))
    queue.retry_at_ms = 5.0
    assert not queue.is_ready(4.9, is_hurried=True)
    assert queue.is_ready(5.0, is_hurried=True)
    queue.needs_resume = True
    assert not queue.is_ready(5.0, is_hurried=True)


# ---------------------------------------------------------------- answers


def test_acknowledged_chunks_of_one_part_get_dense_offsets() -> None:
    queue = queue_of(rows(1), rows(2, record_count=3), run(3, record_count=10))
    settled: Any = queue.acknowledge(send(queue, 100), 70, -1, 4)
    settled += queue.acknowledge(send(queue), 74, 555, 5)
    assert [
        (chunk.metadata.base_offset, chunk.metadata.record_count, chunk.metadata.timestamp_ms, chunk.metadata.version)
        for chunk in settled
    ] == [(70, 1, -1, 4), (71, 3, -1, 4), (74, 10, 555, 5)]
    assert {(chunk.metadata.topic, chunk.metadata.partition) for chunk in settled} == {("t", 3)}


def test_offsets_that_are_not_dense_are_dealt_out_in_order() -> None:
    queue = queue_of(rows(1, record_count=2), rows(2, record_count=3))
    settled: Any = queue.acknowledge(send(queue, 100), 4, -1, 9, offsets=[4, 5, 11, 12, 13])
    assert [(chunk.metadata.base_offset, list(chunk.offsets)) for chunk in settled] == [(4, [4, 5]), (11, [11, 12, 13])]


def test_unknown_offsets_stay_unknown_for_every_chunk() -> None:
    queue = queue_of(rows(1), rows(2))
    settled: Any = queue.acknowledge(send(queue, 100), -1, -1, -1)
    assert [chunk.metadata.base_offset for chunk in settled] == [-1, -1]


def test_answer_out_of_order_is_a_broken_invariant() -> None:
    queue = queue_of(rows(1), rows(2))
    send(queue)
    second = send(queue)
    with pytest.raises(AssertionError, match="out of order"):
        queue.acknowledge(second, 0, -1, 1)


# ---------------------------------------------------------------- retries


def test_failed_part_waits_for_all_that_is_under_way_and_goes_first_then() -> None:
    queue = queue_of(*(rows(number) for number in range(4)))
    first, second, third = send(queue), send(queue), send(queue)
    assert queue.repeat(first, BUSY, retries=5) == []
    assert not queue.is_ready(0.0, is_hurried=True), "others are under way"
    assert queue.put_off(second) == queue.put_off(third) == []
    assert queue.is_ready(0.0, is_hurried=False)
    again = [send(queue) for _ in range(4)]
    assert again[:3] == [first, second, third], "the very same parts, so that the broker knows them again"
    assert sequences(again) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert [part.attempts for part in again] == [2, 2, 2, 1]
    assert first.payload == "encoded", "encoded once"


def test_part_that_failed_again_keeps_its_place_before_those_that_failed_once() -> None:
    queue = queue_of(*(rows(number) for number in range(3)))
    parts = [send(queue) for _ in range(3)]
    for part in parts:
        queue.repeat(part, BUSY, retries=5)
    first = send(queue)
    queue.repeat(first, BUSY, retries=5)
    assert [numbers(send(queue)) for _ in range(3)] == [[0], [1], [2]]


def test_part_without_an_attempt_left_fails_and_leaves_a_gap_that_is_resumed() -> None:
    queue = queue_of(rows(1), rows(2))
    first, second = send(queue), send(queue)
    assert failures(queue.repeat(first, BUSY, retries=0)) == [(1, BUSY.code)]
    queue.put_off(second)
    assert queue.needs_resume
    assert not queue.is_ready(0.0, is_hurried=True)


def test_without_idempotence_a_lost_part_leaves_nothing_to_resume() -> None:
    queue = queue_of(rows(1), rows(2), is_idempotent=False)
    first = send(queue, is_idempotent=False)
    assert failures(queue.repeat(first, BUSY, retries=0)) == [(1, BUSY.code)]
    assert not queue.needs_resume
    assert queue.is_ready(0.0, is_hurried=False)


def test_failures_are_counted_until_one_part_succeeds() -> None:
    queue = queue_of(rows(1))
    for failed in (1, 2):
        queue.repeat(send(queue), BUSY, retries=5)
        assert queue.failures == failed
    queue.acknowledge(send(queue), 0, -1, 1)
    assert queue.failures == 0


def test_broker_that_misses_the_past_is_asked_where_it_ends_before_anything_goes_on() -> None:
    queue = queue_of(rows(1), rows(2))
    first, second = send(queue), send(queue)
    assert queue.lose_order(first) == queue.put_off(second) == []
    assert queue.needs_resume
    assert [numbers(part) for part in queue.retries] == [[1], [2]]


# ---------------------------------------------------------------- refusals


def test_refused_run_fails_alone() -> None:
    queue = queue_of(run(1), run(2))
    first, second = send(queue), send(queue)
    assert failures(queue.refuse(first, TOO_LARGE, {})) == [(1, ErrorCode.MESSAGE_TOO_LARGE)]
    assert queue.in_flight[0] is second
    assert queue.needs_resume


def test_refused_part_is_halved_until_the_chunk_at_fault_is_alone() -> None:
    queue = queue_of(*(rows(number, record_count=number + 1) for number in range(4)))
    shared = send(queue, 100)
    assert queue.refuse(shared, TOO_LARGE, {}) == []
    left, right = send(queue, 100), send(queue, 100)
    assert (numbers(left), numbers(right)) == ([0, 1], [2, 3])
    assert sequences([left, right]) == [(0, 0), (0, 3)], "the records keep their sequences"
    assert queue.refuse(left, TOO_LARGE, {}) == []
    queue.put_off(right)
    quarters = [send(queue, 100), send(queue, 100), send(queue, 100)]
    assert [numbers(part) for part in quarters] == [[0], [1], [2, 3]]
    assert sequences(quarters) == [(0, 0), (0, 1), (0, 3)]
    assert failures(queue.refuse(quarters[0], TOO_LARGE, {})) == [(0, ErrorCode.MESSAGE_TOO_LARGE)]


def test_halves_go_before_what_was_sent_after_the_whole() -> None:
    queue = queue_of(*(rows(number) for number in range(5)))
    shared, later = send(queue, 40), send(queue)
    queue.refuse(shared, TOO_LARGE, {})
    queue.put_off(later)
    assert [numbers(send(queue, 100)) for _ in range(3)] == [[0, 1], [2, 3], [4]]


def test_halves_of_a_part_with_a_given_up_chunk_close_the_gap() -> None:
    queue = queue_of(rows(1), rows(2, deadline_ms=10.0), rows(3))
    shared = send(queue, 100)
    queue.expire(10.0)
    assert queue.refuse(shared, TOO_LARGE, {}) == []
    assert queue.needs_resume, "the sequence of the record that was given up is free"
    assert [numbers(part) for part in queue.retries] == [[1], [3]]


def test_refused_records_fail_alone_and_the_rest_goes_again() -> None:
    queue = queue_of(rows(1, record_count=3), rows(2, record_count=2), rows(3, record_count=2))
    part = send(queue, 100)
    settled = queue.refuse(part, TOO_LARGE, {1: ONE, 3: ONE, 4: ONE})
    assert failures(settled) == [(2, ErrorCode.INVALID_RECORD)], "a chunk of which nothing is left"
    assert (numbers(part), part.record_count, part.payload) == ([1, 3], 4, None), "encoded anew, without them"
    assert [chunk.refused for chunk in part.chunks] == [{1: ONE}, {}]  # type: ignore[attr-defined]
    assert queue.needs_resume
    assert list(queue.retries) == [part]


def test_run_with_a_refused_record_fails_as_a_whole() -> None:
    queue = queue_of(run(1, record_count=5))
    assert failures(queue.refuse(send(queue), TOO_LARGE, {2: ONE})) == [(1, ErrorCode.MESSAGE_TOO_LARGE)]
    assert not queue.retries


def test_refusal_of_what_was_given_up_meanwhile_settles_nothing_twice() -> None:
    queue = queue_of(rows(1, record_count=2, deadline_ms=10.0), rows(2))
    part = send(queue, 100)
    assert failures(queue.expire(10.0)) == [(1, ErrorCode.REQUEST_TIMED_OUT)]
    assert queue.refuse(part, TOO_LARGE, {0: ONE}) == []
    assert numbers(part) == [2]


# ---------------------------------------------------------------- time


def test_delivery_time_out_reaches_what_waits_what_is_under_way_and_what_failed() -> None:
    queue = queue_of(rows(1, deadline_ms=10.0), rows(2, deadline_ms=20.0), rows(3, deadline_ms=30.0))
    first = send(queue)
    queue.repeat(first, BUSY, retries=5)
    assert send(queue) is first
    send(queue)
    assert queue.next_deadline() == 10.0
    assert failures(queue.expire(9.9)) == []
    assert failures(queue.expire(30.0)) == [(number, ErrorCode.REQUEST_TIMED_OUT) for number in (1, 2, 3)]
    assert queue.next_deadline() == math.inf
    assert queue.expire(99.0) == []
    assert (queue.pending_bytes, len(queue.pending)) == (0, 0)


def test_delivery_time_out_says_how_the_last_attempt_failed() -> None:
    queue = queue_of(rows(1, deadline_ms=10.0), rows(2, deadline_ms=10.0))
    queue.repeat(send(queue), BUSY, retries=5)
    settled: Sequence[Any] = queue.expire(10.0)
    error = settled[0].error
    assert str(error).endswith(f"not acknowledged within delivery.timeout.ms; the last attempt failed with {BUSY}")


def test_late_answer_to_what_was_given_up_settles_nothing_and_keeps_the_order() -> None:
    queue = queue_of(rows(1, deadline_ms=10.0), rows(2))
    first, second = send(queue), send(queue)
    queue.expire(10.0)
    assert queue.acknowledge(first, 0, -1, 1) == []
    assert len(queue.acknowledge(second, 1, -1, 2)) == 1
    assert not queue.needs_resume, "it was in the log after all: no gap"


def test_given_up_retry_leaves_the_queue_and_a_gap() -> None:
    queue = queue_of(rows(1, deadline_ms=10.0), rows(2))
    queue.repeat(send(queue), BUSY, retries=5)
    queue.expire(10.0)
    assert not queue.retries
    assert queue.needs_resume


def test_retry_of_which_a_part_was_given_up_is_sent_as_it_was() -> None:
    queue = queue_of(rows(1, deadline_ms=10.0), rows(2))
    part = send(queue, 100)
    queue.repeat(part, BUSY, retries=5)
    queue.expire(10.0)
    assert numbers(part) == [1, 2], "it may be in the log, under this stamp"
    assert not queue.needs_resume


def test_retry_to_be_encoded_anew_leaves_out_what_was_given_up() -> None:
    queue = queue_of(rows(1, deadline_ms=10.0), rows(2, record_count=2))
    part = send(queue, 100)
    queue.refuse(part, TOO_LARGE, {1: ONE})
    queue.expire(10.0)
    assert (numbers(part), part.record_count) == ([2], 1)


def test_unsent_records_that_time_out_leave_no_gap() -> None:
    queue = queue_of(rows(1, deadline_ms=10.0), rows(2))
    assert failures(queue.expire(10.0)) == [(1, ErrorCode.REQUEST_TIMED_OUT)]
    assert not queue.needs_resume
    assert sequences([send(queue)]) == [(0, 0)]


def test_failing_everything_settles_each_chunk_once_and_empties_the_queue() -> None:
    queue = queue_of(*(rows(number, deadline_ms=10.0 if number == 0 else 99.0) for number in range(4)))
    first = send(queue)
    second = send(queue)
    queue.expire(10.0)
    queue.repeat(first, BUSY, retries=5)
    assert queue.in_flight[0] is second
    assert [number for number, _ in failures(queue.fail_all(BUSY))] == [1, 2, 3]
    assert (queue.unsettled_bytes, list(queue.chunks())) == (0, [])


# ---------------------------------------------------------------- resuming


def failed_queue(*counts: int, sequence: int = 0) -> PartitionQueue:
    """Everything was sent, in a part each, and failed."""
    queue = queue_of(*(rows(number, record_count=count) for number, count in enumerate(counts)), sequence=sequence)
    parts = [send(queue) for _ in counts]
    for part in parts:
        queue.repeat(part, BUSY, retries=5)
    queue.needs_resume = queue.is_resuming = True
    return queue


def test_resumed_queue_settles_what_the_log_has_and_sends_the_rest_under_the_new_epoch() -> None:
    queue = failed_queue(2, 3, 1)
    settled: Any = queue.resume(1, last_epoch=0, last_sequence=4, version=8)
    assert [(chunk.number, chunk.metadata.base_offset, chunk.metadata.version) for chunk in settled] == [
        (0, -1, 8),
        (1, -1, 8),
    ]
    queue.push(rows(9))
    assert sequences([send(queue), send(queue)]) == [(1, 5), (1, 6)]


def test_resumed_queue_of_which_nothing_is_in_the_log_begins_at_zero() -> None:
    queue = failed_queue(2, 3)
    assert queue.resume(1, last_epoch=-1, last_sequence=-1, version=-1) == []
    assert sequences([send(queue), send(queue)]) == [(1, 0), (1, 2)]


def test_records_of_another_epoch_in_the_log_are_not_taken_for_these() -> None:
    queue = failed_queue(2)
    assert queue.resume(5, last_epoch=4, last_sequence=9, version=3) == []
    assert sequences([send(queue)]) == [(5, 10)]


def test_part_that_is_in_the_log_by_half_is_not_taken_for_acknowledged() -> None:
    queue = failed_queue(4)
    assert queue.resume(1, last_epoch=0, last_sequence=2, version=3) == []
    assert sequences([send(queue)]) == [(1, 3)]


@pytest.mark.parametrize(("last_sequence", "settled"), [(SEQUENCE_MAX, [0]), (0, [0]), (1, [0, 1]), (2, [0, 1, 2])])
def test_resuming_finds_its_place_where_the_sequences_go_round(last_sequence: int, settled: list[int]) -> None:
    queue = failed_queue(2, 2, 1, sequence=SEQUENCE_MAX - 1)
    found: Any = queue.resume(1, last_epoch=0, last_sequence=last_sequence, version=3)
    assert [chunk.number for chunk in found] == settled
    queue.push(rows(9))
    following = (last_sequence + 1) % SEQUENCE_MODULUS
    assert sequences([send(queue)]) == [(1, following)]


def test_new_identity_while_parts_are_under_way_is_a_broken_invariant() -> None:
    queue = queue_of(rows(1))
    send(queue)
    with pytest.raises(AssertionError, match="under way"):
        queue.begin(ProducerStamp(8, 0, 0))


# ---------------------------------------------------------------- strict queues, of named producers


def test_strict_queue_fails_everything_behind_a_record_that_failed() -> None:
    queue = queue_of(rows(1), rows(2), rows(3), is_strict=True)
    first, second = send(queue), send(queue)
    settled: Any = queue.refuse(first, TOO_LARGE, {})
    assert failures(settled) == [(1, TOO_LARGE.code), (3, TOO_LARGE.code)]
    assert "a record before it failed" in settled[1].error.message
    assert failures(queue.put_off(second)) == [(2, TOO_LARGE.code)]
    late = rows(4)
    assert queue.push(late) == [late]
    assert not queue.needs_resume
    assert not queue.is_ready(0.0, is_hurried=True)


def test_strict_queue_fails_the_neighbours_of_a_refused_record() -> None:
    queue = queue_of(rows(1, record_count=2), rows(2), is_strict=True)
    settled = queue.refuse(send(queue, 100), TOO_LARGE, {0: ONE})
    assert failures(settled) == [(1, TOO_LARGE.code), (2, TOO_LARGE.code)]


def test_strict_queue_takes_the_late_success_of_what_was_under_way() -> None:
    queue = queue_of(rows(1, deadline_ms=10.0), rows(2), rows(3), is_strict=True)
    first, second = send(queue), send(queue)
    assert failures(queue.expire(10.0)) == [(1, ErrorCode.REQUEST_TIMED_OUT), (3, ErrorCode.REQUEST_TIMED_OUT)]
    queue.acknowledge(first, 0, -1, 1)
    settled: Any = queue.acknowledge(second, 1, -1, 2)
    assert [chunk.metadata.base_offset for chunk in settled] == [1]


def test_strict_queue_that_was_failed_as_a_whole_stays_so_unless_it_was_empty() -> None:
    empty = queue_of(is_strict=True)
    assert empty.fail_all(BUSY) == []
    assert empty.push(rows(1)) == []
    queue = queue_of(rows(1), rows(2), is_strict=True)
    send(queue)
    assert [number for number, _ in failures(queue.fail_all(BUSY))] == [1, 2]
    late = rows(3)
    assert queue.push(late) == [late]
